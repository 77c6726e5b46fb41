//! Permits operations on Pods according to PodTransitionRules.
//!
//! Reads: PodTransitionRules, Pods labelled `kusionstack.io/control=true`, CollaSets,
//! PodDisruptionBudgets, Nodes. Writes: the status of PodTransitionRules, and of Pods the grants
//! `pre-checked`, `operation-permission` and `post-checked`, its own gate labels and its own
//! annotations, through `pods/status`. Owns: the gates named `transition-rule`.
//!
//! All rules of a namespace are evaluated together, because several may select one Pod. An
//! operation is first *reserved* in the status of every PodTransitionRule with a budget, by a write
//! conditional on its resourceVersion; then *granted* by a patch of the Pod that tests the
//! operation instance; the reservation is *released* once the end of the operation is observed.

pub mod reasons;

pub mod rules;
pub mod view;

pub mod admission;
pub mod observe;

pub mod plan;
pub mod status;
pub mod webhook_tasks;

pub mod events;
pub mod measurements;
pub mod metrics;
pub mod namespace_state;
pub mod pod_writes;
pub mod render;
pub mod traces;

#[cfg(feature = "shell")]
pub mod shell;
