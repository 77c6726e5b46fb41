//! Scenarios of CollaSets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocked;
mod claims;
mod conflicts;
mod decorations;
mod failure_policy;
mod replace;
mod rolling_update;
mod rollout;
mod steps;
mod update_and_scale;

use podops_test_cluster::suite::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files = [
        blocked::add,
        claims::add,
        conflicts::add,
        decorations::add,
        failure_policy::add,
        replace::add,
        rolling_update::add,
        rollout::add,
        steps::add,
        update_and_scale::add,
    ];
    files.into_iter().fold(Suite::from_args(), |suite, add: fn(Suite) -> Suite| add(suite)).run()
}
