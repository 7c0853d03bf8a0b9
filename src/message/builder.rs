//! Messages built by hand.

use std::sync::Arc;

use bytes::Bytes;

use super::{Header, Headers, Message, Record, Timestamp};

/// Builds a [`Message`] by hand, for unit tests of handlers and layers: see [`Message::builder`].
///
/// Partition and offset are 0, key and payload null, and there is no timestamp and no header unless said otherwise.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct MessageBuilder {
    topic: Arc<str>,
    partition: i32,
    offset: i64,
    timestamp: Timestamp,
    key: Option<Bytes>,
    payload: Option<Bytes>,
    headers: Headers,
}

impl MessageBuilder {
    pub(super) fn new(topic: Arc<str>) -> Self {
        MessageBuilder {
            topic,
            partition: 0,
            offset: 0,
            timestamp: Timestamp::NotAvailable,
            key: None,
            payload: None,
            headers: Headers::new(),
        }
    }

    /// Sets the partition.
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = partition;
        self
    }

    /// Sets the offset.
    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the timestamp.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = timestamp;
        self
    }

    /// Sets the key. An empty one is not a null one.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the payload. An empty one is not a null one.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = Some(payload.into());
        self
    }

    /// Adds a header with a value.
    pub fn header(mut self, name: impl Into<Box<str>>, value: impl Into<Bytes>) -> Self {
        self.headers.push(Header::new(name, value));
        self
    }

    /// Adds a header whose value is null.
    pub fn null_header(mut self, name: impl Into<Box<str>>) -> Self {
        self.headers.push(Header::null(name));
        self
    }

    pub(crate) fn place(&self) -> (Arc<str>, i32) {
        (self.topic.clone(), self.partition)
    }

    pub(crate) fn offset_set(&self) -> i64 {
        self.offset
    }

    /// Builds the message.
    pub fn build(self) -> Message {
        Message::from_record(self.into_record(), None)
    }

    pub(crate) fn into_record(self) -> Record {
        let (data, key_len, has_payload) = match (self.key, self.payload) {
            (None, None) => (Bytes::new(), None, false),
            (None, Some(payload)) => (payload, None, true),
            (key, payload) => Record::join(key.as_deref(), payload.as_deref()),
        };
        Record {
            topic: self.topic,
            partition: self.partition,
            offset: self.offset,
            timestamp: self.timestamp,
            data,
            key_len,
            has_payload,
            headers: self.headers,
        }
    }
}
