//! Scenarios of faults, hostile objects and tenants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod fuzz;
mod kills;
mod scale;
mod tenants;
mod undecodable;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [faults::add, fuzz::add, kills::add, scale::add, tenants::add, undecodable::add];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
