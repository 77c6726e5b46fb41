//! Scenarios of PodOpsLifecycle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod graceful_deletion;
mod kubelets;
mod lost_labels;
mod pods_without_owner;
mod takeover;
mod traces;
mod two_leaders;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 7] = [
        graceful_deletion::add,
        kubelets::add,
        lost_labels::add,
        pods_without_owner::add,
        takeover::add,
        traces::add,
        two_leaders::add,
    ];
    Suite::from_args().files(&files).run()
}
