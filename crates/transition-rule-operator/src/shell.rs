//! Runs the operator: watches rules and the objects that they refer to, plans, writes and calls
//! webhooks.

mod admit;
mod apply;
mod args;
mod caches;
pub mod metrics;
mod observe;
mod program;
mod reconcile;
mod record;
mod watches;
mod webhook_client;

pub use args::RuleArgs;
pub use program::PROGRAM;

/// Name of the operator: of its Lease, in its events and as field manager.
pub const NAME: &str = "transition-rule-operator";
