//! Scenarios of packages of KUDO.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command_line;
mod instances;
mod kudo;
mod kudo_suite;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 4] =
        [command_line::add, instances::add, kudo::add, kudo_suite::add];
    Suite::from_args().files(&files).run()
}
