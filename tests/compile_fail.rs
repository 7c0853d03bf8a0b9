//! What does not compile, and the sentence that the compiler says about it. Each case stands beside a twin that differs
//! in one place and does compile.
//!
//! The cases are checked by `rustc` against the libraries that this test itself was linked to: no network, no second
//! build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

const PRELUDE: &str = "
    #![allow(unused)]
    use tower::ServiceBuilder;
    use tower_consumer::commit::{CommitLayer, Settled};
    use tower_consumer::handler::{AttemptLayer, handler_fn};
    use tower_consumer::order::OrderLayer;
    use tower_consumer::source::memory::{MemoryBroker, MemorySource};
    use tower_consumer::{IntoOutcome, Message, Outcome, serve};

    type Never = std::convert::Infallible;
    async fn charge(_: Message) -> Result<(), Never> { Ok(()) }
    fn source() -> MemorySource {
        MemoryBroker::new().source(\"billing\", [\"orders\"]).build().unwrap()
    }
";

#[test]
fn serve_refuses_a_stack_without_commit_layer() {
    let stack = |layers: &str| {
        format!("serve(source(), ServiceBuilder::new(){layers}.service(handler_fn(charge)))")
    };
    compiles(&stack(
        ".layer(CommitLayer::new()).layer(OrderLayer::by_key())",
    ));
    let text = refused(&stack(".layer(OrderLayer::by_key())"));
    says(
        &text,
        "the stack has no `CommitLayer`, so nothing decides what may be committed",
    );
    says(
        &text,
        "put CommitLayer outermost: `ServiceBuilder::new().layer(CommitLayer::new())…`",
    );
}

#[test]
fn serve_refuses_two_commit_layers() {
    let stack = |layers: &str| {
        format!("serve(source(), ServiceBuilder::new(){layers}.service(handler_fn(charge)))")
    };
    compiles(&stack(".layer(CommitLayer::new())"));
    let text = refused(&stack(
        ".layer(CommitLayer::new()).layer(CommitLayer::new())",
    ));
    says(&text, "Settled` does not say how a message was finished");
    says(
        &text,
        "if this is `Settled`: there is a second `CommitLayer` inside",
    );
}

#[test]
fn serve_refuses_an_order_layer_outside_of_commit_layer() {
    let stack = |layers: &str| {
        format!("serve(source(), ServiceBuilder::new(){layers}.service(handler_fn(charge)))")
    };
    compiles(&stack(
        ".layer(CommitLayer::new()).layer(OrderLayer::by_key())",
    ));
    let text = refused(&stack(
        ".layer(OrderLayer::by_key()).layer(CommitLayer::new())",
    ));
    says(&text, "Settled` does not say how a message was finished");
    says(
        &text,
        "or a layer that belongs inside of `CommitLayer` stands outside",
    );
}

#[test]
fn a_handler_answers_nothing_or_an_outcome_and_no_result_option_or_bool() {
    let handler =
        |answer: &str| format!("handler_fn(|_: Message| async {{ Ok::<_, Never>({answer}) }})");
    compiles(&handler("()"));
    compiles(&handler("Outcome::Done"));
    compiles(&handler("Outcome::skipped(\"a test order\")"));
    for (answer, shown) in [
        ("Err::<(), Never>(todo!())", "Result<(), Infallible>"),
        ("Some(())", "Option<()>"),
        ("true", "bool"),
    ] {
        let text = refused(&handler(answer));
        says(
            &text,
            &format!("`{shown}` does not say how a message was finished"),
        );
        says(
            &text,
            "answer `Ok(())` for a message that was handled, `Ok(Outcome::skipped(why))` for one that is passed over on purpose, and `Err` for everything else",
        );
    }
}

#[test]
fn a_plain_service_under_commit_layer_answers_nothing_or_an_outcome() {
    let stack = |answer: &str| {
        format!(
            "serve(source(), ServiceBuilder::new().layer(CommitLayer::new()).layer(AttemptLayer::new())
                .service(tower::service_fn(|_: Message| async {{ Ok::<_, Never>({answer}) }})))"
        )
    };
    compiles(&stack("()"));
    let text = refused(&stack("true"));
    says(&text, "`bool` does not say how a message was finished");
    says(
        &text,
        "a stack under this layer must answer `()` or `Outcome`",
    );
}

/// Else a layer outside could throw the `Err` within away, and the attempt would have ended `Ok`.
#[test]
fn an_attempt_answers_nothing_or_an_outcome_and_no_result() {
    let stack = |answer: &str| {
        format!(
            "serve(source(), ServiceBuilder::new().layer(CommitLayer::new()).map_response(|_| ()).layer(AttemptLayer::new())
                .service(tower::service_fn(|_: Message| async {{ Ok::<_, Never>({answer}) }})))"
        )
    };
    compiles(&stack("()"));
    says(
        &refused(&stack("Err::<(), ()>(())")),
        "Result<(), ()>` does not say how a message was finished",
    );
}

