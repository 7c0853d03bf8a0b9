//! One file a scenario. In each, a first test shows how the naive program loses.

mod s1_fail_and_skip;
mod s2_slow_one;
mod s3_no_way_back;
mod s4_deadline;
