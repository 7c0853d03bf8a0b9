//! The program under test.

use super::Handler;
use crate::plan::Plan;

pub(super) fn run(plan: &Plan, handler: Handler) {
    unimplemented!("{plan:?} {handler:?}: KafkaSource is not there yet")
}
