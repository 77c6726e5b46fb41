//! What a simulation predicts.

use std::collections::BTreeMap;

use serde::Serialize;

/// What the operators do with a changed CollaSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Name of the CollaSet.
    pub set: String,
    /// Revision that most of the rollout's Pods have at the end.
    pub updated_revision: String,
    /// The Pods that change, in the order in which their changes begin; then those that do not.
    pub pods: Vec<PodPrediction>,
    /// Writes to Pods of the CollaSet, by operator.
    pub pod_writes: BTreeMap<&'static str, usize>,
    /// How the rollout ends.
    pub end: End,
    /// Rules that were left out, as `<PodTransitionRule>/<rule>`.
    pub rules_left_out: Vec<String>,
}

/// What happens to one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPrediction {
    /// Name of the Pod.
    pub pod: String,
    /// What happens to it.
    pub method: Method,
    /// Fields of the template that cause it.
    pub changed_fields: Vec<String>,
    /// Number of the batch, from 1: the Pods of a batch change at the same time. `None` if the Pod does
    /// not change.
    pub batch: Option<usize>,
}

/// What happens to a Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Method {
    /// Nothing.
    #[default]
    None,
    /// Its metadata is updated in service.
    Metadata,
    /// It is updated in place, out of service.
    InPlace,
    /// It is deleted, and another one created.
    Recreate,
    /// Another one is created before it is deleted.
    Replace,
    /// It is deleted, because the CollaSet is scaled in.
    ScaleIn,
    /// It is created, because the CollaSet is scaled out.
    ScaleOut,
    /// It is deleted, because its deletion was requested.
    Delete,
}

/// How a simulated rollout ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum End {
    /// All Pods are as desired.
    #[default]
    Complete,
    /// Some are not, and nothing changes any more without another party.
    Waiting {
        /// What Pods wait for, as in the CollaSet's status.
        reasons: Vec<String>,
    },
    /// It was not complete after the time that is simulated.
    Unfinished {
        /// Simulated time, in seconds.
        seconds: i64,
        /// What Pods wait for at that time.
        reasons: Vec<String>,
    },
}
