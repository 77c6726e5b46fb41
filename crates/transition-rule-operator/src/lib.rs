//! Says which Pods may be operated on now, by PodTransitionRules.
//!
//! Reads: PodTransitionRules, Pods labelled `kusionstack.io/control=true`, CollaSets,
//! PodDisruptionBudgets, Nodes. Writes: the status of PodTransitionRules, and of Pods the grants
//! `pre-checked`, `operation-permission` and `post-checked`, its own gate labels and its own
//! annotations, through `pods/status`. Owns: the gates called `transition-rule`.
//!
//! All rules of a namespace are looked at together, as one Pod may be subject to several of them.
//! An operation is first *reserved* in the status of every rule that counts, by a write that fails if
//! anybody else wrote; then *granted* by a patch of the Pod that fails unless it is still the same
//! operation; and its place is *released* when its end was seen.

pub mod view;

pub mod rules;

pub mod plan;
pub mod status;

pub mod render;

#[cfg(feature = "shell")]
pub mod shell;
