//! API types of the Podops operators: custom resources and the PodOpsLifecycle label protocol.
//!
//! Wire-compatible with KusionStack Kuperator and, in [`kudo`], with KUDO. No client, no I/O and no
//! decisions: this crate defines what each label means; the operators decide when to write it.

#![allow(clippy::duplicated_attributes, reason = "each CEL rule is a separate attribute")]
#![allow(unreachable_pub, reason = "triggered by the struct that KubeSchema generates")]

pub mod well_known;

pub mod ids;

pub mod availability;
pub mod consist;
pub mod deletion_policy;
pub mod lifecycle;
pub mod operation_history;

pub mod collaset;
pub mod operation_job;
pub mod pod_decoration;
pub mod resource_context;
pub mod transition_rule;

pub mod kudo;

pub mod condition;
pub mod image_reference;
pub mod int_or_percent;
pub mod template;

/// API group of every custom resource but those of [`kudo`].
pub const GROUP: &str = "apps.kusionstack.io";

/// API version, the only one that is served and stored.
pub const VERSION: &str = "v1alpha1";
