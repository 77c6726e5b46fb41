//! The operator around the plan: watches Services, Pods and EndpointSlices, asks backends, writes.

mod controller;
mod memory;
mod metrics;
mod observe;
mod sweep;

pub use controller::{ConsistArgs, start};

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "consist-operator";
