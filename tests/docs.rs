//! The documentation names tests; they are there.

use std::fs;
use std::path::Path;

fn rust_files(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_named_in_the_guarantees_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = String::new();
    rust_files(&root.join("tests"), &mut tests);
    let guarantees = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let names: Vec<&str> = guarantees
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 3 && !name.contains(['*', ' ', '/']))
        .map(|name| name.rsplit("::").next().unwrap_or(name))
        .collect();
    assert!(names.len() > 100, "{} names", names.len());
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !tests.contains(&format!("fn {name}(")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
