//! Every reason of events and conditions of this operator.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::condition::{
    ConditionReason,
    ConditionStatus::{False, True},
    NOT_READY, READY, STALLED, reason,
};
use podops_client::event::EventReason;

const SET: &str = "CollaSet";
const DECORATION: &str = "PodDecoration";

/// Pods are created because there are fewer than `replicas`.
pub const SCALING_OUT: EventReason = EventReason::normal(
    "ScalingOut",
    SET,
    "Pods are created because there are fewer than spec.replicas.",
);
/// Surplus Pods start their scale-in.
pub const SCALING_IN: EventReason = EventReason::normal(
    "ScalingIn",
    SET,
    "The scale-in of surplus Pods is requested; each leaves service before it is deleted.",
);
/// Pods start their update.
pub const UPDATING: EventReason =
    EventReason::normal("Updating", SET, "The update of Pods to the updated revision starts.");
/// All Pods are at the updated revision.
pub const ROLLOUT_COMPLETED: EventReason = EventReason::normal(
    "RolloutCompleted",
    SET,
    "A rollout has ended: all Pods are ready at the revision that the message names.",
);
/// Too many Pods of the updated revision have failed.
pub const ROLLOUT_STOPPED: EventReason = EventReason::warning(
    "RolloutStopped",
    SET,
    "Too many Pods of the updated revision have failed, so its rollout is halted or rolled back. Change the template, or set the annotation collaset.kusionstack.io/resume-rollout to the name of the revision.",
);
/// A step of the rollout is complete.
pub const ROLLOUT_PAUSED: EventReason = EventReason::normal(
    "RolloutPaused",
    SET,
    "A step of the rollout is complete, and the rollout pauses. It continues at the time that the message names, or when the annotation collaset.kusionstack.io/approved-step is set to <revision>/<step>.",
);
/// The object cannot be decoded.
pub const COLLA_SET_INVALID: EventReason = EventReason::warning(
    "CollaSetInvalid",
    SET,
    "The CollaSet cannot be decoded and is not reconciled. Fix the field that the message names.",
);
/// The named revision does not exist.
pub const REVISION_NOT_FOUND: EventReason = EventReason::warning(
    "RevisionNotFound",
    SET,
    "spec.updateStrategy.revision names no ControllerRevision of the CollaSet; Pods keep their revision. Fix or remove the name.",
);
/// The API server rejects Pods of the revision.
pub const TEMPLATE_REJECTED: EventReason = EventReason::warning(
    "TemplateRejected",
    SET,
    "The API server rejects Pods of the updated template, so no Pod is deleted for it. Fix the template, or the quota or policy that the message names.",
);
/// `InPlaceOnly`, but the change needs recreation.
pub const IN_PLACE_UPDATE_NOT_POSSIBLE: EventReason = EventReason::warning(
    "InPlaceUpdateNotPossible",
    SET,
    "podUpgradePolicy is InPlaceOnly, but the change requires recreation. Revert the change or use another policy.",
);
/// Inclusion and exclusion are both requested.
pub const CONFLICTING_MEMBERSHIP: EventReason = EventReason::warning(
    "DupExIncludedTarget",
    SET,
    "Inclusion and exclusion of one Pod are requested; neither is done. Remove one of them.",
);
/// The Pod cannot be excluded.
pub const EXCLUDE_NOT_POSSIBLE: EventReason = EventReason::warning(
    "ExcludeNotPossible",
    SET,
    "A Pod with a persistent name cannot be excluded, because its successor needs the name.",
);
/// The Pod to include does not match.
pub const POD_TO_INCLUDE_NOT_MATCHING: EventReason = EventReason::warning(
    "PodToIncludeNotMatching",
    SET,
    "The selector does not match the labels of a Pod in podToInclude. Fix the Pod's labels.",
);
/// A Pod to include has another controller.
pub const INCLUDE_NOT_ALLOWED: EventReason = EventReason::warning(
    "IncludeNotAllowed",
    SET,
    "A Pod in podToInclude has another controller. Release it from that controller first.",
);
/// A PVC may belong to an instance that needs one.
pub const CLAIM_INSTANCE_UNKNOWN: EventReason = EventReason::warning(
    "ClaimInstanceUnknown",
    SET,
    "An instance is not created, because a PersistentVolumeClaim without instance ID may belong to it. Set the label, or remove the owner reference of the claim.",
);
/// A Pod leaves because its labels have changed.
pub const POD_RELEASED: EventReason = EventReason::normal(
    "PodReleased",
    SET,
    "spec.selector does not match a Pod any more, which continues to exist outside of the CollaSet, with its PersistentVolumeClaims. Another Pod is created in its place.",
);
/// The labels of a Pod never matched.
pub const POD_NOT_SELECTED: EventReason = EventReason::warning(
    "PodNotSelected",
    SET,
    "spec.selector does not match a Pod, and has not since the Pod was observed first, for example because a webhook changes the labels of Pods. The Pod is kept. Fix its labels or the webhook, or delete the Pod.",
);
/// Pods of an instance end at once.
pub const PODS_END_AT_ONCE: EventReason = EventReason::warning(
    "PodsEndAtOnce",
    SET,
    "The Pods of an instance end within seconds of their creation, for example because nodes reject them. The next one is created with growing delay, of at most five minutes. See the status of the Pods.",
);
/// The new default of `replicas` is not followed.
pub const ZERO_REPLICAS_KEPT: EventReason = EventReason::warning(
    "ZeroReplicasKept",
    SET,
    "spec.replicas was not set, which meant 0 in earlier releases, and now defaults to 1. The CollaSet has no Pod, as before, until its spec changes. Set spec.replicas to the number that you want; 1 takes effect after another number.",
);
/// PVCs are deleted.
pub const CLAIM_DELETED: EventReason = EventReason::normal(
    "ClaimDeleted",
    SET,
    "The PersistentVolumeClaims that the message names are deleted: their instances were scaled in, or the CollaSet is deleted, and persistentVolumeClaimRetentionPolicy is Delete for that.",
);
/// PVCs have no owner any more.
pub const CLAIM_RELEASED: EventReason = EventReason::normal(
    "ClaimReleased",
    SET,
    "The PersistentVolumeClaims that the message names are kept, but do not belong to the CollaSet any more. Delete them if their data is not needed.",
);
/// PVCs request more storage.
pub const CLAIM_GROWING: EventReason = EventReason::normal(
    "ClaimGrowing",
    SET,
    "The PersistentVolumeClaims that the message names request as much storage as their claim template.",
);
/// The API server rejects a larger request.
pub const CLAIM_GROWTH_REJECTED: EventReason = EventReason::warning(
    "ClaimGrowthRejected",
    SET,
    "The API server rejects a larger request of a PersistentVolumeClaim, for example because its StorageClass does not allow expansion. Pods are not affected. Lower the request of the claim template, or allow expansion. Retried with backoff.",
);
/// A Pod of the CollaSet has lost its control label.
pub const POD_NOT_CONTROLLED: EventReason = EventReason::warning(
    "PodNotControlled",
    SET,
    "A Pod of the CollaSet has no label kusionstack.io/control=true, so its traffic is not protected and no operation on it starts. Set the label, or delete the Pod.",
);
/// The ResourceContext has no room for more instances.
pub const RESOURCE_CONTEXT_FULL: EventReason = EventReason::warning(
    "ResourceContextFull",
    SET,
    "The ResourceContext has no room for more instances, so no more Pods are created. Reduce replicas, or do not share the ResourceContext.",
);
/// A revision that Pods are updated to does not exist.
pub const TARGET_REVISION_NOT_FOUND: EventReason = EventReason::warning(
    "TargetRevisionNotFound",
    SET,
    "Pods are not updated, because a ControllerRevision that they would be built from does not exist, or its PodDecoration cannot be decoded. Fix the PodDecoration, or change its template.",
);
/// The revision of a decoration does not exist yet.
pub const DECORATION_NOT_RECORDED: EventReason = EventReason::normal(
    "DecorationNotRecorded",
    SET,
    "Pods are not created, because the ControllerRevision of a PodDecoration that selects them does not exist yet. See the events of the PodDecoration.",
);
/// The decoration cannot be decoded.
pub const POD_DECORATION_INVALID: EventReason = EventReason::warning(
    "PodDecorationInvalid",
    DECORATION,
    "The PodDecoration cannot be decoded and is not reconciled; Pods keep what they have of it. Fix the field that the message names.",
);
/// The decoration does not fit Pods.
pub const DECORATION_DOES_NOT_FIT: EventReason = EventReason::warning(
    "DecorationConflict",
    DECORATION,
    "The PodDecoration cannot be added to the Pods of a CollaSet, which keep what they have of it. Fix what the message names.",
);
/// Writing the decoration or its revisions fails.
pub const DECORATION_UPDATE_FAILED: EventReason = EventReason::warning(
    "DecorationUpdateFailed",
    DECORATION,
    "The PodDecoration or a ControllerRevision of it could not be written. Retried with backoff.",
);
/// Creating Pods or PVCs fails.
pub const SCALE_OUT_FAILED: EventReason = EventReason::warning(
    "ScaleOutFailed",
    SET,
    "Pods or PersistentVolumeClaims could not be created. Retried with backoff; the message holds the API server's reason, such as an exceeded quota.",
);
/// Deleting Pods or PVCs fails.
pub const SCALE_IN_FAILED: EventReason = EventReason::warning(
    "ScaleInFailed",
    SET,
    "Pods or PersistentVolumeClaims could not be deleted. Retried with backoff.",
);
/// Patching objects fails.
pub const UPDATE_FAILED: EventReason = EventReason::warning(
    "UpdateFailed",
    SET,
    "Objects could not be patched. Retried with backoff.",
);
/// The API server rejects a resize.
pub const RESIZE_REJECTED: EventReason = EventReason::warning(
    "ResizeRejected",
    SET,
    "The API server rejects the resources of a Pod. Retried with backoff, or the Pod is recreated if resize.onInfeasible is Recreate.",
);
/// The node lacks free resources.
pub const RESIZE_DEFERRED: EventReason = EventReason::warning(
    "ResizeDeferred",
    SET,
    "The node lacks free resources for a resize; the kubelet retries. Free resources, or set resize.onDeferred to Recreate.",
);
/// The node can never provide the resources.
pub const RESIZE_INFEASIBLE: EventReason = EventReason::warning(
    "ResizeInfeasible",
    SET,
    "The node can never provide the resources. Request less, or set resize.onInfeasible to Recreate.",
);
/// The kubelet fails to apply the resources.
pub const RESIZE_FAILING: EventReason = EventReason::warning(
    "ResizeFailing",
    SET,
    "The kubelet fails to apply the resources and retries. See the message.",
);

