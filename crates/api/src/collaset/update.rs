//! How Pods follow a new template.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::or_empty;
use crate::int_or_percent;

/// How Pods follow a new template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || self.podUpgradePolicy != 'Replace' || !(string(self.rollingUpdate.maxSurge) in ['0', '0%'])")
    .message("spec.updateStrategy.rollingUpdate.maxSurge: maxSurge must not be 0 when podUpgradePolicy is Replace, which makes the new Pod first").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.rollingUpdate) || !has(self.rollingUpdate.maxUnavailable) || self.podUpgradePolicy == 'Replace' || !(string(self.rollingUpdate.maxUnavailable) in ['0', '0%'])")
    .message("spec.updateStrategy.rollingUpdate.maxUnavailable: maxUnavailable must not be 0 unless podUpgradePolicy is Replace, as a Pod is out of service while it is updated").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.resize) || self.resize.onInfeasible != 'Recreate' && self.resize.onDeferred != 'Recreate' || self.podUpgradePolicy != 'InPlaceOnly'")
    .message("spec.updateStrategy.resize: Recreate is not allowed when podUpgradePolicy is InPlaceOnly").reason(Reason::FieldValueForbidden))]
pub struct UpdateStrategy {
    /// Which Pods are updated, and how many at once.
    #[serde(default = "by_partition")]
    pub rolling_update: Option<RollingUpdate>,

    /// The way a Pod is updated. Recreate deletes it and makes another of the same instance;
    /// InPlaceIfPossible, the default, changes it where the API allows that and else recreates it;
    /// InPlaceOnly refuses what cannot be done in place; Replace makes the new Pod first.
    #[serde(default)]
    pub pod_upgrade_policy: PodUpgradePolicy,

    /// How many seconds to wait between the permission to operate and the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.updateStrategy.operationDelaySeconds: operationDelaySeconds should not be smaller than 0"))]
    pub operation_delay_seconds: Option<i32>,

    /// The name of a ControllerRevision of this set that Pods are to follow instead of the template,
    /// for as long as it is named: a rollback without the old template at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self.size() <= 63", "spec.updateStrategy.revision: revision should be the name of a ControllerRevision, at most 63 characters"))]
    pub revision: Option<String>,

    /// What becomes of a Pod whose node does not give it the resources of a new template in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<ResizeStrategy>,
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            rolling_update: by_partition(),
            pod_upgrade_policy: PodUpgradePolicy::default(),
            operation_delay_seconds: None,
            revision: None,
            resize: None,
        }
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the field it is the default of")]
fn by_partition() -> Option<RollingUpdate> {
    Some(RollingUpdate { by_partition: Some(ByPartition::default()), ..RollingUpdate::default() })
}

/// Which Pods are updated, and how many at once; `byLabel` wins over `byPartition`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// All Pods but a number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_partition: Option<ByPartition>,

    /// Only Pods labelled `collaset.kusionstack.io/update-included`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_label: Option<ByLabel>,

    /// How many Pods may be out of service at once: a number, or a percentage of the replicas, rounded
    /// down but not to 0. No update begins in a Pod that serves while it would make more. Without it
    /// all Pods begin at once, and the pace is left to rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.maxUnavailable: maxUnavailable should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_unavailable: Option<IntOrString>,

    /// How many Pods there may be beyond the replicas while Pods are replaced, by the policy Replace
    /// or by label: a number, or a percentage of the replicas, rounded up. No limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.maxSurge: maxSurge should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_surge: Option<IntOrString>,
}

/// All Pods but a number of them are updated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ByPartition {
    /// How many Pods stay on older revisions: a number, or a percentage of the replicas, rounded up;
    /// none by default. Raising it brings updated Pods back to the current revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.byPartition.partition: partition should not be smaller than 0, or be a percentage up to 100%"))]
    pub partition: Option<IntOrString>,
}

/// Only labelled Pods are updated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ByLabel {}

/// The way a Pod is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum PodUpgradePolicy {
    /// Delete the Pod and make another.
    Recreate,
    /// In place where the API allows it, else by deletion.
    #[default]
    #[serde(alias = "")]
    InPlaceIfPossible,
    /// In place or not at all.
    InPlaceOnly,
    /// Make the new Pod first.
    Replace,
}

/// What becomes of a Pod whose node does not give it the resources of a new template in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResizeStrategy {
    /// If the node has no room at the moment: Wait, the default, or Recreate.
    #[serde(default)]
    pub on_deferred: ResizePolicy,
    /// If the node can never give them, or the API server refuses to ask it: Wait, the default, or
    /// Recreate.
    #[serde(default)]
    pub on_infeasible: ResizePolicy,
}

/// What becomes of a Pod that cannot be resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResizePolicy {
    /// It stays out of service until the node gives the resources or the template changes.
    #[default]
    Wait,
    /// It is deleted, and another is made, which may find another node.
    Recreate,
}
