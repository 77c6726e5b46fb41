//! I/O of the operator: watches Pods and Services, applies plans, and serves the admission webhooks
//! for delete and eviction requests and for new Pods.

mod args;
mod deletion_webhook;
mod gate_webhook;
pub mod metrics;
mod program;
mod reconcile;
mod watches;

pub use args::LifecycleArgs;
pub use program::PROGRAM;

/// Name of the operator in its Lease and its events, and its field manager.
pub const NAME: &str = "lifecycle-operator";
