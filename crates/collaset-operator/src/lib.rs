//! Keeps the Pods of a [`CollaSet`](podops_api::collaset::CollaSet) at the desired number and
//! revision.
//!
//! Reads: CollaSets, Pods, PersistentVolumeClaims, ResourceContexts, ControllerRevisions. Writes:
//! Pods, PersistentVolumeClaims, ResourceContexts, ControllerRevisions, CollaSet status and
//! finalizer, and names in `spec.scaleStrategy.podToDelete` that it has deleted. Owns the operation
//! `collaset` of its Pods; lifecycle-operator and the controllers that set lifecycle labels decide
//! when a Pod may be operated on.

pub mod view;

pub mod reasons;

pub mod compat;

pub mod template;

pub mod decoration;

pub mod plan;

pub mod metrics;
pub mod status;

pub mod render;

pub mod events;
pub mod memory;
pub mod results;

#[cfg(feature = "shell")]
pub mod shell;

#[cfg(all(test, feature = "shell"))]
mod simulation;
