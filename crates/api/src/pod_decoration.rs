//! PodDecoration: changes to the Pods of CollaSets, such as sidecars, independently of their
//! templates.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{condition::Condition, template::selector_schema};

mod template;

pub use template::{
    AffinityPatch, DecorationTemplate, EmbeddedObject, InjectPolicy, InjectedContainer,
    MetadataPatch, PatchPolicy, PrimaryContainerPatch, TargetPolicy,
};

/// Default of [`PodDecorationSpec::history_limit`].
pub const HISTORY_LIMIT: i32 = 20;

/// Desired state of a PodDecoration.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "PodDecoration",
    plural = "poddecorations",
    singular = "poddecoration",
    shortname = "pd",
    namespaced,
    status = "PodDecorationStatus",
    derive = "PartialEq",
    doc = "PodDecoration adds containers, volumes and other fields to the Pods of CollaSets, independently of their templates, and updates them through PodOpsLifecycle.",
    printcolumn(name = "MATCHED", type_ = "integer", json_path = ".status.matchedPods"),
    printcolumn(name = "INJECTED", type_ = "integer", json_path = ".status.injectedPods"),
    printcolumn(name = "UPDATED", type_ = "integer", json_path = ".status.updatedPods"),
    printcolumn(name = "UPDATED_READY", type_ = "integer", json_path = ".status.updatedReadyPods"),
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
    validation = Rule::new("self.metadata.name.size() <= 60")
        .message("metadata.name: name should be at most 60 characters, because the label poddecoration.kusionstack.io/pd-<name> of its Pods contains it")
)]
#[serde(rename_all = "camelCase")]
pub struct PodDecorationSpec {
    /// Number of old revisions to retain in addition to the current and the updated one. Revisions
    /// that Pods still have are always retained. Defaults to 20.
    #[serde(default = "history_limit")]
    #[x_kube(validation = ("self >= 0", "spec.historyLimit: historyLimit should not be smaller than 0"))]
    #[x_kube(validation = ("self <= 100", "spec.historyLimit: historyLimit should not be larger than 100"))]
    pub history_limit: i32,

    /// Omits the list of Pods from the status.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_pod_detail: bool,

    /// Selects Pods of the same namespace by their labels. The empty selector selects all Pods of
    /// CollaSets; without a selector, no Pod is selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub selector: Option<LabelSelector>,

    /// Order among the decorations of a Pod: decorations with a higher weight are applied later, to
    /// the result of the earlier ones. Decorations with the same weight are applied in the order of
    /// their names. Defaults to 0.
    #[serde(default)]
    pub weight: i32,

    /// Selects the Pods that get a new revision.
    #[serde(default)]
    pub update_strategy: DecorationUpdateStrategy,

    /// Changes to the Pods.
    #[serde(default)]
    pub template: DecorationTemplate,
}

fn history_limit() -> i32 {
    HISTORY_LIMIT
}

/// Selects the Pods that get a new revision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecorationUpdateStrategy {
    /// Limits the Pods that get a new revision. By default, all selected Pods get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<DecorationRollingUpdate>,
}

/// Limits the Pods that get a new revision; `selector` takes precedence over `partition`. All other
/// Pods keep their revision; Pods without a revision get `status.currentRevision`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecorationRollingUpdate {
    /// Selects the Pods that get the new revision, by their labels. The empty selector selects all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub selector: Option<LabelSelector>,

    /// Number of Pods, of all CollaSets together, that do not get the new revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.updateStrategy.rollingUpdate.partition: partition should not be smaller than 0"))]
    pub partition: Option<i32>,
}

/// Most recently observed state of a PodDecoration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDecorationStatus {
    /// Generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// Revision for Pods outside the scope of the update that have no revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Revision of the current template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// Number of hash collisions between a new revision and an existing one.
    #[serde(skip_serializing_if = "is_zero")]
    pub collision_count: i32,
    /// Number of Pods of CollaSets that the selector selects.
    #[serde(skip_serializing_if = "is_zero")]
    pub matched_pods: i32,
    /// Number of selected Pods that are decorated.
    #[serde(skip_serializing_if = "is_zero")]
    pub injected_pods: i32,
    /// Number of selected Pods with the updated revision.
    #[serde(skip_serializing_if = "is_zero")]
    pub updated_pods: i32,
    /// Number of selected Pods with the updated revision that are Ready.
    #[serde(skip_serializing_if = "is_zero")]
    pub updated_ready_pods: i32,
    /// Number of available selected Pods with the updated revision.
    #[serde(skip_serializing_if = "is_zero")]
    pub updated_available_pods: i32,
    /// Selected Pods by CollaSet, in the order of their names; at most 1,000 Pods in total.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<DecoratedSet>,
    /// Conditions: Ready, Stalled, Degraded, Progressing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Selected Pods of one CollaSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecoratedSet {
    /// Name of the CollaSet.
    #[serde(rename = "collaSet")]
    pub colla_set: String,
    /// Number of selected Pods of the CollaSet.
    pub affected_replicas: i32,
    /// Selected Pods of the CollaSet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<DecoratedPod>,
}

/// Revision of the decoration on one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecoratedPod {
    /// Name of the Pod.
    pub name: String,
    /// Revision on the Pod; empty if the Pod is not decorated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// True if the Pod is selected, but not decorated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
}
