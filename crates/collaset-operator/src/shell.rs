//! The operator around the plan: watches, observes, plans, writes.

mod controller;
pub(crate) mod observe;

pub use controller::start;
pub use observe::{SlimPod, SlimRevision};

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "collaset-operator";