#[test]
fn a_retry_with_backoff_outside_of_commit_layer_is_refused() {
    let backoff = "retry(tower_consumer::retry::Backoff::fixed(std::time::Duration::ZERO))";
    let commit = "layer(CommitLayer::new())";
    let stack = |first: &str, second: &str| {
        format!(
            "serve(source(), ServiceBuilder::new().{first}.{second}.service(handler_fn(charge)))"
        )
    };
    compiles(&stack(commit, backoff));
    let text = refused(&stack(backoff, commit));
    says(&text, "Settled` does not say how a message was finished");
    says(
        &text,
        "a layer that belongs inside of `CommitLayer` stands outside",
    );
}

#[test]
fn what_is_no_function_is_told_what_a_handler_is() {
    compiles("handler_fn(charge)");
    let text = refused("handler_fn(7)");
    says(&text, "is not a handler");
    says(
        &text,
        "expected an async function of one `Message` that answers `Result<(), E>` or \
         `Result<Outcome, E>`",
    );
    says(
        &text,
        "a closure must say its error type: `Ok::<(), MyError>(())`",
    );
}

/// The compiler finds better words than ours for these: what is wrong with the function itself.
#[test]
fn a_function_that_is_no_handler_is_refused() {
    compiles("handler_fn(|_: Message| async { Ok::<(), Never>(()) })");
    for function in [
        "|_: Message| Ok::<(), Never>(())",
        "|_: Message| async {}",
        "|_: String| async { Ok::<(), Never>(()) }",
        "|_: Message, _: u32| async { Ok::<(), Never>(()) }",
        "|_: Message| async { Err::<(), u32>(7) }",
    ] {
        says(&refused(&format!("handler_fn({function})")), "Handler<");
    }
}

#[test]
fn nobody_but_commit_layer_makes_a_settled() {
    compiles("|settled: Settled| settled.kind()");
    let text = refused("Settled { kind: tower_consumer::ledger::Kind::Done, why: None }");
    says(&text, "are private");
}

#[test]
fn nobody_else_says_how_a_message_was_finished() {
    compiles("{ struct Mine; }");
    let text = refused(
        "{
            struct Mine;
            impl IntoOutcome for Mine {
                fn into_outcome(self) -> Outcome { Outcome::Done }
                fn kind(&self) -> tower_consumer::ledger::Kind { todo!() }
            }
        }",
    );
    says(&text, "Sealed` is not satisfied");
}

fn says(text: &str, sentence: &str) {
    assert!(text.contains(sentence), "not said: {sentence}\n{text}");
}

fn compiles(expression: &str) {
    if let Err(text) = check(expression, libraries()) {
        panic!("does not compile: {expression}\n{text}");
    }
}

/// What the compiler says, with single spaces.
fn refused(expression: &str) -> String {
    match check(expression, libraries()) {
        Ok(()) => panic!("compiles: {expression}"),
        Err(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// The two libraries that a case names.
struct Libraries {
    tower: PathBuf,
    tower_consumer: PathBuf,
}

/// The newest ones that work together: other builds with other features may lie beside them.
fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let mut said = String::new();
        for tower_consumer in newest_first("tower_consumer") {
            for tower in newest_first("tower") {
                let libraries = Libraries {
                    tower,
                    tower_consumer: tower_consumer.clone(),
                };
                match check("()", &libraries) {
                    Ok(()) => return libraries,
                    Err(text) => said = text,
                }
            }
        }
        panic!("no library in {} works: {said}", directory().display());
    })
}

fn directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

fn newest_first(name: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{name}-");
    let mut found: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(&prefix) && file.ends_with(".rlib")
        })
        .map(|path| (path.metadata().unwrap().modified().unwrap(), path))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Of the toolchain whose cargo runs this test.
fn rustc() -> PathBuf {
    let beside_cargo = std::env::var_os("CARGO")
        .map(|cargo| Path::new(&cargo).with_file_name("rustc"))
        .filter(|rustc| rustc.exists());
    let named = std::env::var_os("RUSTC").map(PathBuf::from);
    named.or(beside_cargo).unwrap_or("rustc".into())
}

fn check(expression: &str, libraries: &Libraries) -> Result<(), String> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    let case = out.join(format!("compile_fail_{number}.rs"));
    let source = format!("{PRELUDE}\npub fn case() {{ let _ = {expression}; }}\n");
    std::fs::write(&case, source).unwrap();
    let named = |name: &str, path: &Path| format!("{name}={}", path.display());
    let output = Command::new(rustc())
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
        .arg("--out-dir")
        .arg(out)
        .arg("-L")
        .arg(named("dependency", &directory()))
        .arg("--extern")
        .arg(named("tower", &libraries.tower))
        .arg("--extern")
        .arg(named("tower_consumer", &libraries.tower_consumer))
        .arg(&case)
        .output()
        .expect("rustc can be run");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
