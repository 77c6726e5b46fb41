//! Runs the plans of [`Instance`](podops_api::kudo::Instance)s: phases and steps, whose tasks apply and
//! delete the objects of a package.
//!
//! Reads: Instances, OperatorVersions, the objects of packages. Writes: these objects, Instance status,
//! finalizer and `planExecution`. Pure so far: the part that talks to an API server does not exist yet.

pub mod object;

pub mod object_write;

pub mod values;
pub mod view;

pub mod run;
pub mod schedule;

pub mod task;

pub mod plan;

pub mod reasons;

#[cfg(test)]
mod simulation;
