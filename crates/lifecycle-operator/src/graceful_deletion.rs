//! Decisions on delete and eviction requests: requests to allow, requests that start the graceful
//! deletion of a Pod, and messages of denials.

pub mod decision;
pub mod disruption_budget;
pub mod review;
