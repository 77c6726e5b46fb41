//! Decisions on delete and eviction requests. `decision` chooses the label that starts the graceful
//! deletion of a Pod, `review` answers requests, and `disruption_budget` counts disruptions.

pub mod decision;
pub mod disruption_budget;
pub mod review;
