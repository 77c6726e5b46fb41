//! Scenarios of PodOpsLifecycle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod graceful_deletion;
mod lost_labels;
mod pods_without_owner;
mod takeover;
mod traces;
mod two_leaders;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [
        graceful_deletion::add,
        lost_labels::add,
        pods_without_owner::add,
        takeover::add,
        traces::add,
        two_leaders::add,
    ];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
