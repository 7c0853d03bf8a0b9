//! What was typed after `--`.

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) bootstrap: Option<String>,
    pub(crate) topic: String,
    pub(crate) naive: bool,
    pub(crate) crash: bool,
}

const USAGE: &str = "\
usage: cargo run --example quickstart [-- OPTIONS]
  (no options)            an embedded Kafka, some thousands of orders, a table at the end
  --naive                 the same with a loop that commits the highest finished offset: it loses orders
  --crash                 the library, dropped midway and started again: nothing is lost
  --bootstrap HOST:PORT   a real Kafka instead, until Ctrl-C or SIGTERM
  --topic T               the topic (orders); on a real Kafka it is filled with orders only if it is empty";

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Arguments {
            bootstrap: None,
            topic: "orders".to_owned(),
            naive: false,
            crash: false,
        };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value =
                |name: &str| words.next().ok_or(format!("{name} needs a value\n{USAGE}"));
            match word.as_str() {
                "--naive" => arguments.naive = true,
                "--crash" => arguments.crash = true,
                "--bootstrap" => arguments.bootstrap = Some(value("--bootstrap")?),
                "--topic" => arguments.topic = value("--topic")?,
                "--help" | "-h" => return Err(USAGE.to_owned()),
                other => return Err(format!("unknown option {other}\n{USAGE}")),
            }
        }
        if (arguments.naive || arguments.crash) && arguments.bootstrap.is_some() {
            return Err(format!(
                "--naive and --crash run on the embedded Kafka only\n{USAGE}"
            ));
        }
        Ok(arguments)
    }
}
