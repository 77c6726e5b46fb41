//! The controller around the plan: watches objects, observes, plans and writes.

pub(crate) mod cache;
mod controller;
mod decorations;
mod metrics;
pub(crate) mod observe;
mod program;

pub use observe::objects::observe_objects;
pub use program::PROGRAM;

/// Name of the operator in its Lease and events, and as field manager.
pub const NAME: &str = "collaset-operator";
