//! Scenarios of PodTransitionRules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod budgets;
mod rule_kinds;
mod webhooks;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 4] =
        [admission::add, budgets::add, rule_kinds::add, webhooks::add];
    Suite::from_args().files(&files).run()
}