/// All event reasons.
pub const EVENTS: [&EventReason; 37] = [
    &SCALING_OUT,
    &SCALING_IN,
    &UPDATING,
    &ROLLOUT_COMPLETED,
    &ROLLOUT_STOPPED,
    &ROLLOUT_PAUSED,
    &COLLA_SET_INVALID,
    &REVISION_NOT_FOUND,
    &TEMPLATE_REJECTED,
    &IN_PLACE_UPDATE_NOT_POSSIBLE,
    &CONFLICTING_MEMBERSHIP,
    &EXCLUDE_NOT_POSSIBLE,
    &POD_TO_INCLUDE_NOT_MATCHING,
    &INCLUDE_NOT_ALLOWED,
    &CLAIM_INSTANCE_UNKNOWN,
    &POD_RELEASED,
    &POD_NOT_SELECTED,
    &PODS_END_AT_ONCE,
    &ZERO_REPLICAS_KEPT,
    &CLAIM_DELETED,
    &CLAIM_RELEASED,
    &CLAIM_GROWING,
    &CLAIM_GROWTH_REJECTED,
    &POD_NOT_CONTROLLED,
    &RESOURCE_CONTEXT_FULL,
    &TARGET_REVISION_NOT_FOUND,
    &DECORATION_NOT_RECORDED,
    &POD_DECORATION_INVALID,
    &DECORATION_DOES_NOT_FIT,
    &DECORATION_UPDATE_FAILED,
    &SCALE_OUT_FAILED,
    &SCALE_IN_FAILED,
    &UPDATE_FAILED,
    &RESIZE_REJECTED,
    &RESIZE_DEFERRED,
    &RESIZE_INFEASIBLE,
    &RESIZE_FAILING,
];

