//! Runs the plans of [`Instance`](podops_api::kudo::Instance)s: phases and steps, whose tasks apply
//! and delete the objects of a package.
//!
//! Reads: Instances, OperatorVersions, the objects of packages. Writes: these objects, Instance
//! status, finalizer and `planExecution`.

pub mod object;

pub mod object_write;

pub mod messages;

pub mod dependencies;

pub mod sources;
pub mod values;
pub mod view;

pub mod redaction;

pub mod plan_names;

mod conditions;
pub mod run;
pub mod schedule;

pub mod task;

pub mod plan;

pub mod reasons;

pub mod metrics;

pub mod render;

pub mod failures;
pub mod memory;
pub mod pending_status;

#[cfg(feature = "shell")]
pub mod shell;

#[cfg(test)]
mod simulation;
