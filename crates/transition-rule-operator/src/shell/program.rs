//! The operator as a program.

use podops_runtime::program::Program;

use super::{NAME, args::RuleArgs, watches::start};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<RuleArgs> = Program {
    name: NAME,
    about: "Permits operations on Pods according to PodTransitionRules",
    start,
};
