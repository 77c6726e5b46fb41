//! CollaSet: a number of Pods from one template, updated and deleted through PodOpsLifecycle.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, Time},
    util::intstr::IntOrString,
};
use kube::{
    CustomResource, KubeSchema,
    core::{Message, Reason, Rule},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition::Condition,
    int_or_percent,
    template::{ClaimTemplate, PodTemplate, or_empty, selector_schema},
};

mod update;

pub use update::{
    ByLabel, ByPartition, FailureAction, FailurePolicy, PodUpgradePolicy, ResizePolicy,
    ResizeStrategy, RollingUpdate, RolloutStep, StepPause, UpdateStrategy,
};

/// Default of [`CollaSetSpec::replicas`].
pub const REPLICAS: i32 = 1;

/// Default of [`CollaSetSpec::history_limit`].
pub const HISTORY_LIMIT: i32 = 20;

/// Desired state of a CollaSet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "CollaSet",
    plural = "collasets",
    singular = "collaset",
    shortname = "cls",
    namespaced,
    status = "CollaSetStatus",
    derive = "PartialEq",
    doc = "CollaSet maintains a number of Pods from one template, and takes each Pod out of service before it is updated or deleted.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn(name = "DESIRED", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "CURRENT", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "AVAILABLE", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "UPDATED", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(
        name = "UPDATED_READY",
        type_ = "integer",
        json_path = ".status.updatedReadyReplicas"
    ),
    printcolumn(
        name = "UPDATED_AVAILABLE",
        type_ = "integer",
        json_path = ".status.updatedAvailableReplicas"
    ),
    printcolumn(
        name = "STATUS",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "CURRENT_REVISION",
        type_ = "string",
        priority = 1,
        json_path = ".status.currentRevision"
    ),
    printcolumn(
        name = "UPDATED_REVISION",
        type_ = "string",
        priority = 1,
        json_path = ".status.updatedRevision"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(self.spec.namingStrategy) || !has(self.spec.namingStrategy.podNamingSuffixPolicy) || self.spec.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,59}[a-z0-9])?$')")
        .message("metadata.name: name should be a DNS label of at most 61 characters when spec.namingStrategy.podNamingSuffixPolicy is PersistentSequence, because it is the prefix of the hostnames of its Pods"),
    validation = Rule::new("!has(self.spec.namingStrategy) || !has(self.spec.namingStrategy.podNamingSuffixPolicy) || self.spec.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || self.metadata.name.size() + 1 + string(has(self.spec.replicas) ? self.spec.replicas : 0).size() <= 63")
        .message("metadata.name: name is too long for this number of replicas when spec.namingStrategy.podNamingSuffixPolicy is PersistentSequence: the name of a Pod, <name>-<id>, should be at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.selector.matchLabels) && self.selector.matchLabels.size() > 0 || has(self.selector.matchExpressions) && self.selector.matchExpressions.size() > 0")
    .message("spec.selector: an empty selector selects the Pods of all workloads").field_path(".selector").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, has(self.template.metadata) && has(self.template.metadata.labels) && k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k])")
    .message("spec.selector.matchLabels: selector does not match labels in pod template spec.template.metadata.labels").field_path(".selector").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, e.operator in ['In', 'Exists'] ? has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels && (e.operator == 'Exists' || has(e.values) && self.template.metadata.labels[e.key] in e.values) : !has(self.template.metadata) || !has(self.template.metadata.labels) || !(e.key in self.template.metadata.labels) || e.operator == 'NotIn' && !(has(e.values) && self.template.metadata.labels[e.key] in e.values))")
    .message("spec.selector.matchExpressions: selector does not match labels in pod template spec.template.metadata.labels").field_path(".selector").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("self.selector == oldSelf.selector")
    .message("spec.selector: selector is immutable, because the Pods that exist would be forgotten; create another CollaSet").field_path(".selector").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("(has(self.scaleStrategy) && has(self.scaleStrategy.context) ? self.scaleStrategy.context : '') == (has(oldSelf.scaleStrategy) && has(oldSelf.scaleStrategy.context) ? oldSelf.scaleStrategy.context : '')")
    .message("spec.scaleStrategy.context: scaleStrategy.context is not allowed to be changed").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.namingStrategy) || !has(self.namingStrategy.podNamingSuffixPolicy) || self.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !has(self.scaleStrategy) || (!has(self.scaleStrategy.podToExclude) || self.scaleStrategy.podToExclude.size() == 0) && (!has(self.scaleStrategy.podToInclude) || self.scaleStrategy.podToInclude.size() == 0)")
    .message("spec.scaleStrategy: podToExclude and podToInclude are not allowed when namingStrategy.podNamingSuffixPolicy is PersistentSequence").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("has(self.template.metadata) && has(self.template.metadata.labels) && self.template.metadata.labels.size() > 0")
    .message("spec.template.metadata.labels: labels is required").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.volumeClaimTemplates) || self.volumeClaimTemplates.all(t, self.volumeClaimTemplates.exists_one(u, u.metadata.name == t.metadata.name))")
    .message("spec.volumeClaimTemplates: names should be unique").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = immutable_in_claims("accessModes", Some("[]")))]
