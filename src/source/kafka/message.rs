//! From the client's message to ours: key and payload copied into one allocation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _, Timestamp as ClientTimestamp};
use tracing::warn;

use crate::message::{Header, Headers, Record, Timestamp};

pub(super) fn record(message: &BorrowedMessage<'_>, topic: &Arc<str>) -> Record {
    let (data, key_len, has_payload) = Record::join(message.key(), message.payload());
    Record {
        topic: topic.clone(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp: match message.timestamp() {
            ClientTimestamp::NotAvailable => Timestamp::NotAvailable,
            ClientTimestamp::CreateTime(ms) => Timestamp::CreateTime(ms),
            ClientTimestamp::LogAppendTime(ms) => Timestamp::LogAppendTime(ms),
        },
        data,
        key_len,
        has_payload,
        headers: headers(message),
    }
}

/// The client panics on a header whose name is not UTF-8, which the protocol forbids and brokers let pass. Such a
/// header is left out, and said.
fn headers(message: &BorrowedMessage<'_>) -> Headers {
    let Some(headers) = message.headers() else {
        return Headers::new();
    };
    (0..headers.count())
        .filter_map(|index| {
            let header = catch_unwind(AssertUnwindSafe(|| {
                let header = headers.get(index);
                (
                    Box::<str>::from(header.key),
                    header.value.map(Bytes::copy_from_slice),
                )
            }));
            match header {
                Ok((name, Some(value))) => Some(Header::new(name, value)),
                Ok((name, None)) => Some(Header::null(name)),
                Err(_) => {
                    warn!(
                        topic = message.topic(),
                        partition = message.partition(),
                        offset = message.offset(),
                        index,
                        "header left out: its name is not UTF-8"
                    );
                    None
                }
            }
        })
        .collect()
}
