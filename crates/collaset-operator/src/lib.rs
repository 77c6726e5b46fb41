//! Keeps a [`CollaSet`](podops_api::collaset::CollaSet)'s Pods at the wanted number and revision.
//!
//! Reads: CollaSets, Pods, claims, ResourceContexts, ControllerRevisions. Writes: Pods, claims,
//! ResourceContexts, ControllerRevisions, the status and the finalizer of CollaSets. Owns: the operation `collaset`
//! of its Pods; whether and when a Pod may be operated on is for others to say, by labels.

pub mod view;

pub mod plan;

pub mod status;

pub mod render;

#[cfg(feature = "shell")]
pub mod shell;

#[cfg(all(test, feature = "shell"))]
mod simulation;
