use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{MemoryBroker, MemorySource};
use crate::ledger::{Config, ConfigError};

/// Builds a [`MemorySource`]: see [`MemoryBroker::source`].
#[must_use = "a builder does nothing until `build` is called"]
pub struct MemorySourceBuilder {
    pub(super) broker: MemoryBroker,
    pub(super) group: String,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) config: Config,
    pub(super) until_end: bool,
}

impl MemorySourceBuilder {
    pub(super) fn new(broker: MemoryBroker, group: String, topics: Vec<Arc<str>>) -> Self {
        MemorySourceBuilder {
            broker,
            group,
            topics,
            config: Config::default(),
            until_end: false,
        }
    }

    crate::source::bounds::setters!();

    /// The source ends when everything that was produced so far is handed out and has its verdict. Without this it
    /// waits for more.
    pub fn until_end(mut self) -> Self {
        self.until_end = true;
        self
    }

    /// Builds the source. It reads from the committed offset of each partition, or from its start.
    ///
    /// # Errors
    /// A window or an in-flight bound of 0.
    pub fn build(self) -> Result<MemorySource, ConfigError> {
        self.config.validate()?;
        Ok(MemorySource::new(self))
    }
}

impl fmt::Debug for MemorySourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySourceBuilder")
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
