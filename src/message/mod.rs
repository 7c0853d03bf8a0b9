//! A Kafka message as a tower request.
//!
//! A [`Message`] owns its bytes, is cheap to clone (one reference count) and can be sent anywhere. A message that came
//! from a source carries a [`Delivery`]: where it is on its way through the stack. One built by hand for a unit test
//! carries none, passes freely, and every layer works all the same.
//!
//! ```
//! use tower_consumer::Message;
//!
//! let message = Message::builder("orders")
//!     .partition(3)
//!     .offset(42)
//!     .key("customer-7")
//!     .payload(r#"{"amount": 12}"#)
//!     .header("trace-id", "abc")
//!     .build();
//!
//! assert_eq!(message.key(), Some(&b"customer-7"[..]));
//! assert_eq!(message.headers().last("trace-id"), Some(Some(&b"abc"[..])));
//! assert!(message.delivery().is_none());
//! ```

mod builder;
mod cell;
mod delivery;
mod guard;
mod headers;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Extensions;

pub use self::builder::MessageBuilder;
pub(crate) use self::cell::{EpochCell, Failure, Signal, SourceId};
pub use self::delivery::Delivery;
pub(crate) use self::delivery::{Attempt, DeliveryState, Right, TakeRight};
pub use self::guard::Guard;
pub use self::headers::{Header, Headers};

use self::guard::Guards;
use crate::ledger::{Phase, Ticket};

/// When a message was made or stored, in milliseconds since 1970-01-01 00:00 UTC (KIP-32).
///
/// Nothing in this library decides anything by it: durations are measured with the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Timestamp {
    /// The message has none.
    #[default]
    NotAvailable,
    /// Set by the producer.
    CreateTime(i64),
    /// Set by the broker when it appended the message (`message.timestamp.type=LogAppendTime`).
    LogAppendTime(i64),
}

impl Timestamp {
    /// The milliseconds, if there are any.
    pub const fn to_millis(self) -> Option<i64> {
        match self {
            Timestamp::NotAvailable => None,
            Timestamp::CreateTime(ms) | Timestamp::LogAppendTime(ms) => Some(ms),
        }
    }
}

/// What a message holds, before it becomes one. For sources.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: Timestamp,
    /// Key, then payload.
    pub(crate) data: Bytes,
    /// Length of the key; `None` for a null key.
    pub(crate) key_len: Option<usize>,
    /// `false` for a null payload.
    pub(crate) has_payload: bool,
    pub(crate) headers: Headers,
}

impl Record {
    /// Copies key and payload into one allocation.
    pub(crate) fn join(key: Option<&[u8]>, payload: Option<&[u8]>) -> (Bytes, Option<usize>, bool) {
        let data = match (key.unwrap_or_default(), payload.unwrap_or_default()) {
            ([], []) => Bytes::new(),
            (key, []) => Bytes::copy_from_slice(key),
            ([], payload) => Bytes::copy_from_slice(payload),
            (key, payload) => [key, payload].concat().into(),
        };
        (data, key.map(<[u8]>::len), payload.is_some())
    }
}

pub(crate) struct Inner {
    record: Record,
    delivery: Option<DeliveryState>,
    guards: Guards,
}

/// A message on its way to a handler.
///
/// Null and empty differ, for keys and for payloads: `None` is null (a tombstone, if it is the payload), `Some(&[])`
/// is empty.
#[derive(Clone)]
pub struct Message {
    inner: Arc<Inner>,
    extensions: Extensions,
    /// An `AttemptLayer` outside has passed it on.
    in_attempt: bool,
}

impl Message {
    /// Builds a message by hand, for tests. It has no [`Delivery`].
    pub fn builder(topic: impl Into<Arc<str>>) -> MessageBuilder {
        MessageBuilder::new(topic.into())
    }

    pub(crate) fn from_record(record: Record, delivery: Option<(Arc<EpochCell>, Ticket)>) -> Self {
        Message {
            inner: Arc::new(Inner {
                record,
                delivery: delivery.map(|(cell, ticket)| DeliveryState::new(cell, ticket)),
                guards: Guards::default(),
            }),
            extensions: Extensions::new(),
            in_attempt: false,
        }
    }

    /// The topic it was read from.
    pub fn topic(&self) -> &str {
        &self.inner.record.topic
    }

