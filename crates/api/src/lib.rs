//! The words that Podops operators share: custom resources and the PodOpsLifecycle label protocol.
//!
//! Wire-compatible with KusionStack Kuperator. Holds no client, no I/O and no decision: what a
//! label *is* stands here, when to write it stands in the operators.

#![allow(clippy::duplicated_attributes, reason = "each CEL rule is an attribute of its own")]
#![allow(unreachable_pub, reason = "the twin that KubeSchema generates triggers it")]

pub mod well_known;

pub mod availability;
pub mod consist;
pub mod lifecycle;

pub mod collaset;
pub mod resource_context;
pub mod transition_rule;

pub mod condition;
pub mod int_or_percent;
pub mod template;

/// The API group of every custom resource.
pub const GROUP: &str = "apps.kusionstack.io";

/// The one version served and stored.
pub const VERSION: &str = "v1alpha1";
