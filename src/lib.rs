//! Kafka consumer middleware as tower layers.
pub mod commit;
pub mod handler;
pub mod ledger;
pub mod message;
pub mod order;
mod outcome;
mod panic;
mod ready;
pub mod retry;
pub mod serve;
pub mod source;
pub mod timeout;

pub use self::message::Message;
pub use self::outcome::{IntoOutcome, Outcome};
pub use self::serve::serve;
pub use tower::BoxError;
