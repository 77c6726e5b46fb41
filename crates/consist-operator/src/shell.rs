//! I/O of the operator: watches employers, Pods and EndpointSlices, syncs backends, applies plans.

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

/// Name of the operator in its Lease and its events, and its field manager.
pub const NAME: &str = "consist-operator";
