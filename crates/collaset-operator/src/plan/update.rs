//! Selects the next Pods to update and the method for each.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    collaset::{PodUpgradePolicy, ResizePolicy},
    lifecycle::{self, LabelKind},
    well_known,
};
use serde::{Deserialize, Serialize};

use super::{
    Action, Blocker, Planner, allowed_since,
    ids::Contexts,
    is_during,
    replace::{self, Pairs},
    resources::{self, Resources},
    target::{Targets, priority},
    template::{UpdateMethod, method},
};
use crate::view::{Container, PodView, Resize};

/// Annotation `collaset.kusionstack.io/last-pod-status`: container state before an in-place update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastPodStatus {
    /// State by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_states: BTreeMap<String, LastContainerState>,
    /// Resources set by the update, by container name; unknown to Kuperator.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resized: BTreeMap<String, Resources>,
}

/// State of a container before an in-place update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastContainerState {
    /// Image set by the update.
    #[serde(rename = "latestImage", skip_serializing_if = "String::is_empty")]
    pub latest_image: String,
    /// Reported `imageID` before the update; empty if the image does not change.
    #[serde(rename = "lastImageID", skip_serializing_if = "String::is_empty")]
    pub last_image_id: String,
    /// Image that `last_image_id` belongs to; unknown to Kuperator.
    #[serde(rename = "lastImage", skip_serializing_if = "String::is_empty")]
    pub last_image: String,
    /// Reported `containerID` before the update; empty if the image does not change; unknown to
    /// Kuperator.
    #[serde(rename = "lastContainerID", skip_serializing_if = "String::is_empty")]
    pub last_container_id: String,
}

/// Returns whether the CollaSet's operation on the Pod is being cancelled.
pub(super) fn is_cancelled(pod: &PodView) -> bool {
    pod.labels.contains_key(&LabelKind::UndoOperationType.key(lifecycle::COLLASET))
}

/// Plans the next update steps of Pods that are not at their target revision.
pub(super) fn plan(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    targets: &Targets,
) {
    if !planner.revisions.is_recorded() {
        return;
    }
    let observed = planner.observed;
    let methods = methods(planner, targets);
    let by_replacement =
        observed.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
    let skip = |pod: &&PodView| {
        pod.deleting
            || pairs.is_surge(pod)
            || is_cancelled(pod)
            || is_during(pod, lifecycle::SCALE_IN)
    };
    // Usually most Pods are at their target and need no sorting.
    let needs_action = |pod: &&PodView| {
        targets.of(pod).is_some()
            || is_during(pod, lifecycle::UPDATE)
            || pod.labels.contains_key(well_known::REPLACED_BY_REPLACE_UPDATE)
    };
    let mut pods: Vec<&PodView> =
        observed.active().filter(|pod| needs_action(pod) && !skip(pod)).collect();
    pods.sort_by_cached_key(|pod| priority(Some(pod)));
    for pod in pods {
        let target = targets.of(pod);
        planner.plan.outdated += usize::from(target.is_some());
        if planner.planned_pods.contains(&pod.name) {
            continue;
        }
        if pod.labels.contains_key(well_known::REPLACED_BY_REPLACE_UPDATE) && target.is_none() {
            cancel_replace(planner, pod);
        } else if is_during(pod, lifecycle::UPDATE) {
            continue_update(planner, pod, &methods, (target, pairs.new_of(pod).is_some()));
        } else if let (Some(target), false) = (target, observed.spec.paused) {
            if by_replacement {
                replace(planner, contexts, pairs, (pod, target));
            } else {
                begin(planner, pod, &methods, target);
            }
        }
    }
}

/// Requests the replacement of a Pod by one at its target; a replacement under way is retargeted.
fn replace(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    (pod, target): (&PodView, &str),
) {
    let requested = pod.labels.contains_key(well_known::TO_REPLACE);
    let update = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
    if requested && update.is_some_and(|update| update == target) {
        return;
    }
    if requested || pairs.new_of(pod).is_some() {
        planner.plan_action(pod, Action::ReplaceUpdate(pod.name.clone(), target.to_owned()));
    } else {
        replace::begin(planner, contexts, pod, Some(target));
    }
}

