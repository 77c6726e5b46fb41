//! Scenarios of traffic.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backends;
mod services;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [backends::add, services::add];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
