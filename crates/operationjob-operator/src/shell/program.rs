//! The operator as a program.

use podops_runtime::program::Program;

use super::{
    NAME,
    watches::{OperationJobArgs, start},
};

/// The program: its name, help text and start function.
pub const PROGRAM: Program<OperationJobArgs> = Program {
    name: NAME,
    about: "Replaces, restarts and recreates the Pods of OperationJobs, and takes each Pod out of service first",
    start,
};
