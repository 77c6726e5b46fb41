//! Well-known labels, annotations, finalizers and condition types.
//!
//! The labels of a single operation are built in [`lifecycle`](crate::lifecycle).

use std::collections::BTreeMap;

/// Label. `true` enables PodOpsLifecycle for a Pod; the operators ignore Pods without it.
pub const CONTROL: &str = "kusionstack.io/control";

/// Value of [`CONTROL`] that enables PodOpsLifecycle; any other value is ignored.
pub const CONTROL_ON: &str = "true";

/// Label selector for the objects that the operators manage.
pub const CONTROLLED: &str = "kusionstack.io/control=true";

/// Returns whether the labels put an object under the control of the operators.
#[must_use]
pub fn is_controlled(labels: &BTreeMap<String, String>) -> bool {
    labels.get(CONTROL).is_some_and(|value| value == CONTROL_ON)
}

/// Condition type and readiness gate: False takes the Pod out of service, True returns it.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";

/// Annotation. JSON `{"expectedFinalizers":{"<key>":"<finalizer>"}}`: finalizers that the Pod must
/// have before it counts as available.
pub const AVAILABLE_CONDITIONS: &str = "pod.kusionstack.io/available-conditions";

/// Annotation. Time at which the last protection finalizer was removed from the Pod, in Unix
/// nanoseconds; written with the removal of the finalizer. Podops extension.
pub const RELEASED_AT: &str = "podopslifecycle.kusionstack.io/released-at";

/// Prefix of the protection finalizers, which block operations on a Pod. Every finalizer that
/// *starts* with it counts.
pub const PROTECTION_FINALIZER: &str = "prot.podopslifecycle.kusionstack.io";

/// Label. The Pod is available: Ready, without an operation, and with every expected finalizer.
/// Unix nanoseconds.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";

/// Label. The Pod is the first of its instance; removed once it is available. Unix nanoseconds.
pub const CREATING: &str = "podopslifecycle.kusionstack.io/creating";

/// Label. The Pod recreates an instance; removed once it is available. Unix nanoseconds.
pub const COMPLETING: &str = "podopslifecycle.kusionstack.io/completing";

/// Label. Keeps the Pod out of service after its operations; any value.
pub const STAY_OFFLINE: &str = "podopslifecycle.kusionstack.io/stay-offline";

/// Label. The operation in progress ends with the Pod's deletion. Unix nanoseconds.
pub const PREPARING_TO_DELETE: &str = "podopslifecycle.kusionstack.io/preparing-to-delete";

/// Label prefix. `<prefix>/<checker>` on a Pod: operations wait in PreCheck for the checker's
/// grant.
pub const PRE_CHECK_GATE: &str = "pre-check-gate.podopslifecycle.kusionstack.io";

/// Label prefix. `<prefix>/<checker>` on a Pod: operations wait in PostCheck for the checker's
/// grant.
pub const POST_CHECK_GATE: &str = "post-check-gate.podopslifecycle.kusionstack.io";

/// Name of transition-rule-operator as a checker, in the keys of its gates.
pub const TRANSITION_RULE: &str = "transition-rule";

/// Annotation prefix. `<prefix>/<PodTransitionRule>`: JSON, the last decision of that object about
/// the Pod.
pub const RULE_DETAIL: &str = "detail.podtransitionrule.kusionstack.io";

/// Annotation. JSON `{"skipRules":["<rule>"]}`: rules that do not apply to the Pod.
pub const SKIP_RULES: &str = "podtransitionrule.kusionstack.io/skip-rule-conditions";

/// Annotation. JSON `{"rules":["<rule>"],"until":"<RFC 3339>","reason":"<why>"}`: rules that do not
/// apply to the Pod until that time; each use is reported by an event. Podops extension.
pub const BREAK_GLASS: &str = "podtransitionrule.kusionstack.io/break-glass";

/// Finalizer of PodDecorations and OperationJobs, removed after the last Pod has been released.
/// Kuperator also adds it to PodTransitionRules; Podops only removes it from them.
pub const PROTECTED: &str = "finalizer.operating.kusionstack.io/protected";

/// Annotation prefix. `<prefix>/<operation ID>`: trace of the operation, see
/// docs/reference/protocol.md. Podops extension.
pub const TRACE: &str = "trace.podopslifecycle.kusionstack.io";

/// Annotation. JSON: times at which the last operations on the Pod entered their stages, and
/// results; see docs/reference/protocol.md. Podops extension.
pub const OPERATION_HISTORY: &str = "podopslifecycle.kusionstack.io/operation-history";

/// Label prefix. `<prefix>/<operation type>`: operations of that type are permitted.
pub const OPERATION_PERMISSION: &str = "operation-permission.podopslifecycle.kusionstack.io";

/// Label. Instance ID of a Pod or a PersistentVolumeClaim, decimal.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";

/// Label. Requests the Pod's graceful deletion; any value.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";

/// Annotation. Handling of delete and evict requests for the Pod: `Delete`, or `Replace`, by which
/// the CollaSet creates a replacement first. Podops extension.
pub const DELETION_POLICY: &str = "podopslifecycle.kusionstack.io/deletion-policy";

/// Label of namespaces in which evictions wait for the lifecycle of Pods.
pub const GRACEFUL_EVICTION: &str = "podopslifecycle.kusionstack.io/graceful-eviction";

/// Label. Requests a replacement of the Pod; any value.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";

/// Label on a Pod that is replaced to be updated: the name of the revision.
pub const REPLACED_BY_REPLACE_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";

/// Label. Removes the Pod from its CollaSet without deleting it; any value.
pub const TO_EXCLUDE: &str = "collaset.kusionstack.io/to-exclude";

