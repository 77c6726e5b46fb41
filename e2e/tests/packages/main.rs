//! Scenarios of packages of KUDO.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command_line;
mod instances;
mod kudo;
mod kudo_suite;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [command_line::add, instances::add, kudo::add, kudo_suite::add];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
