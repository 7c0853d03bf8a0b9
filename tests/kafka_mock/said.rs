//! What the library said, by topic: the tests run at the same time, and each that asks has a topic of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Once};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

static WARNINGS: LazyLock<Mutex<HashMap<String, Vec<String>>>> = LazyLock::new(Mutex::default);

/// Begins to listen, once. Shows everything if TRACE is set.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let shown = std::env::var_os("TRACE").is_some();
        let show = shown.then(|| tracing_subscriber::fmt::layer().with_test_writer());
        let level = tracing_subscriber::filter::LevelFilter::DEBUG;
        let registry = tracing_subscriber::registry().with(level);
        registry.with(Warnings).with(show).init();
    });
}

/// The warnings and errors that named this topic.
pub(crate) fn warnings(topic: &str) -> Vec<String> {
    WARNINGS.lock().get(topic).cloned().unwrap_or_default()
}

struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut read = Read::default();
        event.record(&mut read);
        if let Some(topic) = read.topic {
            WARNINGS.lock().entry(topic).or_default().push(read.message);
        }
    }
}

#[derive(Default)]
struct Read {
    topic: Option<String>,
    message: String,
}

impl Visit for Read {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "topic" {
            self.topic = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "topics" {
            self.topic = Some(format!("{value:?}"));
        }
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}
