//! Moves Pods through their operations: PreCheck, Preparing, Operate, PostCheck, Completing.
//!
//! Reads: Pods labelled `kusionstack.io/control=true`, Services. Writes: labels, the readiness
//! condition and one annotation of those Pods, through `pods/status`; deletes Pods labelled
//! `collaset.kusionstack.io/to-delete`. If it is to guard Pods, it answers the API server about deletes
//! and evictions, labels the Pods in question and takes their part of PodDisruptionBudgets. Owns: every lifecycle label but `operating`,
//! `operation-type` and `undo-operation-type`, which belong to whoever operates.

pub mod pod;

pub mod machine;
pub mod plan;

pub mod graceful_deletion;

pub mod render;

#[cfg(feature = "shell")]
pub mod shell;
