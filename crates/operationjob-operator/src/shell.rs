//! The controller around the plan: watches jobs and Pods, observes, plans and writes.

mod metrics;
mod observe;
mod program;
mod reconcile;
mod watches;

pub use program::PROGRAM;

/// Name of the operator in its Lease and events, and as field manager.
pub const NAME: &str = "operationjob-operator";
