//! Scenarios of traffic.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backends;
mod services;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 2] = [backends::add, services::add];
    Suite::from_args().files(&files).run()
}
