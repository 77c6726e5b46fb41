//! I/O of the operator: watches employers, Pods and EndpointSlices, syncs backends, applies plans.

mod apply;
mod args;
pub mod backend;
pub mod metrics;
mod orphan_gc;
mod program;
mod reconcile;
mod report;
mod start;

pub use args::ConsistArgs;
pub use program::PROGRAM;

/// Name of the operator in its Lease and its events, and its field manager.
pub const NAME: &str = "consist-operator";
