//! CollaSet: a number of Pods of one template, each operated on through its lifecycle.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    condition::Condition,
    template::{ClaimTemplate, PodTemplate, selector_schema},
};

mod update;

pub use update::{
    ByLabel, ByPartition, PodUpgradePolicy, ResizePolicy, ResizeStrategy, RollingUpdate,
    UpdateStrategy,
};

/// Adds the empty string to the values of a choice, for its default: charts leave fields empty that
/// the peer's webhook then fills in.
fn or_empty(schema: &mut Schema) {
    if let Some(values) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        values.push(json!({ "type": "string", "const": "" }));
    }
}

/// How many old revisions are kept by default.
pub const HISTORY_LIMIT: i32 = 20;

/// What a CollaSet should be.
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
    doc = "CollaSet keeps a number of Pods of one template, and takes each out of service before it is updated or deleted.",
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
        name = "CURRENT_REVISION",
        type_ = "string",
        json_path = ".status.currentRevision"
    ),
    printcolumn(
        name = "UPDATED_REVISION",
        type_ = "string",
        json_path = ".status.updatedRevision"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(self.spec.namingStrategy) || !has(self.spec.namingStrategy.podNamingSuffixPolicy) || self.spec.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,59}[a-z0-9])?$')")
        .message("metadata.name: name should be a DNS label of at most 61 characters when spec.namingStrategy.podNamingSuffixPolicy is PersistentSequence, as it begins the hostnames of its Pods")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, has(self.template.metadata) && has(self.template.metadata.labels) && k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k])")
    .message("spec.selector.matchLabels: selector does not match labels in pod template spec.template.metadata.labels").field_path(".selector").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, e.operator in ['In', 'Exists'] ? has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels && (e.operator == 'Exists' || has(e.values) && self.template.metadata.labels[e.key] in e.values) : !has(self.template.metadata) || !has(self.template.metadata.labels) || !(e.key in self.template.metadata.labels) || e.operator == 'NotIn' && !(has(e.values) && self.template.metadata.labels[e.key] in e.values))")
    .message("spec.selector.matchExpressions: selector does not match labels in pod template spec.template.metadata.labels").field_path(".selector").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("(has(self.scaleStrategy) && has(self.scaleStrategy.context) ? self.scaleStrategy.context : '') == (has(oldSelf.scaleStrategy) && has(oldSelf.scaleStrategy.context) ? oldSelf.scaleStrategy.context : '')")
    .message("spec.scaleStrategy.context: scaleStrategy.context is not allowed to be changed").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.namingStrategy) || !has(self.namingStrategy.podNamingSuffixPolicy) || self.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !has(self.scaleStrategy) || (!has(self.scaleStrategy.podToExclude) || self.scaleStrategy.podToExclude.size() == 0) && (!has(self.scaleStrategy.podToInclude) || self.scaleStrategy.podToInclude.size() == 0)")
    .message("spec.scaleStrategy: podToExclude and podToInclude are not allowed when namingStrategy.podNamingSuffixPolicy is PersistentSequence").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("has(self.template.metadata) && has(self.template.metadata.labels) && self.template.metadata.labels.size() > 0")
    .message("spec.template.metadata.labels: labels is required").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.volumeClaimTemplates) || self.volumeClaimTemplates.all(t, self.volumeClaimTemplates.exists_one(u, u.metadata.name == t.metadata.name))")
    .message("spec.volumeClaimTemplates: names should be unique").reason(Reason::FieldValueInvalid))]
pub struct CollaSetSpec {
    /// Stops scaling and updating. What is under way in a Pod ends; nothing new begins.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,

    /// How many Pods to keep; none if absent.
    ///
    /// Lowering it does not delete a Pod at once: each first leaves its services, so the count
    /// falls as they let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.replicas: replicas should not be smaller than 0"))]
    pub replicas: Option<i32>,

    /// Which Pods belong to the set. It must match the template's labels. An owned Pod that it no
    /// longer matches is released, not deleted.
    #[schemars(schema_with = "selector_schema")]
    pub selector: LabelSelector,

    /// What each Pod is made from. Fields unknown to this version are kept.
    pub template: PodTemplate,

    /// Claims that each instance gets, one of each template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub volume_claim_templates: Vec<ClaimTemplate>,

    /// How Pods follow a new template.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,

    /// Which Pods come and go when the number changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,

    /// How Pods are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naming_strategy: Option<NamingStrategy>,

    /// How many seconds a Pod must have served before it counts as available: in the status, before
    /// the next Pods are updated, and before a Pod that it replaces goes. 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.minReadySeconds: minReadySeconds should not be smaller than 0"))]
    pub min_ready_seconds: Option<i32>,

