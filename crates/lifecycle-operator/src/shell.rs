//! I/O of the operator: watches Pods and Services, applies plans, and serves the admission webhooks
//! for delete and eviction requests.

mod controller;
mod deletion_webhook;
mod metrics;
mod observe;

pub use controller::{LifecycleArgs, start};
pub use observe::{SlimPod, SlimService};

/// Name of the operator in its Lease and its events, and its field manager.
pub const NAME: &str = "lifecycle-operator";
