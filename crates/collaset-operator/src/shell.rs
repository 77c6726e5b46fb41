//! The controller around the plan: watches objects, observes, plans and writes.

mod apply;
mod args;
pub(crate) mod cache;
mod decorations;
mod dry_runs;
mod metrics;
pub(crate) mod observe;
mod program;
mod reconcile;
mod watches;

pub use observe::objects::observe_objects;
pub use program::PROGRAM;

/// Name of the operator in its Lease and events, and as field manager.
pub const NAME: &str = "collaset-operator";