    /// After how many seconds without progress the condition Progressing turns False. Never by
    /// default, as Pods may rightly wait for a rule for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 1", "spec.progressDeadlineSeconds: progressDeadlineSeconds should not be smaller than 1"))]
    pub progress_deadline_seconds: Option<i32>,

    /// How many old revisions to keep besides the current and the updated one; 20 by default. A
    /// revision that a Pod still runs is kept in any case.
    #[serde(default = "history_limit")]
    #[x_kube(validation = ("self >= 0", "spec.historyLimit: historyLimit should not be smaller than 0"))]
    pub history_limit: i32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_false(value: &bool) -> bool {
    !*value
}

fn history_limit() -> i32 {
    HISTORY_LIMIT
}

/// Which Pods come and go when the number changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.podToExclude) || !has(self.podToInclude) || !sets.intersects(self.podToExclude, self.podToInclude)")
    .message("spec.scaleStrategy.podToExclude[podToInclude]: scaleStrategy.podToExclude[podToInclude] should not have intersection").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.podToDelete) || !has(self.podToInclude) || !sets.intersects(self.podToDelete, self.podToInclude)")
    .message("spec.scaleStrategy.podToDelete[podToInclude]: scaleStrategy.podToDelete[podToInclude] should not have intersection").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.podToDelete) || !has(self.podToExclude) || !sets.intersects(self.podToDelete, self.podToExclude)")
    .message("spec.scaleStrategy.podToDelete[podToExclude]: scaleStrategy.podToDelete[podToExclude] should not have intersection").reason(Reason::FieldValueForbidden))]
pub struct ScaleStrategy {
    /// The pool that instance IDs are drawn from, a DNS label; the set's own name by default. It
    /// cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == '' || self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", "spec.scaleStrategy.context: context should be a DNS label: lower-case letters, digits and '-', at most 63"))]
    pub context: Option<String>,

    /// Pods to take out of the set, by name; they live on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_exclude: Vec<String>,

    /// Pods to take into the set, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_include: Vec<String>,

    /// Pods to delete, by name: they go first when the number falls, and are made anew when it
    /// does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(max = 253)))]
    pub pod_to_delete: Vec<String>,

    /// What becomes of claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,

    /// How many seconds to wait between the permission to scale a Pod in and its deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.scaleStrategy.operationDelaySeconds: operationDelaySeconds should not be smaller than 0"))]
    pub operation_delay_seconds: Option<i32>,
}

/// What becomes of claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// When the set is deleted; Delete by default.
    #[serde(default)]
    pub when_deleted: Retention,
    /// When their Pod is scaled in; Delete by default.
    #[serde(default)]
    pub when_scaled: Retention,
}

/// Whether claims outlive their user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum Retention {
    /// They go with it.
    #[default]
    #[serde(alias = "")]
    Delete,
    /// They stay.
    Retain,
}

/// How Pods are named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamingStrategy {
    /// Random, the default, or PersistentSequence: the instance ID, so that a Pod and its
    /// successor have one name.
    #[serde(default)]
    pub pod_naming_suffix_policy: PodNamingSuffixPolicy,
}

/// What the name of a Pod ends in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum PodNamingSuffixPolicy {
    /// Letters and digits that no other Pod of the set has had.
    #[default]
    #[serde(alias = "")]
    Random,
    /// The instance ID.
    PersistentSequence,
}

/// What a CollaSet was last seen to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetStatus {
    /// The generation of the spec that this status speaks of.
    pub observed_generation: i64,
    /// The revision that Pods outside the update's scope have.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// The revision of the current template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// How often the hash of a new revision met another's name.
    pub collision_count: i32,
    /// Pods.
    pub replicas: i32,
    /// Pods being deleted.
    pub terminating_replicas: i32,
    /// Pods of the updated revision.
    pub updated_replicas: i32,
    /// Pods in an operation of this set.
    pub operating_replicas: i32,
    /// Pods that are Ready.
    pub ready_replicas: i32,
    /// Pods of the updated revision that are Ready.
    pub updated_ready_replicas: i32,
    /// Pods that serve.
    pub available_replicas: i32,
    /// Pods of the updated revision that serve.
    pub updated_available_replicas: i32,
    /// Pods that have a node.
    pub scheduled_replicas: i32,
    /// The selector as one string, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// When a Pod last came closer to what it should be, while some are not there yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// Pods that have waited for a while, in an operation or to start, and those that a limit of the
    /// spec holds back; those alike together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingPods>,
    /// Available, Degraded, Paused, Progressing, Scale, Terminating, Update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Pods that wait for the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingPods {
    /// The phase of PodOpsLifecycle that they are in; Queued if their operation has not begun, Starting
    /// if they have not served yet.
    pub phase: String,
    /// What they wait for.
    pub reason: String,
    /// How many they are.
    pub count: i32,
    /// The names of some of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// Since when the first of them waits; not told of those that are Queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
