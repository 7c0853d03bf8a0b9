//! What the library said through `tracing`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

type List = Arc<Mutex<Vec<Said>>>;

thread_local! {
    static LIST: RefCell<Option<List>> = const { RefCell::new(None) };
}

/// Collects the events of this thread until it is dropped.
pub(crate) struct Events {
    said: List,
}

#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) level: Level,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Said {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub(crate) fn text(&self) -> &str {
        self.field("message")
    }
}

impl Events {
    pub(crate) fn collect() -> Self {
        // one subscriber for the process: with one for each thread, a callsite that another thread comes to first
        // would be taken for one that nobody listens to
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::subscriber::set_global_default(Collector).expect("there is no other");
            tracing::callsite::rebuild_interest_cache();
        });
        let said = List::default();
        LIST.set(Some(said.clone()));
        Events { said }
    }

    /// The events whose text begins like this.
    pub(crate) fn beginning(&self, text: &str) -> Vec<Said> {
        let said = self.said.lock();
        let of = said.iter().filter(|said| said.text().starts_with(text));
        of.cloned().collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        LIST.set(None);
    }
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_consumer")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(list) = LIST.with_borrow(Clone::clone) else {
            return;
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        list.lock().push(Said {
            level: *event.metadata().level(),
            fields: fields.0,
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
