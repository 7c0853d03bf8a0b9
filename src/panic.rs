//! What a panic said.

use std::any::Any;

/// The text of a panic, if it has one.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without text"
    }
}