const AS_EVENT: &str = "The reason is that of the event which reports what failed.";

/// Scaling works.
pub const SCALED: ConditionReason =
    reason("Scale", True, "Scaled", "Nothing blocks scaling and membership changes.");
/// Scaling is blocked; the name is replaced by the event's.
pub const SCALE_BLOCKED: ConditionReason = reason("Scale", False, "(event reason)", AS_EVENT);
/// Updating works.
pub const UPDATED: ConditionReason = reason("Update", True, "Updated", "Nothing blocks updates.");
/// The spec names a revision other than the template's.
pub const REVISION_PINNED: ConditionReason = reason(
    "Update",
    True,
    "RevisionPinned",
    "spec.updateStrategy.revision names another revision than the template's, which is not followed.",
);
/// Updating is blocked; the name is replaced by the event's.
pub const UPDATE_BLOCKED: ConditionReason = reason("Update", False, "(event reason)", AS_EVENT);
/// Enough Pods are available.
pub const MINIMUM_REPLICAS_AVAILABLE: ConditionReason = reason(
    "Available",
    True,
    "MinimumReplicasAvailable",
    "At least spec.replicas less the maxUnavailable of updates are available, as for a Deployment.",
);
/// Too few Pods are available.
pub const MINIMUM_REPLICAS_UNAVAILABLE: ConditionReason = reason(
    "Available",
    False,
    "MinimumReplicasUnavailable",
    "Fewer than spec.replicas less the maxUnavailable of updates are available; status.waiting lists what Pods wait for.",
);
/// The CollaSet is being deleted.
pub const DELETING: ConditionReason =
    reason("Progressing", True, "Deleting", "The CollaSet is being deleted with its Pods.");
