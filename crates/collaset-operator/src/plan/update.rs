//! Which Pods next, and by which way.

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

/// Annotation `collaset.kusionstack.io/last-pod-status`: what ran before an update in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastPodStatus {
    /// By container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_states: BTreeMap<String, LastContainerState>,
    /// What containers are given by the update, by name; the peer does not know it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resized: BTreeMap<String, Resources>,
}

/// What a container ran before an update in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastContainerState {
    /// The image it is to run.
    #[serde(rename = "latestImage", skip_serializing_if = "String::is_empty")]
    pub latest_image: String,
    /// What it really ran, if that is to change.
    #[serde(rename = "lastImageID", skip_serializing_if = "String::is_empty")]
    pub last_image_id: String,
    /// The image whose run that is; the peer does not know it.
    #[serde(rename = "lastImage", skip_serializing_if = "String::is_empty")]
    pub last_image: String,
    /// Its run, if that is to change; the peer does not know it.
    #[serde(rename = "lastContainerID", skip_serializing_if = "String::is_empty")]
    pub last_container_id: String,
}

/// Whether the set's operation on the Pod is being cancelled.
pub(super) fn is_cancelled(pod: &PodView) -> bool {
    pod.labels.contains_key(&LabelKind::UndoOperationType.key(lifecycle::COLLASET))
}

/// Brings Pods closer to the revisions that they are to be of.
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
    let replaces = observed.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
    let skip = |pod: &&PodView| {
        pod.deleting
            || pairs.is_surge(pod)
            || is_cancelled(pod)
            || is_during(pod, lifecycle::SCALE_IN)
    };
    // Most Pods, most of the time, are what they are to be, and need no place in any order.
    let is_concerned = |pod: &&PodView| {
        targets.of(pod).is_some()
            || is_during(pod, lifecycle::UPDATE)
            || pod.labels.contains_key(well_known::REPLACED_BY_REPLACE_UPDATE)
    };
    let mut pods: Vec<&PodView> =
        observed.active().filter(|pod| is_concerned(pod) && !skip(pod)).collect();
    pods.sort_by_cached_key(|pod| priority(Some(pod)));
    for pod in pods {
        let target = targets.of(pod);
        planner.plan.outdated += usize::from(target.is_some());
        if planner.planned_pods.contains(&pod.name) {
            continue;
        }
        if pod.labels.contains_key(well_known::REPLACED_BY_REPLACE_UPDATE) && target.is_none() {
            keep(planner, pod);
        } else if is_during(pod, lifecycle::UPDATE) {
            continue_update(planner, pod, &methods, (target, pairs.new_of(pod).is_some()));
        } else if let (Some(target), false) = (target, observed.spec.paused) {
            if replaces {
                replace(planner, contexts, pairs, (pod, target));
            } else {
                begin(planner, pod, &methods, target);
            }
        }
    }
}

/// Has a Pod replaced by one of its target; one that is being replaced already, by that.
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

/// Has a Pod replaced no longer, unless it is on its way out.
fn keep(planner: &mut Planner<'_>, pod: &PodView) {
    if !pod.labels.contains_key(well_known::TO_DELETE) {
        planner.plan_action(pod, Action::CancelReplace(pod.name.clone()));
    }
}

/// The way from the revision that a Pod is of to its target, worked out once for all Pods of both.
type UpdateMethods = BTreeMap<(String, String), UpdateMethod>;

fn methods(planner: &Planner<'_>, targets: &Targets) -> UpdateMethods {
    let revisions = &planner.revisions;
    let pairs: BTreeSet<(&str, &str)> = planner
        .observed
        .pods
        .iter()
        .filter_map(|pod| Some((pod.revision(), targets.of(pod)?)))
        .collect();
    let known = pairs.into_iter().filter_map(|(from, to)| {
        let method = if revisions.claims(from) == revisions.claims(to) {
            method(
                &revisions.template(from)?,
                &revisions.template(to)?,
                planner.observed.can_resize,
            )
        } else {
            // A volume cannot be exchanged under a Pod.
            UpdateMethod::Recreate
        };
        Some(((from.to_owned(), to.to_owned()), method))
    });
    known.collect()
}

