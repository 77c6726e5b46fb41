//! The operator: watches, reads and writes.

mod types;

mod files;
mod objects;
mod own_rights;
mod plan_permits;

mod service_account;

mod versions;

mod watches;
mod workloads;

mod metrics;

mod turns;

mod apply;
mod reconcile;
mod start;

mod program;

/// Name of the program, of its Lease and of its field manager.
pub const NAME: &str = "instance-operator";

pub use program::PROGRAM;