/// The rollout is complete.
pub const ROLLOUT_COMPLETE: ConditionReason = reason(
    "Progressing",
    False,
    "RolloutComplete",
    "All Pods are available at their target revision, and no operation is under way.",
);
/// The rollout is paused.
pub const PAUSED: ConditionReason =
    reason("Progressing", False, "Paused", "spec.paused is true. Set it to false to continue.");
/// No progress within the deadline.
pub const PROGRESS_DEADLINE_EXCEEDED: ConditionReason = reason(
    "Progressing",
    False,
    "ProgressDeadlineExceeded",
    "No progress within spec.progressDeadlineSeconds; status.waiting lists what Pods wait for.",
);
/// The failure policy has stopped the rollout.
pub const ROLLOUT_HALTED: ConditionReason = reason(
    "Progressing",
    False,
    "RolloutHalted",
    "Too many Pods of the updated revision have failed, so no further Pod is updated. Change the template, or resume by annotation.",
);
/// The failure policy rolls back.
pub const ROLLING_BACK: ConditionReason = reason(
    "Progressing",
    False,
    "RollingBack",
    "Too many Pods of the updated revision have failed, so Pods return to the current revision.",
);
/// The failure policy has rolled back.
pub const ROLLED_BACK: ConditionReason = reason(
    "Progressing",
    False,
    "RolledBack",
    "Too many Pods of the updated revision have failed, and all Pods have returned to the current revision. Change the template, or resume by annotation.",
);
/// The rollout pauses after a step.
pub const STEP_PAUSED: ConditionReason = reason(
    "Progressing",
    False,
    "StepPaused",
    "A step of the rollout is complete, and the rollout pauses. It continues after the time in status.rolloutStep, or when the step is approved by annotation.",
);
/// The number of Pods changes.
pub const SCALING: ConditionReason =
    reason("Progressing", True, "Scaling", "The number of Pods differs from spec.replicas.");