#[x_kube(validation = immutable_in_claims("storageClassName", None))]
#[x_kube(validation = immutable_in_claims("volumeName", Some("''")))]
#[x_kube(validation = immutable_in_claims("volumeMode", Some("'Filesystem'")))]
#[x_kube(validation = immutable_in_claims("selector", None))]
#[x_kube(validation = immutable_in_claims("dataSource", None))]
#[x_kube(validation = immutable_in_claims("dataSourceRef", None))]
#[x_kube(validation = Rule::new("!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds > (has(self.minReadySeconds) ? self.minReadySeconds : 0) || oldSelf.hasValue() && has(oldSelf.value().progressDeadlineSeconds) && oldSelf.value().progressDeadlineSeconds == self.progressDeadlineSeconds && (has(oldSelf.value().minReadySeconds) ? oldSelf.value().minReadySeconds : 0) == (has(self.minReadySeconds) ? self.minReadySeconds : 0)").optional_old_self(true)
    .message("spec.progressDeadlineSeconds: progressDeadlineSeconds should be larger than minReadySeconds, because no Pod becomes available before").field_path(".progressDeadlineSeconds").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.updateStrategy) || !has(self.updateStrategy.rollingUpdate) || !has(self.updateStrategy.rollingUpdate.failurePolicy) || has(self.progressDeadlineSeconds)")
    .message("spec.progressDeadlineSeconds: progressDeadlineSeconds is required when updateStrategy.rollingUpdate.failurePolicy is set, because a Pod that is not available in time has failed").reason(Reason::FieldValueRequired))]
pub struct CollaSetSpec {
    /// Pauses updates. Operations in progress are completed; no new ones are started. Scaling goes
    /// on, and lost Pods are recreated at their revision.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,

    /// Number of Pods to run.
    ///
    /// When lowered, each Pod leaves its Services before it is deleted (see PodOpsLifecycle), so
    /// the number of Pods falls as they finish. At most 10,000, because the instance IDs of all
    /// Pods are stored in one ResourceContext. Defaults to 1.
    #[serde(default = "one_replica", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[x_kube(validation = ("self >= 0", "spec.replicas: replicas should not be smaller than 0"))]
    #[x_kube(validation = ("self <= 10000", "spec.replicas: replicas should not be greater than 10000; use several CollaSets"))]
    pub replicas: Option<i32>,

    /// Selects the Pods of the set. The selector must not be empty, and must match the template's
    /// labels. An owned Pod that no longer matches is released, not deleted.
    #[schemars(schema_with = "selector_schema")]
    pub selector: LabelSelector,

    /// Template of the Pods. Fields unknown to this version are preserved.
    pub template: PodTemplate,

    /// Templates of PersistentVolumeClaims. One claim per template is created for each instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub volume_claim_templates: Vec<ClaimTemplate>,

    /// Strategy for updating Pods to a new template.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,

    /// Selects the Pods to create and delete when `replicas` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,

    /// Naming of Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naming_strategy: Option<NamingStrategy>,

    /// Number of seconds that a Pod must have been in service before it counts as available: in the
    /// status, before the next Pods are updated, and before a Pod that it replaces is deleted.
    /// Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.minReadySeconds: minReadySeconds should not be smaller than 0"))]
    pub min_ready_seconds: Option<i32>,

