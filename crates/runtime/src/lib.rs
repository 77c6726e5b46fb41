//! Shared runtime of the operators' processes.
//!
//! A [`program`] parses the flags and starts an [`operator`]; its tasks share a [`process`], and
//! run a [`reconciler`] for each collection that they reconcile, whose queue is a [`controller`].

pub mod args;
pub mod telemetry;

pub mod metrics;

pub mod shutdown;

pub mod lease;

pub mod election;

pub mod traces;

mod admin;
mod certificate_authority;
mod turns;

pub mod connections;
pub mod controller;
pub mod process;
pub mod reconcile_error;
pub mod reconciler;
pub mod writer;

pub mod operator;
pub mod program;
