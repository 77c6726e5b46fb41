//! Every label, annotation, finalizer and condition type outside the per-operation labels of
//! [`lifecycle`](crate::lifecycle): one documented constant each.

use std::collections::BTreeMap;

/// Label. `true` puts a Pod under the lifecycle; nothing here happens to a Pod without it.
pub const CONTROL: &str = "kusionstack.io/control";

/// The one value of [`CONTROL`] that counts.
pub const CONTROL_ON: &str = "true";

/// The selector of what is under control.
pub const CONTROLLED: &str = "kusionstack.io/control=true";

/// Whether an object of these labels is under control.
#[must_use]
pub fn is_controlled(labels: &BTreeMap<String, String>) -> bool {
    labels.get(CONTROL).is_some_and(|value| value == CONTROL_ON)
}

/// Condition type and readiness gate: False takes the Pod out of service, True lets it back in.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";

/// Annotation. JSON `{"expectedFinalizers":{"<key>":"<finalizer>"}}`: what must be on the Pod before
/// it counts as available.
pub const AVAILABLE_CONDITIONS: &str = "pod.kusionstack.io/available-conditions";

/// Annotation. When the last of those who held the Pod let go of it, in Unix nanoseconds; written with
/// the removal of the finalizer. Not Kuperator's.
pub const RELEASED_AT: &str = "podopslifecycle.kusionstack.io/released-at";

/// Prefix of finalizers that keep a Pod from being operated on. Every finalizer that *starts* with
/// it counts.
pub const PROTECTION_FINALIZER: &str = "prot.podopslifecycle.kusionstack.io";

/// Label. The Pod serves: it is Ready, idle and has every expected finalizer. Unix nanoseconds.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";

/// Label. The Pod is the first of its instance; gone once it is available. Unix nanoseconds.
pub const CREATING: &str = "podopslifecycle.kusionstack.io/creating";

/// Label. The Pod re-creates an instance; gone once it is available. Unix nanoseconds.
pub const COMPLETING: &str = "podopslifecycle.kusionstack.io/completing";

/// Label. Any value keeps the Pod out of service after its operations.
pub const STAY_OFFLINE: &str = "podopslifecycle.kusionstack.io/stay-offline";

/// Label. The operation under way ends with the Pod's deletion. Unix nanoseconds.
pub const PREPARING_TO_DELETE: &str = "podopslifecycle.kusionstack.io/preparing-to-delete";

/// Label prefix. `<prefix>/<checker>` on a Pod: wait in PreCheck until somebody grants.
pub const PRE_CHECK_GATE: &str = "pre-check-gate.podopslifecycle.kusionstack.io";

/// Label prefix. `<prefix>/<checker>` on a Pod: wait in PostCheck until somebody grants.
pub const POST_CHECK_GATE: &str = "post-check-gate.podopslifecycle.kusionstack.io";

/// The name of transition-rule-operator as a checker, in the keys of its gates.
pub const TRANSITION_RULE: &str = "transition-rule";

/// Annotation prefix. `<prefix>/<PodTransitionRule>`: JSON, what that object last decided about the
/// Pod.
pub const RULE_DETAIL: &str = "detail.podtransitionrule.kusionstack.io";

/// Annotation. JSON `{"skipRules":["<rule>"]}`: rules that do not apply to the Pod.
pub const SKIP_RULES: &str = "podtransitionrule.kusionstack.io/skip-rule-conditions";

/// Annotation. JSON `{"rules":["<rule>"],"until":"<RFC 3339>","reason":"<why>"}`: rules that do not
/// apply to the Pod until then; each use is told. Not Kuperator's.
pub const BREAK_GLASS: &str = "podtransitionrule.kusionstack.io/break-glass";

/// Finalizer that Kuperator puts on PodTransitionRules; Podops only takes it off.
pub const RULE_PROTECTED: &str = "finalizer.operating.kusionstack.io/protected";

/// Label prefix. `<prefix>/<operation type>`: an operation of that type is granted.
pub const OPERATION_PERMISSION: &str = "operation-permission.podopslifecycle.kusionstack.io";