    /// Number of seconds without progress after which the condition Progressing becomes False. No
    /// deadline by default, because Pods may wait for a rule for a long time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 1", "spec.progressDeadlineSeconds: progressDeadlineSeconds should not be smaller than 1"))]
    pub progress_deadline_seconds: Option<i32>,

    /// Number of old revisions to retain in addition to the current and the updated one. Revisions
    /// that Pods still run are always retained. Defaults to 20.
    #[serde(default = "history_limit")]
    #[x_kube(validation = ("self >= 0", "spec.historyLimit: historyLimit should not be smaller than 0"))]
    #[x_kube(validation = ("self <= 100", "spec.historyLimit: historyLimit should not be larger than 100"))]
    pub history_limit: i32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_false(value: &bool) -> bool {
    !*value
}

// The field may be null in Rust only.
#[allow(clippy::unnecessary_wraps)]
const fn one_replica() -> Option<i32> {
    Some(REPLICAS)
}

/// Rule that a field of the spec of a claim template does not change, compared as `default` where
/// it is missing.
fn immutable_in_claims(field: &str, default: Option<&str>) -> Rule {
    let [old, new] = ["o.spec", "t.spec"].map(|spec| format!("{spec}.{field}"));
    let is_equal = match default {
        Some(default) => {
            format!("(has({old}) ? {old} : {default}) == (has({new}) ? {new} : {default})")
        }
        None => format!("has({old}) == has({new}) && (!has({old}) || {old} == {new})"),
    };
    Rule::new(format!("!has(self.volumeClaimTemplates) || !has(oldSelf.volumeClaimTemplates) || self.volumeClaimTemplates.all(t, oldSelf.volumeClaimTemplates.all(o, o.metadata.name != t.metadata.name || {is_equal}))"))
        .message(Message::Message(format!("spec.volumeClaimTemplates: spec.{field} of a claim template is immutable, because it cannot be changed for the PersistentVolumeClaims that exist; use a claim template with another name")))
        .field_path(".volumeClaimTemplates")
        .reason(Reason::FieldValueForbidden)
}

fn history_limit() -> i32 {
    HISTORY_LIMIT
}

/// Selects the Pods to create and delete when `replicas` changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.podToExclude) || !has(self.podToInclude) || !sets.intersects(self.podToExclude, self.podToInclude)")
    .message("spec.scaleStrategy.podToExclude[podToInclude]: scaleStrategy.podToExclude[podToInclude] should not have intersection").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.podToDelete) || !has(self.podToInclude) || !sets.intersects(self.podToDelete, self.podToInclude)")
    .message("spec.scaleStrategy.podToDelete[podToInclude]: scaleStrategy.podToDelete[podToInclude] should not have intersection").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.podToDelete) || !has(self.podToExclude) || !sets.intersects(self.podToDelete, self.podToExclude)")
    .message("spec.scaleStrategy.podToDelete[podToExclude]: scaleStrategy.podToDelete[podToExclude] should not have intersection").reason(Reason::FieldValueForbidden))]
pub struct ScaleStrategy {
    /// Name of the ResourceContext that instance IDs are allocated from, a DNS label. Defaults to
    /// the name of the set. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == '' || self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "spec.scaleStrategy.context: context should be a DNS label of at most 63 lower-case letters, digits and '-'"))]
    pub context: Option<String>,

    /// Names of Pods to remove from the set. They are not deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_exclude: Vec<String>,

    /// Names of Pods to add to the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_include: Vec<String>,

    /// Names of Pods to delete. They are deleted first when `replicas` is lowered, and recreated
    /// otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_delete: Vec<String>,

    /// Retention of PersistentVolumeClaims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,

    /// Maximum number of unavailable Pods while Pods are added: a number, or a percentage of
    /// `replicas`, rounded down; at least 1. No Pod of a new instance is created if that would
    /// exceed this limit. No limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.scaleStrategy.maxUnavailable: maxUnavailable should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_unavailable: Option<IntOrString>,

    /// Number of seconds between the permission to scale in a Pod and its deletion. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.scaleStrategy.operationDelaySeconds: operationDelaySeconds should not be smaller than 0"))]
    pub operation_delay_seconds: Option<i32>,
}