/// Cancels the replacement of a Pod, unless its deletion is requested.
fn cancel_replace(planner: &mut Planner<'_>, pod: &PodView) {
    if !pod.labels.contains_key(well_known::TO_DELETE) {
        planner.plan_action(pod, Action::CancelReplace(pod.name.clone()));
    }
}

/// Update method by Pod revision and target, computed once per pair.
type UpdateMethods = BTreeMap<(String, String), UpdateMethod>;

fn methods(planner: &Planner<'_>, targets: &Targets) -> UpdateMethods {
    let revisions = &planner.revisions;
    let pairs: BTreeSet<(&str, &str)> = planner
        .observed
        .pods
        .iter()
        .filter_map(|pod| Some((pod.revision(), targets.of(pod)?)))
        .collect();
    let methods = pairs.into_iter().filter_map(|(from, to)| {
        let method = if revisions.claims(from) == revisions.claims(to) {
            method(
                &revisions.template(from)?,
                &revisions.template(to)?,
                planner.observed.can_resize,
            )
        } else {
            // Volumes of an existing Pod are immutable.
            UpdateMethod::Recreate
        };
        Some(((from.to_owned(), to.to_owned()), method))
    });
    methods.collect()
}

fn begin(planner: &mut Planner<'_>, pod: &PodView, methods: &UpdateMethods, target: &str) {
    let name = pod.name.clone();
    match chosen_method(planner, pod, methods, target) {
        Ok(UpdateMethod::Metadata) => {
            planner.plan_action(pod, Action::Apply(name, target.to_owned(), false));
        }
        Ok(method) => {
            let may_begin =
                method != UpdateMethod::Recreate || is_revision_accepted(planner, target);
            if may_begin && planner.capacity_left() > 0 && planner.try_interrupt(pod) {
                let deletes = method == UpdateMethod::Recreate;
                planner.plan_action(pod, Action::Begin(name, lifecycle::UPDATE, deletes));
            }
        }
        Err(blocker) => planner.block(blocker),
    }
}

/// Plans the next step of an update operation.
fn continue_update(
    planner: &mut Planner<'_>,
    pod: &PodView,
    methods: &UpdateMethods,
    (target, has_new): (Option<&str>, bool),
) {
    let name = pod.name.clone();
    let Some(since) = allowed_since(pod, lifecycle::UPDATE) else {
        if target.is_none() {
            planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
        }
        return;
    };
    let Some(target) = target else {
        finish_update(planner, pod);
        return;
    };
    // Without a new Pod, for example because of maxSurge, it is updated like any other.
    if has_new && pod.labels.contains_key(well_known::TO_REPLACE) {
        // It is deleted once its replacement is available, so that must be at the new revision.
        let update = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
        if update.is_none_or(|update| update != target) {
            planner.plan_action(pod, Action::ReplaceUpdate(name, target.to_owned()));
        }
    } else if let Some(wait) = planner
        .remaining_delay(since, planner.observed.spec.update_strategy.operation_delay_seconds)
    {
        planner.requeue_after(wait);
    } else {
        match chosen_method(planner, pod, methods, target) {
            Ok(UpdateMethod::Recreate) if is_revision_accepted(planner, target) => {
                planner.plan_action(pod, Action::Delete(name, lifecycle::UPDATE));
            }
            Ok(UpdateMethod::Recreate) => {
                if matches!(planner.observed.dry_runs.get(target), Some(Err(_))) {
                    planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
                }
            }
            // Before a container ran, its old state could not be distinguished from the new one.
            Ok(UpdateMethod::InPlace) if is_starting(pod) => {}
            Ok(UpdateMethod::Metadata | UpdateMethod::InPlace) => {
                planner.plan_action(pod, Action::Apply(name, target.to_owned(), true));
            }
            Err(blocker) => {
                planner.block(blocker);
                planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
            }
        }
    }
}