fn begin(planner: &mut Planner<'_>, pod: &PodView, methods: &UpdateMethods, target: &str) {
    let name = pod.name.clone();
    match chosen_method(planner, pod, methods, target) {
        Ok(UpdateMethod::Metadata) => {
            planner.plan_action(pod, Action::Apply(name, target.to_owned(), false));
        }
        Ok(method) => {
            let accepted = method != UpdateMethod::Recreate || is_accepted(planner, target);
            if accepted && planner.capacity_left() > 0 && planner.may_interrupt(pod) {
                let deletes = method == UpdateMethod::Recreate;
                planner.plan_action(pod, Action::Begin(name, lifecycle::UPDATE, deletes));
            }
        }
        Err(blocker) => planner.block(blocker),
    }
}

/// The next move of an update under way.
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
        finish_updates(planner, pod);
        return;
    };
    // Without a new Pod, as where no more may be made, it is updated like any other.
    if has_new && pod.labels.contains_key(well_known::TO_REPLACE) {
        // It goes once its replacement serves, which therefore has to be of the new revision.
        let update = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
        if update.is_none_or(|update| update != target) {
            planner.plan_action(pod, Action::ReplaceUpdate(name, target.to_owned()));
        }
    } else if let Some(wait) =
        planner.delayed(since, planner.observed.spec.update_strategy.operation_delay_seconds)
    {
        planner.requeue_after(wait);
    } else {
        match chosen_method(planner, pod, methods, target) {
            Ok(UpdateMethod::Recreate) if is_accepted(planner, target) => {
                planner.plan_action(pod, Action::Delete(name, lifecycle::UPDATE));
            }
            Ok(UpdateMethod::Recreate) => {
                if matches!(planner.observed.dry_runs.get(target), Some(Err(_))) {
                    planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
                }
            }
            // What has not run yet could not be told from what runs next.
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

/// Whether the server makes Pods of the revision, which a Pod is about to be deleted for; it is asked
/// if nobody knows, and now and then if it said no.
fn is_accepted(planner: &mut Planner<'_>, target: &str) -> bool {
    let known = planner.observed.dry_runs.get(target);
    if known == Some(&Ok(())) {
        return true;
    }
    if let Some(Err(message)) = known {
        let message = message.clone();
        planner.block(Blocker { scaling: false, reason: "TemplateRejected", message });
    }
    let is_asked = |action: &Action| matches!(action, Action::DryRunPod(_, to) if to == target);
    // By the same Pod each time, so that a refusal is known again.
    let id = planner.observed.active().filter_map(PodView::id).min();
    if let (Some(id), false) = (id, planner.plan.actions.iter().any(is_asked)) {
        planner.plan.actions.push(Action::DryRunPod(id, target.to_owned()));
    }
    false
}

/// Ends the operation on a Pod that is of its target, as soon as it runs so.
fn finish_updates(planner: &mut Planner<'_>, pod: &PodView) {
    let strategy = planner.observed.spec.update_strategy.resize.clone().unwrap_or_default();
    let noted = noted(pod);
    let missing = resources::missing(pod, &noted.resized);
    let name = pod.name.clone();
    if noted == LastPodStatus::default() && pod.revision() != planner.revisions.updated {
        // A Pod that left the scope is not kept out of service for it.
        planner.plan_action(pod, Action::Undo(name, lifecycle::UPDATE));
    } else if !missing.is_empty() {
        let refused = planner.observed.rejected_resizes.contains_key(&pod.uid);
        if refused && strategy.on_infeasible == ResizePolicy::Recreate {
            planner.plan_action(pod, Action::Delete(name, lifecycle::UPDATE));
        } else {
            planner.plan_action(pod, Action::Resize(name, missing));
        }
    } else if is_finished(pod, &noted) {
        planner.plan_action(pod, Action::Finish(name));
    } else if let Some((reason, message)) = unfit(pod, &noted) {
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

/// What a node says that does not give a Pod the resources of its update; which Pods it is about is
/// told in `status.waiting`.
fn unfit(pod: &PodView, noted: &LastPodStatus) -> Option<(&'static str, String)> {
    if noted.resized.is_empty() {
        return None;
    }
    match pod.resize.as_ref()? {
        Resize::Deferred(said) => Some(("ResizeDeferred", said.clone())),
        Resize::Infeasible(said) => Some(("ResizeInfeasible", said.clone())),
        Resize::Failing(said) => Some(("ResizeFailing", said.clone())),
        Resize::InProgress => None,
    }
}

/// The way a Pod is updated under the set's policy.
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
            message: "spec.updateStrategy.podUpgradePolicy is InPlaceOnly, and the template changes more than images, metadata and resources that can be changed in place".to_owned(),
        }),
        // Under Replace, only a Pod whose update began under another policy comes here.
        PodUpgradePolicy::InPlaceIfPossible
        | PodUpgradePolicy::InPlaceOnly
        | PodUpgradePolicy::Replace => Ok(method),
    }
}

