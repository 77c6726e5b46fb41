//! All parts with I/O, in the order in which an operator uses them.

pub mod args;
pub mod telemetry;

pub mod clock;
pub mod metrics;

pub mod client;
pub mod operator;
mod rejected_writes;

pub mod admin;
#[cfg(feature = "admission")]
pub mod admission;
#[cfg(feature = "admission")]
mod certificates;
pub mod lease;

pub mod store;

pub mod controller;

pub mod apply;
pub mod events;