/// Returns whether the API server accepts Pods of the target revision, checked before a Pod is
/// deleted for it. Plans a dry run if that is unknown or was denied.
fn is_revision_accepted(planner: &mut Planner<'_>, target: &str) -> bool {
    let result = planner.observed.dry_runs.get(target);
    if result == Some(&Ok(())) {
        return true;
    }
    if let Some(Err(message)) = result {
        let message = message.clone();
        planner.block(Blocker { scaling: false, reason: "TemplateRejected", message });
    }
    let is_planned = |action: &Action| matches!(action, Action::DryRunPod(_, to) if to == target);
    // Always the same instance, so that the applier recognizes a write that was rejected before.
    let id = planner.observed.active().filter_map(PodView::id).min();
    if let (Some(id), false) = (id, planner.plan.actions.iter().any(is_planned)) {
        planner.plan.actions.push(Action::DryRunPod(id, target.to_owned()));
    }
    false
}

/// Finishes the operation on a Pod at its target as soon as its containers run with the new images
/// and resources.
fn finish_update(planner: &mut Planner<'_>, pod: &PodView) {
    let strategy = planner.observed.spec.update_strategy.resize.clone().unwrap_or_default();
    let last = last_pod_status(pod);
    let missing = resources::missing(pod, &last.resized);
    let name = pod.name.clone();
    if last == LastPodStatus::default() && pod.revision() != planner.revisions.updated {
        // The Pod left the scope before it was changed, so the operation is cancelled.
        planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
    } else if !missing.is_empty() {
        let rejected = planner.observed.rejected_resizes.contains_key(&pod.uid);
        if rejected && strategy.on_infeasible == ResizePolicy::Recreate {
            planner.plan_action(pod, Action::Delete(name, lifecycle::UPDATE));
        } else {
            planner.plan_action(pod, Action::Resize(name, missing));
        }
    } else if is_finished(pod, &last) {
        planner.plan_action(pod, Action::Finish(name));
    } else if let Some((reason, message)) = resize_blocker(pod, &last) {
        let policy = match pod.resize {
            Some(Resize::Infeasible(_)) => strategy.on_infeasible,
            _ => strategy.on_deferred,
        };
        match policy {
            ResizePolicy::Recreate => {
                planner.plan_action(pod, Action::Delete(name, lifecycle::UPDATE))
            }
            ResizePolicy::Wait => planner.block(Blocker { scaling: false, reason, message }),
        }
    }
}

/// Returns reason and kubelet message of a resize that is stuck; `None` if the update resizes
/// nothing or the resize progresses. The affected Pods are listed in `status.waiting`.
fn resize_blocker(pod: &PodView, last: &LastPodStatus) -> Option<(&'static str, String)> {
    if last.resized.is_empty() {
        return None;
    }
    match pod.resize.as_ref()? {
        Resize::Deferred(message) => Some(("ResizeDeferred", message.clone())),
        Resize::Infeasible(message) => Some(("ResizeInfeasible", message.clone())),
        Resize::Failing(message) => Some(("ResizeFailing", message.clone())),
        Resize::InProgress => None,
    }
}

/// Returns the update method under the CollaSet's policy.
///
/// # Errors
///
/// A [`Blocker`] if the policy is `InPlaceOnly` and the Pod would have to be recreated.
fn chosen_method(
    planner: &Planner<'_>,
    pod: &PodView,
    methods: &UpdateMethods,
    target: &str,
) -> Result<UpdateMethod, Blocker> {
    let pair = (pod.revision().to_owned(), target.to_owned());
    let method = methods.get(&pair).copied().unwrap_or(UpdateMethod::Recreate);
    match planner.observed.spec.update_strategy.pod_upgrade_policy {
        PodUpgradePolicy::Recreate => Ok(UpdateMethod::Recreate),
        PodUpgradePolicy::InPlaceOnly if method == UpdateMethod::Recreate => Err(Blocker {
            scaling: false,
            reason: "InPlaceUpdateNotPossible",
            message: "spec.updateStrategy.podUpgradePolicy is InPlaceOnly, but the template \
                      changes more than images, metadata and resources that can be resized in place"
                .to_owned(),
        }),
        // Under Replace, this handles only Pods whose update began under another policy.
        PodUpgradePolicy::InPlaceIfPossible
        | PodUpgradePolicy::InPlaceOnly
        | PodUpgradePolicy::Replace => Ok(method),
    }
}

