//! Runs the PodOpsLifecycle protocol on Pods: PreCheck, Preparing, Operate, PostCheck, Completing.
//!
//! Reads: Pods labelled `kusionstack.io/control=true`, Services. Writes, through `pods/status`:
//! labels, the readiness gate's condition and annotations of those Pods. Deletes Pods labelled
//! `collaset.kusionstack.io/to-delete`.
//!
//! With admission enabled it also reviews delete and eviction requests, labels the requested Pods
//! and consumes disruptions of their PodDisruptionBudgets; and it adds the readiness gate to new
//! Pods.
//!
//! Owns every lifecycle label except `operating`, `operation-type` and `undo-operation-type`, which
//! belong to the controller that requests the operation.

pub mod events;
pub mod observe;
pub mod pod;
pub mod reasons;

pub mod history;
pub mod machine;
pub mod measurements;
pub mod metrics;
pub mod operations_record;
pub mod plan;
pub mod traces;

pub mod graceful_deletion;
pub mod readiness_gate;

pub mod render;

#[cfg(feature = "shell")]
pub mod shell;
