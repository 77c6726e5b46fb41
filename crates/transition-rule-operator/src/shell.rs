//! Runs the operator: watches rules and the objects that they refer to, plans, writes and calls
//! webhooks.

mod admit;
mod controller;
mod metrics;
mod observe;
mod webhook_client;

pub use controller::{RuleArgs, start};

/// Name of the operator: of its Lease, in its events and as field manager.
pub const NAME: &str = "transition-rule-operator";
