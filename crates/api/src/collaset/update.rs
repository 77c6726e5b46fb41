//! Strategy for updating Pods to a new template.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{int_or_percent, template::or_empty};

/// Strategy for updating Pods to a new template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.rollingUpdate) || !has(self.rollingUpdate.maxSurge) || self.podUpgradePolicy != 'Replace' || !(string(self.rollingUpdate.maxSurge) in ['0', '0%'])")
    .message("spec.updateStrategy.rollingUpdate.maxSurge: maxSurge must not be 0 when podUpgradePolicy is Replace, which creates the new Pod first").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.rollingUpdate) || !has(self.rollingUpdate.maxUnavailable) || self.podUpgradePolicy == 'Replace' || !(string(self.rollingUpdate.maxUnavailable) in ['0', '0%'])")
    .message("spec.updateStrategy.rollingUpdate.maxUnavailable: maxUnavailable must not be 0 unless podUpgradePolicy is Replace, because a Pod is out of service while it is updated").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.resize) || self.resize.onInfeasible != 'Recreate' && self.resize.onDeferred != 'Recreate' || self.podUpgradePolicy != 'InPlaceOnly'")
    .message("spec.updateStrategy.resize: Recreate is not allowed when podUpgradePolicy is InPlaceOnly").reason(Reason::FieldValueForbidden))]
pub struct UpdateStrategy {
    /// Selects the Pods to update and limits how many are updated at once.
    #[serde(default = "by_partition")]
    pub rolling_update: Option<RollingUpdate>,

    /// Update method. Recreate deletes the Pod and creates another with the same instance ID;
    /// InPlaceIfPossible (default) patches the Pod if the API allows it, and recreates it
    /// otherwise; InPlaceOnly rejects changes that are not possible in place; Replace creates the
    /// new Pod first.
    #[serde(default)]
    pub pod_upgrade_policy: PodUpgradePolicy,

    /// Number of seconds between the permission to operate and the operation. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.updateStrategy.operationDelaySeconds: operationDelaySeconds should not be smaller than 0"))]
    pub operation_delay_seconds: Option<i32>,

    /// Name of a ControllerRevision of this set that Pods are updated to instead of the template,
    /// while the field is set. Use it to roll back without the old template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self.size() <= 63", "spec.updateStrategy.revision: revision should be the name of a ControllerRevision, at most 63 characters"))]
    pub revision: Option<String>,

    /// Handling of Pods that cannot be resized in place on their node.
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

#[allow(clippy::unnecessary_wraps, reason = "the type of the field whose default it is")]
fn by_partition() -> Option<RollingUpdate> {
    Some(RollingUpdate { by_partition: Some(ByPartition::default()), ..RollingUpdate::default() })
}

/// Selects the Pods to update and limits how many are updated at once; `byLabel` takes precedence
/// over `byPartition`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.byLabel) || !has(self.steps) || self.steps.size() == 0")
    .message("spec.updateStrategy.rollingUpdate.steps: steps are not allowed with byLabel, which selects the Pods to update by itself").reason(Reason::FieldValueForbidden))]
pub struct RollingUpdate {
    /// Update all Pods except a number of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_partition: Option<ByPartition>,

    /// Update only Pods with the label `collaset.kusionstack.io/update-included`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_label: Option<ByLabel>,

    /// Maximum number of unavailable Pods: a number, or a percentage of `replicas`, rounded down
    /// but at least 1. The update of an available Pod does not start if that would exceed this
    /// limit, and no more Pods than that get a revision that is not available yet. If unset,
    /// `--default-max-unavailable` of collaset-operator applies, which is 25% in the shipped
    /// manifests; without it, all updates start at once, and PodTransitionRules control the pace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.maxUnavailable: maxUnavailable should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_unavailable: Option<IntOrString>,

