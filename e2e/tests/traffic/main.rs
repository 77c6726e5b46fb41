//! Scenarios of traffic.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backends;
mod services;

use std::process::ExitCode;

use podops_e2e::suite::Suite;

fn main() -> ExitCode {
    let files = [backends::add, services::add];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
