//! Scenarios of the operation of a cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cli;
mod demo;
mod deploy;
mod docs;
mod gitops;
mod helm;
mod images;
mod jobs;
mod kuperator;
mod migration;
mod monitoring;
mod simulate;
mod uninstall;
mod upgrade;
mod warnings;

use std::process::ExitCode;

use podops_test_cluster::suite::Suite;

fn main() -> ExitCode {
    let files: [fn(Suite) -> Suite; 15] = [
        cli::add,
        demo::add,
        deploy::add,
        docs::add,
        gitops::add,
        helm::add,
        images::add,
        jobs::add,
        kuperator::add,
        migration::add,
        monitoring::add,
        simulate::add,
        uninstall::add,
        upgrade::add,
        warnings::add,
    ];
    Suite::from_args().files(&files).run()
}
