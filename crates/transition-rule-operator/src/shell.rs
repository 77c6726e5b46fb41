//! The operator around the plan: watches rules and what they are about, plans, writes.

mod admit;
mod controller;
mod metrics;
mod observe;
mod webhook_client;

pub use controller::{RuleArgs, start};

/// The operator's name: in its Lease, its events and as field manager.
pub const NAME: &str = "transition-rule-operator";
