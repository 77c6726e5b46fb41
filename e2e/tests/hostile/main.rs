//! Scenarios of faults, hostile objects and tenants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod fuzz;
mod kills;
mod scale;
mod tenants;
mod undecodable;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 6] =
        [faults::add, fuzz::add, kills::add, scale::add, tenants::add, undecodable::add];
    Suite::from_args().files(&files).run()
}
