//! The operator as a program.

use podops_runtime::program::Program;

use super::{
    NAME,
    start::{InstanceArgs, start},
};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<InstanceArgs> = Program {
    name: NAME,
    about: "Runs the plans of Instances, as packages of KUDO describe them",
    start,
};