/// Returns whether the Pod is scheduled and some containers have not run yet.
fn is_starting(pod: &PodView) -> bool {
    pod.scheduled && pod.not_running_reason.is_none() && pod.image_ids.len() < pod.containers.len()
}

/// Returns whether every container runs with the image and resources set by the update.
fn is_finished(pod: &PodView, last: &LastPodStatus) -> bool {
    if pod.image_ids.len() < pod.containers.len() {
        return false;
    }
    if !last.resized.is_empty() && !has_resources(pod) {
        return false;
    }
    pod.containers.iter().all(|container| {
        let state = last.container_states.get(&container.name);
        state.is_none_or(|state| {
            state.latest_image != container.image || has_rerun(pod, container, state)
        })
    })
}

/// Returns whether the kubelet has applied the resources in the Pod's spec.
///
/// Reported resources may permanently differ from the requested ones, because kernels round. So an
/// observed generation that is up to date without a pending resize is sufficient; the reported
/// resources are compared only if the kubelet reports no observed generation.
fn has_resources(pod: &PodView) -> bool {
    let is_applied = |c: &Container| {
        pod.actual_resources
            .get(&c.name)
            .is_some_and(|actual| actual.requests == c.resources.requests)
    };
    pod.resize.is_none()
        && match pod.observed_generation {
            Some(observed) => observed >= pod.generation,
            None => pod.containers.iter().all(is_applied),
        }
}

/// Returns whether the update under way has changed the Pod's containers.
pub(super) fn is_changed(pod: &PodView) -> bool {
    last_pod_status(pod) != LastPodStatus::default()
}

/// Returns the status recorded before the update under way; empty if missing or invalid.
fn last_pod_status(pod: &PodView) -> LastPodStatus {
    let annotation = pod.annotations.as_ref().and_then(|a| a.get(well_known::LAST_POD_STATUS));
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns whether a container was restarted since its state was recorded, or needs no restart.
fn has_rerun(pod: &PodView, container: &Container, last: &LastContainerState) -> bool {
    let changed = |ids: &BTreeMap<String, String>, last_id: &str| {
        !last_id.is_empty() && ids.get(&container.name).is_some_and(|id| id != last_id)
    };
    // Two tags may refer to one image; then only the container ID changes.
    last.last_image_id.is_empty()
        || changed(&pod.image_ids, &last.last_image_id)
        || changed(&pod.container_ids, &last.last_container_id)
}

/// Returns the status to record before an in-place update of these images and resources, by
/// container name.
#[must_use]
pub fn last_status(
    pod: &PodView,
    images: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, Resources>,
) -> LastPodStatus {
    let recorded = last_pod_status(pod);
    let states = pod.containers.iter().filter_map(|container| {
        let image = images.get(&container.name)?;
        // A kubelet that has not processed the last change still runs the previous image, and does
        // not restart the container if the image is changed back to it.
        let known = recorded.container_states.get(&container.name);
        let unapplied = known.filter(|state| {
            !state.last_image.is_empty()
                && state.latest_image == container.image
                && !has_rerun(pod, container, state)
        });
        let running_image = unapplied.map_or(&container.image, |state| &state.last_image);
        let changes = image != running_image;
        // Without the container ID before the last change, it is unknown whether that container
        // still runs, so waiting for a restart might never end.
        let is_unknown = known.is_some_and(|state| {
            !state.last_image.is_empty() && state.last_container_id.is_empty()
        });
        let last = |ids: &BTreeMap<String, String>| {
            let last = ids.get(&container.name).filter(|_| changes && !is_unknown);
            last.cloned().unwrap_or_default()
        };
        let state = LastContainerState {
            latest_image: image.clone(),
            last_image: if changes { running_image.clone() } else { String::new() },
            last_image_id: last(&pod.image_ids),
            last_container_id: last(&pod.container_ids),
        };
        Some((container.name.clone(), state))
    });
    let mut resized = recorded.resized.clone();
    for (container, amounts) in wanted {
        resized.entry(container.clone()).or_default().set(amounts);
    }
    LastPodStatus { container_states: states.collect(), resized }
}
