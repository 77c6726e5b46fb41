//! The operator around the plan: watches employers, Pods and EndpointSlices, asks backends, writes.

mod args;
mod controller;
mod employer;
mod memory;
mod metrics;
mod observe;
mod orphan_gc;
mod start;
mod tell;

pub use args::ConsistArgs;
pub use start::start;

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "consist-operator";
