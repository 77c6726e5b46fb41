//! The operator as a program.

use podops_runtime::program::Program;

use super::{NAME, args::LifecycleArgs, watches::start};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<LifecycleArgs> = Program {
    name: NAME,
    about: "Runs the PodOpsLifecycle protocol: takes Pods out of service before an operation and returns them to service afterwards",
    start,
};
