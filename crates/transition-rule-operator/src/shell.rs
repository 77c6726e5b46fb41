//! Runs the operator: watches rules and the objects that they refer to, plans, writes and calls
//! webhooks.

mod admit;
mod caches;
mod controller;
pub mod metrics;
mod program;
mod webhook_client;

pub use controller::RuleArgs;
pub use program::PROGRAM;

/// Name of the operator: of its Lease, in its events and as field manager.
pub const NAME: &str = "transition-rule-operator";