/// Label. Puts the Pod into the scope of a `byLabel` update; any value.
pub const UPDATE_INCLUDED: &str = "collaset.kusionstack.io/update-included";

/// Label on the new Pod of a replacement: the name of the Pod it replaces.
pub const REPLACE_PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";

/// Label on the origin of a replacement: the instance ID of the new Pod.
pub const REPLACE_PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";

/// Label on PersistentVolumeClaims: the name of the template they were created from.
pub const CLAIM_TEMPLATE_NAME: &str = "collaset.kusionstack.io/pvc-template-name";

/// Label on PersistentVolumeClaims: the hash of the template they were created from.
pub const CLAIM_TEMPLATE_HASH: &str = "collaset.kusionstack.io/pvc-template-hash";

/// Label. `true` on Pods and PersistentVolumeClaims that were removed from their CollaSet.
pub const ORPHANED: &str = "collaset.kusionstack.io/orphaned";

/// Annotation of a CollaSet: the name of a revision whose rollout continues although the failure
/// policy stopped it. Podops extension.
pub const RESUME_ROLLOUT: &str = "collaset.kusionstack.io/resume-rollout";

/// Annotation of a CollaSet: `<revision>/<number>` of a rollout step; approves this step and the
/// steps before it, which ends their pauses. Podops extension.
pub const APPROVED_STEP: &str = "collaset.kusionstack.io/approved-step";

/// Annotation of a Pod template, set by `kubectl rollout restart`: another value restarts the
/// containers of all Pods.
pub const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Annotation of a Pod template, set by instance-operator: hash of the ConfigMaps and Secrets that
/// the Pods use; another value restarts the containers of all Pods.
pub const DEPENDENCIES_HASH: &str = "kudo.dev/dependencies-hash";

/// Annotation of Kubernetes. Integer; among otherwise equal Pods, the one with the lowest cost is
/// scaled in first.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Annotation. Integer, 0 by default; among equally healthy Pods, the one with the highest priority
/// is updated first. Podops extension.
pub const UPDATE_PRIORITY: &str = "collaset.kusionstack.io/update-priority";

/// Annotation. JSON: state of each container before an in-place update.
pub const LAST_POD_STATUS: &str = "collaset.kusionstack.io/last-pod-status";

/// Annotation. Time of the last in-place update of the containers, in nanoseconds since the epoch.
pub const APPLIED_AT: &str = "collaset.kusionstack.io/applied-at";

/// Label. Name of the ControllerRevision that a Pod was created from.
pub const REVISION: &str = "controller-revision-hash";

/// Label on ControllerRevisions: the hash part of the name.
pub const REVISION_HASH: &str = "controller.kubernetes.io/hash";

/// Label on ControllerRevisions: the collision count that went into the hash.
pub const REVISION_COLLISION: &str = "controller.kubernetes.io/collision";

/// Finalizer of a CollaSet, removed after its Pods and its ResourceContext are released.
pub const PRE_RECLAIM: &str = "apps.kusionstack.io/pre-reclaim";

/// Annotation on the new Pod of a replacement: the name of the Pod that it replaces. Unlike the
/// label [`REPLACE_PAIR_ORIGIN_NAME`], the annotation is kept after that Pod is deleted. Podops
/// extension.
pub const REPLACEMENT_OF: &str = "collaset.kusionstack.io/replacement-of";

/// Annotation beside [`TO_REPLACE`]: the UID of the OperationJob that requested the replacement and
/// may cancel it. Podops extension.
pub const REPLACE_REQUESTED_BY: &str = "operationjob.kusionstack.io/replace-requested-by";

/// Annotation. JSON `{"job":"<UID>","containers":{"<name>":"<container ID>"}}`: the OperationJob
/// that last restarted containers of the Pod in place, and the containers that ran before. Podops
/// extension.
pub const RESTARTED: &str = "operationjob.kusionstack.io/restarted";

/// Finalizer that Kuperator's OperationJobs add to the Pods that they replace; Podops only removes
/// it.
pub const REPLACE_PROTECTED: &str = "finalizer.operationjob.kusionstack.io/replace-protected";

/// Annotation. JSON `[{"name":"<PodDecoration>","revision":"<ControllerRevision>"}]`: the
/// decorations that a Pod was built with.
pub const DECORATIONS: &str = "poddecoration.kusionstack.io/revisions";

/// Prefix of a label. `<prefix><PodDecoration>` on a Pod: the revision of the decoration that the
/// Pod was built with.
pub const DECORATION_LABEL_PREFIX: &str = "poddecoration.kusionstack.io/pd-";

/// Keys in the data of a ResourceContext entry.
pub mod context {
    /// Name of the CollaSet that owns the ID.
    pub const OWNER: &str = "Owner";
    /// ControllerRevision that the ID's next Pod is created from.
    pub const REVISION: &str = "Revision";
    /// `true` until the ID's first Pod was created.
    pub const POD_JUST_CREATE: &str = "PodJustCreate";
    /// `true` while a recreate update has the Pod deleted.
    pub const POD_RECREATE_UPDATE: &str = "PodRecreateUpdate";
    /// On the origin of a replacement: the ID of the new Pod.
    pub const REPLACE_NEW_POD_ID: &str = "ReplaceNewPodID";
    /// On the new Pod of a replacement: the ID of its origin.
    pub const REPLACE_ORIGIN_POD_ID: &str = "ReplaceOriginPodID";
    /// `true` while the Pod is scaled in; the ID is removed once the Pod is deleted.
    pub const SCALE_IN: &str = "ScaleIn";
    /// Decorations that the ID's next Pod is created with, in the format of
    /// [`DECORATIONS`](super::DECORATIONS).
    pub const DECORATIONS: &str = "PodDecorationRevisions";
}
