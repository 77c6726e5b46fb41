//! The operator around the plan: watches Pods and Services, plans, writes; answers about Pods that are
//! to go.

mod controller;
mod deletion_webhook;
mod metrics;
mod observe;

pub use controller::{LifecycleArgs, start};
pub use observe::{SlimPod, SlimService};

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "lifecycle-operator";