/// Whether a kubelet is about to run containers for the first time.
fn is_starting(pod: &PodView) -> bool {
    pod.scheduled && pod.not_running_reason.is_none() && pod.image_ids.len() < pod.containers.len()
}

/// Whether every container runs the image, and has the resources, that the update gave it.
fn is_finished(pod: &PodView, last: &LastPodStatus) -> bool {
    if pod.image_ids.len() < pod.containers.len() {
        return false;
    }
    if !last.resized.is_empty() && !has_resources(pod) {
        return false;
    }
    pod.containers.iter().all(|container| {
        let state = last.container_states.get(&container.name);
        state
            .is_none_or(|state| state.latest_image != container.image || ran(pod, container, state))
    })
}

/// Whether a Pod's node has given it what it should have.
///
/// What a node reports may differ for good from what was asked for, as kernels round; that it has
/// seen the spec and has nothing left to do about it is what counts, where nodes tell.
fn has_resources(pod: &PodView) -> bool {
    let is_given = |c: &Container| {
        pod.given.get(&c.name).is_some_and(|given| given.requests == c.resources.requests)
    };
    pod.resize.is_none()
        && match pod.observed_generation {
            Some(observed) => observed >= pod.generation,
            None => pod.containers.iter().all(is_given),
        }
}

/// Whether the update under way has changed what the Pod runs.
pub(super) fn is_changed(pod: &PodView) -> bool {
    noted(pod) != LastPodStatus::default()
}

/// What was noted before the update that is under way.
fn noted(pod: &PodView) -> LastPodStatus {
    let annotation = pod.annotations.as_ref().and_then(|a| a.get(well_known::LAST_POD_STATUS));
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Whether a container has run since its state was noted, if it was to.
fn ran(pod: &PodView, container: &Container, noted: &LastContainerState) -> bool {
    let changed = |now: &BTreeMap<String, String>, last: &str| {
        !last.is_empty() && now.get(&container.name).is_some_and(|id| id != last)
    };
    // Two tags may be of one image, which then only starts anew.
    noted.last_image_id.is_empty()
        || changed(&pod.image_ids, &noted.last_image_id)
        || changed(&pod.container_ids, &noted.last_container_id)
}

/// What to remember of a Pod before its images change: `{}` if none does.
#[must_use]
pub fn last_status(
    pod: &PodView,
    images: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, Resources>,
) -> LastPodStatus {
    let before = noted(pod);
    let states = pod.containers.iter().filter_map(|container| {
        let image = images.get(&container.name)?;
        // A kubelet that has not got to the last change still runs what was there before it, and
        // does nothing if that is wanted again.
        let known = before.container_states.get(&container.name);
        let idle = known.filter(|state| {
            !state.last_image.is_empty()
                && state.latest_image == container.image
                && !ran(pod, container, state)
        });
        let runs = idle.map_or(&container.image, |state| &state.last_image);
        let changes = image != runs;
        // What ran before the last change was not known, so neither is whether that still runs: to
        // wait for another run might be to wait for ever.
        let is_unknown = known.is_some_and(|state| {
            !state.last_image.is_empty() && state.last_container_id.is_empty()
        });
        let last = |ids: &BTreeMap<String, String>| {
            let last = ids.get(&container.name).filter(|_| changes && !is_unknown);
            last.cloned().unwrap_or_default()
        };
        let state = LastContainerState {
            latest_image: image.clone(),
            last_image: if changes { runs.clone() } else { String::new() },
            last_image_id: last(&pod.image_ids),
            last_container_id: last(&pod.container_ids),
        };
        Some((container.name.clone(), state))
    });
    let mut resized = before.resized.clone();
    for (container, amounts) in wanted {
        resized.entry(container.clone()).or_default().set(amounts);
    }
    LastPodStatus { container_states: states.collect(), resized }
}
