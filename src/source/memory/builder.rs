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

    /// Most messages of a partition that are delivered and not covered by an acknowledged commit; 8,192 by default.
    pub fn window(mut self, messages: usize) -> Self {
        self.config.window_messages = messages;
        self
    }

    /// Most key and payload bytes of a partition without a verdict; 64 MiB by default.
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.config.window_bytes = bytes;
        self
    }

    /// Most messages without a verdict over all partitions; 10,000 by default.
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.config.in_flight_messages = messages;
        self
    }

    /// Most key and payload bytes without a verdict over all partitions; 256 MiB by default.
    pub fn in_flight_bytes(mut self, bytes: u64) -> Self {
        self.config.in_flight_bytes = bytes;
        self
    }

    /// Longest time between a moved watermark and its commit; 1 s by default.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.config.commit_interval = interval;
        self
    }

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