    /// The partition it was read from, from 0.
    pub fn partition(&self) -> i32 {
        self.inner.record.partition
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> i64 {
        self.inner.record.offset
    }

    /// Its timestamp, as it stands in the log.
    pub fn timestamp(&self) -> Timestamp {
        self.inner.record.timestamp
    }

    /// Its key; `None` if it is null.
    pub fn key(&self) -> Option<&[u8]> {
        let record = &self.inner.record;
        record.key_len.map(|len| &record.data[..len])
    }

    /// Its payload; `None` if it is null (a tombstone).
    pub fn payload(&self) -> Option<&[u8]> {
        let record = &self.inner.record;
        record
            .has_payload
            .then(|| &record.data[record.key_len.unwrap_or(0)..])
    }

    /// Its key, sharing the message's memory.
    pub fn key_bytes(&self) -> Option<Bytes> {
        let record = &self.inner.record;
        record.key_len.map(|len| record.data.slice(..len))
    }

    /// Its payload, sharing the message's memory.
    pub fn payload_bytes(&self) -> Option<Bytes> {
        let record = &self.inner.record;
        record
            .has_payload
            .then(|| record.data.slice(record.key_len.unwrap_or(0)..))
    }

    /// Its headers, in order; a name may occur more than once.
    pub fn headers(&self) -> &Headers {
        &self.inner.record.headers
    }

    /// What layers have attached to this clone of the message.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// What layers have attached to this clone of the message. Other clones do not see changes. Nothing is allocated
    /// while it is empty.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Where the message is on its way; `None` for one that was built by hand.
    pub fn delivery(&self) -> Option<Delivery<'_>> {
        self.inner.delivery.as_ref().map(|state| Delivery {
            state,
            record: &self.inner.record,
        })
    }

    /// A token for work that may outlive the future that started it (`spawn_blocking`, a spawned task): as long as it
    /// lives, the message's lane stays taken, no other attempt of it begins, and a drain waits (within its budget).
    ///
    /// It does not decide whether the message is finished: only the answer of the handler does. Take it inside of the
    /// handler: a layer that holds one around it keeps the attempt from beginning.
    pub fn guard(&self) -> Guard {
        Guard::new(self.inner.clone())
    }

    /// Called by whoever notes attempts: should an `AttemptLayer` outside do so too, its `Ok` counts for nothing any
    /// more, since what stands in between may have made it of an error.
    pub(crate) fn claim_attempt(&self) {
        if self.in_attempt
            && let Some(state) = &self.inner.delivery
        {
            state.nest();
        }
    }

    pub(crate) fn into_attempt(mut self) -> Self {
        self.in_attempt = true;
        self
    }

    /// A reference to the message that keeps no extensions, for bookkeeping.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.inner.clone())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic())
            .field("partition", &self.partition())
            .field("offset", &self.offset())
            .field("key_len", &self.key().map(<[u8]>::len))
            .field("payload_len", &self.payload().map(<[u8]>::len))
            .finish_non_exhaustive()
    }
}

/// A message seen from the layers of this crate: notes and rights, no content.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Inner>);

impl Handle {
    pub(crate) fn offset(&self) -> i64 {
        self.0.record.offset
    }

    pub(crate) fn topic(&self) -> &Arc<str> {
        &self.0.record.topic
    }

    pub(crate) fn partition(&self) -> i32 {
        self.0.record.partition
    }

    pub(crate) fn delivery(&self) -> Option<&DeliveryState> {
        self.0.delivery.as_ref()
    }

    /// Takes the one right to settle.
    pub(crate) fn take_right(&self) -> TakeRight {
        match &self.0.delivery {
            None => TakeRight::NoDelivery,
            Some(state) if state.take_right() => TakeRight::Taken(Right::new(self.clone())),
            Some(_) => TakeRight::Gone,
        }
    }

    pub(crate) fn note(&self, phase: Phase) {
        if let Some(state) = &self.0.delivery {
            state.note(phase);
        }
    }

    /// Begins an attempt. Pending while a guard of an earlier one lives, and for good once nothing may start: then
    /// `CommitLayer`, woken by the same stop, drops the future.
    pub(crate) fn poll_begin(&self, cx: &mut Context<'_>) -> Poll<Attempt> {
        if !self.0.guards.poll_none(cx) {
            return Poll::Pending;
        }
        match &self.0.delivery {
            Some(state) if !state.begin() => Poll::Pending,
            _ => Poll::Ready(Attempt::new(self.clone())),
        }
    }

    /// Runs `f` when no guard is left: at once, if there is none.
    pub(crate) fn when_unguarded(&self, f: impl FnOnce() + Send + 'static) {
        self.0.guards.when_none(f);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.topic(), self.partition(), self.offset())
    }
}
