//! The result of a simulation.

use std::collections::BTreeMap;

use serde::Serialize;

/// Predicted effects of a changed CollaSet.
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
    /// Names of the PersistentVolumeClaims that are deleted, with their data.
    pub deleted_claims: Vec<String>,
    /// Names of the PersistentVolumeClaims that no longer belong to the CollaSet.
    pub released_claims: Vec<String>,
    /// How the rollout ends.
    pub end: End,
    /// Rules that were left out, as `<PodTransitionRule>/<rule>`.
    pub rules_left_out: Vec<String>,
}

/// Predicted change of one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPrediction {
    /// Name of the Pod.
    pub pod: String,
    /// Kind of change.
    pub method: Method,
    /// Fields of the template that cause the change.
    pub changed_fields: Vec<String>,
    /// Number of the batch, from 1: the Pods of a batch change at the same time. `None` if the Pod
    /// does not change.
    pub batch: Option<usize>,
}

/// Kind of change to a Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Method {
    /// Nothing.
    #[default]
    None,
    /// Its annotations are updated in service.
    Metadata,
    /// Updated in place, out of service.
    InPlace,
    /// Deleted; then a new Pod is created.
    Recreate,
    /// A new Pod is created before this one is deleted.
    Replace,
    /// Deleted, because the CollaSet is scaled in.
    ScaleIn,
    /// Created, because the CollaSet is scaled out.
    ScaleOut,
    /// Deleted, because its deletion was requested.
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
        /// Reasons for which Pods wait, as in the CollaSet's status.
        reasons: Vec<String>,
    },
    /// Not complete after the maximum simulated time.
    Unfinished {
        /// Simulated time, in seconds.
        seconds: i64,
        /// Reasons for which Pods wait at that time.
        reasons: Vec<String>,
    },
}
