//! All parts with I/O, in the order in which an operator uses them.

pub mod args;
pub mod telemetry;

pub mod clock;
pub mod metrics;

pub mod client;

pub mod shutdown;

pub mod lease;

mod admin;

pub mod operator;
pub mod program;

mod rejected_writes;

pub mod store;

pub mod apply;
pub mod events;

pub mod controller;
pub mod reconcile_error;
