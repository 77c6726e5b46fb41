//! Decisions on delete and eviction requests: which are allowed, what starts the graceful deletion
//! of a Pod, and how the others are denied.

pub mod budget;
pub mod decision;
pub mod review;