/// Retention of PersistentVolumeClaims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// Policy when the set is deleted. Defaults to `status.claimRetentionDefault`.
    #[serde(default, skip_serializing_if = "Retention::is_unset")]
    pub when_deleted: Retention,
    /// Policy when the Pod of the claims is scaled in. Defaults to `status.claimRetentionDefault`.
    #[serde(default, skip_serializing_if = "Retention::is_unset")]
    pub when_scaled: Retention,
}

/// Retention policy of PersistentVolumeClaims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// The default applies.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// The claims are deleted.
    Delete,
    /// The claims are retained.
    Retain,
}

impl Retention {
    /// Returns this policy, or `default` if it is not set.
    #[must_use]
    pub const fn or(self, default: Self) -> Self {
        if matches!(self, Self::Unset) { default } else { self }
    }

    // Serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    const fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }
}

/// Naming of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamingStrategy {
    /// Suffix of Pod names: Random (default), or PersistentSequence, which is the instance ID, so
    /// that a recreated Pod keeps its name.
    #[serde(default)]
    pub pod_naming_suffix_policy: PodNamingSuffixPolicy,
}

/// Suffix of Pod names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum PodNamingSuffixPolicy {
    /// Letters and digits that no other Pod of the set has used.
    #[default]
    #[serde(alias = "")]
    Random,
    /// Instance ID.
    PersistentSequence,
}

/// Most recently observed state of a CollaSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetStatus {
    /// Generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// Revision of the Pods outside the scope of the update.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Revision of the current template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// Revision whose rollout is complete: all Pods in the scope of the update were available at it
    /// at the same time. Only while this is another one are failures and the progress deadline
    /// judged. Not reported by Kuperator, and by releases of Podops before this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_out_revision: Option<String>,
    /// Revision whose rollout the failure policy stopped, because too many of its Pods failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub halted_revision: String,
    /// Number of failed Pods of the updated revision. Reported only with a failure policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_replicas: Option<i32>,
    /// Step of the rollout, if the rollout has steps and is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_step: Option<CurrentStep>,
    /// Number of hash collisions between a new revision and an existing one.
    pub collision_count: i32,
    /// Number of Pods.
    pub replicas: i32,
    /// Number of Pods that are being deleted.
    pub terminating_replicas: i32,
    /// Number of Pods of the updated revision.
    pub updated_replicas: i32,
    /// Number of Pods in an operation of this set.
    pub operating_replicas: i32,
    /// Number of Pods that are Ready.
    pub ready_replicas: i32,
    /// Number of Pods of the updated revision that are Ready.
    pub updated_ready_replicas: i32,
    /// Number of available Pods.
    pub available_replicas: i32,
    /// Number of available Pods of the updated revision.
    pub updated_available_replicas: i32,
    /// Number of Pods that are assigned to a node.
    pub scheduled_replicas: i32,
    /// Retention policy of PersistentVolumeClaims for the cases that the spec does not name: Retain.
    /// A set of Kuperator, or of a release of Podops before this field, has no such record, and its
    /// claims are deleted as before.
    #[serde(skip_serializing_if = "Retention::is_unset")]
    pub claim_retention_default: Retention,
    /// Selector in string form, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// Time of the last progress of a Pod towards its desired state, while the rollout is
    /// incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// Pods that have been waiting for some time, in an operation or to start, and Pods that are
    /// blocked by a limit of the spec; grouped by phase and reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingPods>,
    /// Conditions: Ready, Stalled, Available, Degraded, Paused, Progressing, Scale, Terminating,
    /// Update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Step of a rollout that is in progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentStep {
    /// Revision that is rolled out.
    pub revision: String,
    /// Number of the step, from 1. The step after the last one of the spec updates the remaining
    /// Pods.
    pub step: i32,
    /// Number of steps, including that of the remaining Pods.
    pub steps: i32,
    /// Time at which the step was complete and the rollout paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Time>,
    /// Time at which the rollout continues without approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continues_at: Option<Time>,
}

/// Pods that wait in the same phase for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingPods {
    /// Phase of PodOpsLifecycle; Queued if the operation has not started, Starting if the Pods have
    /// not been available yet, Invalid if their lifecycle labels cannot be read.
    pub phase: String,
    /// Reason for waiting.
    pub reason: String,
    /// Number of Pods.
    pub count: i32,
    /// Names of some of the Pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// Time since which the first of the Pods has been waiting; not reported for Queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
