//! Kafka consumer middleware as tower layers.
pub mod ledger;
