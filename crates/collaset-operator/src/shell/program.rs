//! The operator as a program.

use podops_runtime::program::Program;

use super::{NAME, args::CollaSetArgs, watches::start};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<CollaSetArgs> = Program {
    name: NAME,
    about: "Keeps the Pods of CollaSets at the desired number and revision, and takes each Pod out of service before it is updated or deleted",
    start,
};
