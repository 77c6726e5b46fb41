//! Runs [`OperationJob`](podops_api::operation_job::OperationJob)s: replaces, restarts and
//! recreates Pods, each of which leaves its Services first.
//!
//! Reads: OperationJobs, Pods. Writes: OperationJob status and finalizer, labels and images of
//! Pods; deletes Pods that it may operate on, and jobs whose time to live is over. Owns the
//! operation named as the job; a replacement is requested by label, and carried out by the Pod's
//! CollaSet.

pub mod facts;

pub mod view;

pub mod reasons;

pub mod plan;

pub mod metrics;
pub mod status;

pub mod render;

pub mod events;

#[cfg(feature = "shell")]
pub mod shell;
