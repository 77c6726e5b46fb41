//! The operator as a program.

use podops_runtime::program::Program;

use super::{NAME, args::ConsistArgs, start::start};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<ConsistArgs> = Program {
    name: NAME,
    about: "Drains a Pod's traffic before operations, and checks its traffic before it counts as available",
    start,
};