    /// Maximum number of Pods above `replicas` while Pods are replaced, by the policy Replace or by
    /// label: a number, or a percentage of `replicas`, rounded up. No limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.maxSurge: maxSurge should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_surge: Option<IntOrString>,

    /// Steps of the rollout of each new revision, in order. A step is complete when all Pods but
    /// its partition are updated and available; the rollout then pauses as the step defines. After
    /// the last step, all Pods in the scope of `byPartition` are updated. Steps apply neither to
    /// the creation of a CollaSet nor to a return to the current revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub steps: Vec<RolloutStep>,

    /// Action when Pods of the updated revision fail; none by default. Requires
    /// `progressDeadlineSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
}

/// Step of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStep {
    /// Number of Pods that this step does not update: a number, or a percentage of `replicas`,
    /// rounded up. A partition above that of an earlier step updates no further Pods.
    #[schemars(transform = int_or_percent::bounds)]
    pub partition: IntOrString,

    /// Pause after the step; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<StepPause>,
}

/// Pause after a step of a rollout. The pause ends early if the annotation
/// `collaset.kusionstack.io/approved-step` is set to `<revision>/<number of the step>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepPause {
    /// Number of seconds after which the rollout continues. By default, the rollout waits for the
    /// annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.updateStrategy.rollingUpdate.steps[].pause.seconds: seconds should not be smaller than 0"))]
    pub seconds: Option<i32>,
}

/// Action when Pods of the updated revision fail. A Pod has failed if its image cannot be pulled, a
/// container crashes repeatedly, it was evicted or has ended, or it has not been available within
/// `progressDeadlineSeconds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Number of failed Pods at which the rollout stops: a number, or a percentage of `replicas`,
    /// rounded up; at least 1.
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.failurePolicy.failureThreshold: failureThreshold should be a number not smaller than 0, or a percentage up to 100%"))]
    pub failure_threshold: IntOrString,

    /// Halt (default): no further Pod is updated. Rollback: updated Pods return to the current
    /// revision, under the same limits. Continue: the failures are reported only. A stopped rollout
    /// continues with another template, or if the annotation
    /// `collaset.kusionstack.io/resume-rollout` is set to the name of the revision.
    #[serde(default)]
    pub action: FailureAction,
}

/// Action when too many Pods of the updated revision have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum FailureAction {
    /// No further Pod is updated.
    #[default]
    #[serde(alias = "")]
    Halt,
    /// Updated Pods return to the current revision.
    Rollback,
    /// The failures are reported only.
    Continue,
}

/// Update of all Pods except a number of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ByPartition {
    /// Number of Pods that are not updated: a number, or a percentage of `replicas`, rounded up.
    /// When raised, updated Pods are rolled back to the current revision. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.updateStrategy.rollingUpdate.byPartition.partition: partition should not be smaller than 0, or be a percentage up to 100%"))]
    pub partition: Option<IntOrString>,
}

/// Update of labelled Pods only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ByLabel {}

/// Update method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum PodUpgradePolicy {
    /// Delete the Pod and create another.
    Recreate,
    /// Patch the Pod if the API allows it, recreate it otherwise.
    #[default]
    #[serde(alias = "")]
    InPlaceIfPossible,
    /// Patch the Pod; reject changes that are not possible in place.
    InPlaceOnly,
    /// Create the new Pod first.
    Replace,
}

/// Handling of Pods that cannot be resized in place on their node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResizeStrategy {
    /// If the node currently lacks the resources: Wait (default) or Recreate.
    #[serde(default)]
    pub on_deferred: ResizePolicy,
    /// If the node can never provide the resources, or the API server rejects the resize: Wait
    /// (default) or Recreate.
    #[serde(default)]
    pub on_infeasible: ResizePolicy,
}

/// Handling of a Pod that cannot be resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ResizePolicy {
    /// Keep the Pod out of service until the node provides the resources or the template changes.
    #[default]
    Wait,
    /// Delete the Pod and create another, which may be scheduled to another node.
    Recreate,
}
