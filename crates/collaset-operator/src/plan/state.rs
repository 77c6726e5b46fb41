//! Facts derived from the observed state that several steps need. No step, no action.

pub mod claims;
pub mod counted;
pub mod decorations;
pub mod facts;
pub mod failures;
pub mod instance_ids;
pub mod last_status;
pub mod pairs;
pub mod revisions;
pub mod rolling_limits;
pub mod rollout_step;
pub mod targets;
