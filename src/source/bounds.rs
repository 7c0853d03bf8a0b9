//! The bounds that every source has.

/// Setters of a builder whose `config` is a [`Config`](crate::ledger::Config).
macro_rules! setters {
    () => {
        /// Most messages of a partition that are delivered and not covered by an acknowledged commit; 8,192 by default. To
        /// keep a partition busy it must exceed the messages in flight + rate × commit round trip. After a crash at most
        /// this many messages of a partition are delivered again.
        pub fn window(mut self, messages: usize) -> Self {
            self.config.window_messages = messages;
            self
        }

        /// Most key and payload bytes of a partition without a verdict; one message may overshoot; 64 MiB by default.
        pub fn window_bytes(mut self, bytes: u64) -> Self {
            self.config.window_bytes = bytes;
            self
        }

        /// Most messages without a verdict over all partitions, each of which has a share of at least one; 10,000 by
        /// default. Set it a little above the concurrency limit of the stack.
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
    };
}

pub(super) use setters;
