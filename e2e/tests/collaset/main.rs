//! Scenarios of CollaSets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocked;
mod claims;
mod conflicts;
mod decorations;
mod failure_policy;
mod histories;
mod replace;
mod rolling_update;
mod rollout;
mod steps;
mod update_and_scale;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 11] = [
        blocked::add,
        claims::add,
        conflicts::add,
        decorations::add,
        failure_policy::add,
        histories::add,
        replace::add,
        rolling_update::add,
        rollout::add,
        steps::add,
        update_and_scale::add,
    ];
    Suite::from_args().files(&files).run()
}
