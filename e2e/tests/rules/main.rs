//! Scenarios of PodTransitionRules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod budgets;
mod rule_kinds;
mod webhooks;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [admission::add, budgets::add, rule_kinds::add, webhooks::add];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