/// Pods are updated.
pub const UPDATE_IN_PROGRESS: ConditionReason =
    reason("Progressing", True, "Updating", "Pods are not at their target revision yet.");
/// Pods are not available yet.
pub const WAITING_FOR_PODS: ConditionReason = reason(
    "Progressing",
    True,
    "WaitingForPods",
    "Number and revisions are as desired; Pods are not available yet or still in an operation.",
);
/// Something failed; the name is replaced by the event's.
pub const DEGRADED: ConditionReason = reason("Degraded", True, "(event reason)", AS_EVENT);
/// Pods do not start.
pub const PODS_NOT_STARTING: ConditionReason = reason(
    "Degraded",
    True,
    "PodsNotStarting",
    "Pods have not started for 30 seconds, for example because their image cannot be pulled or they cannot be scheduled. The message names one; status.waiting lists all.",
);
/// Nothing failed.
pub const AS_EXPECTED: ConditionReason =
    reason("Degraded", False, "AsExpected", "No change was rejected and nothing is blocked.");
/// The spec pauses the CollaSet.
pub const SPEC_PAUSED: ConditionReason =
    reason("Paused", True, "SpecPaused", "spec.paused is true; no updates are started.");
/// Pods are deleted before the CollaSet.
pub const RECLAIMING: ConditionReason = reason(
    "Terminating",
    False,
    "ReclaimingTargetsDeletion",
    "The CollaSet is being deleted and waits for the deletion of its Pods.",
);

/// The decoration is being deleted.
pub const DECORATION_DELETING: ConditionReason = reason(
    "Progressing",
    True,
    "Deleting",
    "The PodDecoration is being deleted and waits until no Pod has it.",
);
/// Pods of the decoration are updated.
pub const DECORATION_UPDATING: ConditionReason =
    reason("Progressing", True, "Updating", "Pods are not at their target revision yet.");
/// All Pods of the decoration are at their targets.
pub const DECORATION_COMPLETE: ConditionReason = reason(
    "Progressing",
    False,
    "RolloutComplete",
    "All Pods in the scope of the update have the updated revision.",
);
/// The decoration does not fit Pods.
pub const DECORATION_CONFLICT: ConditionReason = reason(
    "Degraded",
    True,
    "DecorationConflict",
    "The PodDecoration cannot be added to the Pods of a CollaSet; see its message.",
);
/// The selector of the decoration is invalid.
pub const DECORATION_SELECTOR_INVALID: ConditionReason =
    reason("Degraded", True, "SelectorInvalid", "spec.selector is invalid, so no Pod is selected.");
/// Nothing is wrong with the decoration.
pub const DECORATION_AS_EXPECTED: ConditionReason =
    reason("Degraded", False, "AsExpected", "The PodDecoration fits all Pods that it selects.");

/// All condition reasons.
pub const CONDITIONS: [&ConditionReason; 32] = [
    &READY,
    &NOT_READY,
    &STALLED,
    &SCALED,
    &SCALE_BLOCKED,
    &UPDATED,
    &REVISION_PINNED,
    &UPDATE_BLOCKED,
    &MINIMUM_REPLICAS_AVAILABLE,
    &MINIMUM_REPLICAS_UNAVAILABLE,
    &DELETING,
    &ROLLOUT_COMPLETE,
    &PAUSED,
    &PROGRESS_DEADLINE_EXCEEDED,
    &STEP_PAUSED,
    &ROLLOUT_HALTED,
    &ROLLING_BACK,
    &ROLLED_BACK,
    &SCALING,
    &UPDATE_IN_PROGRESS,
    &WAITING_FOR_PODS,
    &DEGRADED,
    &AS_EXPECTED,
    &PODS_NOT_STARTING,
    &SPEC_PAUSED,
    &RECLAIMING,
    &DECORATION_DELETING,
    &DECORATION_UPDATING,
    &DECORATION_COMPLETE,
    &DECORATION_CONFLICT,
    &DECORATION_SELECTOR_INVALID,
    &DECORATION_AS_EXPECTED,
];