/// Label. The instance ID of a Pod or a claim, decimal.
pub const INSTANCE_ID: &str = "collaset.kusionstack.io/instance-id";

/// Label. Asks for the Pod's graceful deletion; any value.
pub const TO_DELETE: &str = "collaset.kusionstack.io/to-delete";

/// Annotation. What becomes of a Pod that somebody deletes or evicts: `Delete`, or `Replace`, with
/// which its CollaSet makes the Pod that takes its place first. Not Kuperator's.
pub const DELETION_POLICY: &str = "podopslifecycle.kusionstack.io";

/// Label. Asks for a replacement; any value.
pub const TO_REPLACE: &str = "collaset.kusionstack.io/to-replace";

/// Label on a Pod that is replaced to be updated: the name of the revision.
pub const REPLACED_BY_REPLACE_UPDATE: &str = "collaset.kusionstack.io/replaced-by-replace-update";

/// Label. Takes the Pod out of its CollaSet; any value.
pub const TO_EXCLUDE: &str = "collaset.kusionstack.io/to-exclude";

/// Label. Puts the Pod into the scope of a `byLabel` update; any value.
pub const UPDATE_INCLUDED: &str = "collaset.kusionstack.io/update-included";

/// Label on a new Pod of a replacement: the name of the Pod it replaces.
pub const REPLACE_PAIR_ORIGIN_NAME: &str = "collaset.kusionstack.io/replace-pair-origin-name";

/// Label on the origin of a replacement: the instance ID of the new Pod.
pub const REPLACE_PAIR_NEW_ID: &str = "collaset.kusionstack.io/replace-pair-new-id";

/// Label on claims: the name of the template they were made from.
pub const CLAIM_TEMPLATE_NAME: &str = "collaset.kusionstack.io/pvc-template-name";

/// Label on claims: the hash of the template they were made from.
pub const CLAIM_TEMPLATE_HASH: &str = "collaset.kusionstack.io/pvc-template-hash";

/// Label. `true` on Pods and claims taken out of their CollaSet.
pub const ORPHANED: &str = "collaset.kusionstack.io/orphaned";

/// Annotation of Kubernetes' own. An integer; of Pods alike, the one that costs least is scaled in
/// first.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Annotation. An integer, 0 by default; of Pods that are equally healthy, the one of the highest
/// priority is updated first. Not Kuperator's.
pub const UPDATE_PRIORITY: &str = "collaset.kusionstack.io/update-priority";

/// Annotation. JSON: what each container ran before an in-place update.
pub const LAST_POD_STATUS: &str = "collaset.kusionstack.io/last-pod-status";

/// Label. The name of the ControllerRevision a Pod was made from.
pub const REVISION: &str = "controller-revision-hash";

/// Label on ControllerRevisions: the hash part of the name.
pub const REVISION_HASH: &str = "controller.kubernetes.io/hash";

/// Label on ControllerRevisions: the collision count that went into the hash.
pub const REVISION_COLLISION: &str = "controller.kubernetes.io/collision";

/// Finalizer of a CollaSet, held until its Pods and its ResourceContext are released.
pub const PRE_RECLAIM: &str = "apps.kusionstack.io/pre-reclaim";

/// Keys in the data of a ResourceContext entry.
pub mod context {
    /// The name of the CollaSet that owns the ID.
    pub const OWNER: &str = "Owner";
    /// The ControllerRevision that the ID's next Pod is made from.
    pub const REVISION: &str = "Revision";
    /// `true` until the ID has produced its first Pod.
    pub const POD_JUST_CREATE: &str = "PodJustCreate";
    /// `true` while a recreate update has the Pod deleted.
    pub const POD_RECREATE_UPDATE: &str = "PodRecreateUpdate";
    /// On the origin of a replacement: the ID of the new Pod.
    pub const REPLACE_NEW_POD_ID: &str = "ReplaceNewPodID";
    /// On the new Pod of a replacement: the ID of its origin.
    pub const REPLACE_ORIGIN_POD_ID: &str = "ReplaceOriginPodID";
    /// `true` while the Pod is scaled in; the ID is dropped once the Pod is gone.
    pub const SCALE_IN: &str = "ScaleIn";
}
