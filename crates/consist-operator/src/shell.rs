//! The operator around the plan: watches Services, Pods and EndpointSlices, asks backends, writes.

mod controller;
mod metrics;
mod observe;

pub use controller::start;

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "consist-operator";
