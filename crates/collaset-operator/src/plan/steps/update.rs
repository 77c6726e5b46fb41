//! Selects the next Pods to update and the method for each.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    collaset::{PodUpgradePolicy, ResizePolicy},
    lifecycle,
    template::PodTemplate,
    well_known,
};

use super::{dry_run, replace};
use crate::{
    decoration::inject::decorate,
    plan::{
        action::{ApplyMode, OperationEnd, PodChange},
        planner::{Blocker, Planner},
        state::{
            instance_ids::Instances,
            last_status::{LastPodStatus, is_finished, is_reported, last_pod_status, missing},
            pairs::Pairs,
            targets::{Targets, priority},
        },
    },
    reasons,
    template::compare::{UpdateMethod, method, restarted},
    view::{Container, DryRunResult, OwnOperation, PodSource, PodView, Resize},
};

/// Plans the next update steps of Pods that are not at their target revision.
pub(in crate::plan) fn plan(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
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
    // Usually most Pods are at their target and need no sorting.
    let mut pods: Vec<&PodView> = observed
        .active()
        .filter(|pod| needs_action(pod, targets) && !pairs.is_surge(pod) && may_be_updated(pod))
        .collect();
    pods.sort_by_cached_key(|pod| priority(Some(pod)));
    for pod in pods {
        let target = targets.of(pod);
        planner.plan.outdated += usize::from(target.is_some());
        let updated = &planner.revisions.updated;
        planner.plan.is_updating |=
            target.is_some_and(|to| to.revision == *updated && pod.revision != *updated);
        if planner.has_action(pod) {
            continue;
        }
        if pod.has_label(well_known::REPLACED_BY_REPLACE_UPDATE) && target.is_none() {
            cancel_replace(planner, pod);
        } else if pod.is_during(OwnOperation::Update) {
            continue_update(planner, pod, &methods, target, pairs);
        } else if let (Some(target), false) = (target, observed.spec.paused) {
            if planner.plan.failures.holds(&pod.revision, &target.revision) {
                continue;
            }
            if !methods.contains_key(&SourceStep { from: pod.source(), to: target.clone() }) {
                planner.block(target_not_found(target));
            } else if by_replacement {
                replace(planner, instances, pairs, targets, pod);
            } else {
                begin(planner, pod, &methods, target);
            }
        }
    }
}

fn needs_action(pod: &PodView, targets: &Targets) -> bool {
    targets.of(pod).is_some()
        || pod.is_during(OwnOperation::Update)
        || pod.has_label(well_known::REPLACED_BY_REPLACE_UPDATE)
}

fn may_be_updated(pod: &PodView) -> bool {
    !pod.deleting && !pod.is_cancelled() && !pod.is_during(OwnOperation::ScaleIn)
}

/// Requests the replacement of a Pod by one at its target; a replacement under way is retargeted.
fn replace(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    targets: &Targets,
    pod: &PodView,
) {
    let Some(target) = targets.of(pod).map(|target| &target.revision) else { return };
    let is_requested = pod.has_label(well_known::TO_REPLACE);
    let update = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
    if is_requested && update.is_some_and(|update| *update == **target) {
        return;
    }
    if is_requested || pairs.new_of(pod).is_some() {
        planner.change_pod(pod, PodChange::ReplaceUpdate { to: target.clone() });
    } else {
        replace::begin(planner, instances, targets, pod, Some(target));
    }
}

/// Cancels the replacement of a Pod, unless its deletion is requested.
fn cancel_replace(planner: &mut Planner<'_>, pod: &PodView) {
    if !pod.has_label(well_known::TO_DELETE) {
        planner.change_pod(pod, PodChange::CancelReplace);
    }
}

/// A change of revision or decorations, the key of [`UpdateMethods`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SourceStep {
    from: PodSource,
    to: PodSource,
}

/// How Pods follow a change of their source.
struct StepMethod {
    method: UpdateMethod,
    /// Containers that an update in place restarts although their images do not change.
    restarted: BTreeSet<String>,
}

impl From<UpdateMethod> for StepMethod {
    fn from(method: UpdateMethod) -> Self {
        Self { method, restarted: BTreeSet::new() }
    }
}

impl StepMethod {
    /// Returns the method for one Pod: it is recreated if a container cannot be restarted in place,
    /// because the kubelet reports no digest of its image.
    fn of(&self, pod: &PodView) -> UpdateMethod {
        if self.method == UpdateMethod::InPlace && !self.can_restart(pod) {
            return UpdateMethod::Recreate;
        }
        self.method
    }

    /// Returns whether the kubelet has not reported the present image of a container to restart:
    /// its other reference would name the image before.
    fn awaits_report(&self, pod: &PodView) -> bool {
        let last = last_pod_status(pod);
        !self.restarted(pod).all(|container| is_reported(pod, container, &last))
    }

    fn can_restart(&self, pod: &PodView) -> bool {
        self.restarted(pod).all(|container| pod.restart_image(container).is_some())
    }

    /// Containers of a Pod that the update restarts although their images do not change.
    fn restarted<'a>(&'a self, pod: &'a PodView) -> impl Iterator<Item = &'a Container> {
        pod.containers.iter().filter(|container| self.restarted.contains(&container.name))
    }
}

/// Update method by change, each computed once.
type UpdateMethods = BTreeMap<SourceStep, StepMethod>;

fn methods(planner: &Planner<'_>, targets: &Targets) -> UpdateMethods {
    let pods = planner.observed.all();
    let steps: BTreeSet<SourceStep> = pods
        .filter_map(|pod| Some(SourceStep { to: targets.of(pod)?.clone(), from: pod.source() }))
        .collect();
    let methods = steps.into_iter().filter_map(|step| {
        let method = method_of(planner, &step)?;
        Some((step, method))
    });
    methods.collect()
}

/// Returns the method of one change; `None` if a revision that it leads to does not exist.
fn method_of(planner: &Planner<'_>, step: &SourceStep) -> Option<StepMethod> {
    let revisions = &planner.revisions;
    let from = &step.from;
    let to = &step.to;
    let has_other_volumes =
        revisions.claim_templates(&from.revision) != revisions.claim_templates(&to.revision);
    let to = decorated_template(planner, to)?;
    // Volumes of an existing Pod are immutable.
    let from = decorated_template(planner, from).filter(|_| !has_other_volumes);
    let Some(from) = from else { return Some(UpdateMethod::Recreate.into()) };
    let method = method(&from, &to, planner.observed.can_resize);
    Some(StepMethod { method, restarted: restarted(&from, &to) })
}

fn decorated_template(planner: &Planner<'_>, source: &PodSource) -> Option<PodTemplate> {
    let template = planner.revisions.template(&source.revision)?;
    decorate(&template, &source.decorations, &planner.observed.decorations)
}

fn begin(planner: &mut Planner<'_>, pod: &PodView, methods: &UpdateMethods, target: &PodSource) {
    let operation = OwnOperation::Update;
    match chosen_method(planner, pod, methods, target) {
        Ok(UpdateMethod::Annotations) => {
            let to = target.clone();
            let mode = ApplyMode::InService;
            planner.change_pod(pod, PodChange::Apply { to, mode });
        }
        Ok(method) => {
            let recreates = method == UpdateMethod::Recreate;
            // Decorations that the API server rejects would leave the Pod out of service.
            let is_checked = recreates || pod.decorations != target.decorations;
            let may_begin = !is_checked || dry_run::is_accepted(planner, target);
            if may_begin && planner.capacity_left() > 0 && planner.try_update(pod, target) {
                let end = if recreates { OperationEnd::PodDeleted } else { OperationEnd::PodKept };
                planner.change_pod(pod, PodChange::Begin { operation, end });
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
    target: Option<&PodSource>,
    pairs: &Pairs<'_>,
) {
    let operation = OwnOperation::Update;
    let failures = &planner.plan.failures;
    let is_held = target.is_some_and(|to| failures.holds(&pod.revision, &to.revision));
    let Some(since) = pod.allowed_since(operation).filter(|_| !is_held) else {
        if target.is_none() || is_held {
            planner.change_pod(pod, PodChange::Undo { operation });
        }
        return;
    };
    let Some(target) = target else {
        finish_update(planner, pod);
        return;
    };
    // Without a new Pod, for example because of maxSurge, it is updated like any other.
    if pairs.new_of(pod).is_some() && pod.has_label(well_known::TO_REPLACE) {
        // The Pod is deleted once its replacement is available, so the replacement must be at the
        // new revision.
        let update = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
        if update.is_none_or(|update| *update != *target.revision) {
            let to = target.revision.clone();
            planner.change_pod(pod, PodChange::ReplaceUpdate { to });
        }
        return;
    }
    let delay = planner.observed.spec.update_strategy.operation_delay_seconds;
    if let Some(wait) = lifecycle::remaining_delay(since, delay, planner.now) {
        planner.requeue_after(wait);
    } else {
        apply_update(planner, pod, methods, target);
    }
}

/// Changes or deletes a Pod that may be operated on.
fn apply_update(
    planner: &mut Planner<'_>,
    pod: &PodView,
    methods: &UpdateMethods,
    target: &PodSource,
) {
    let operation = OwnOperation::Update;
    let step = SourceStep { from: pod.source(), to: target.clone() };
    let awaits_report = methods.get(&step).is_some_and(|method| method.awaits_report(pod));
    match chosen_method(planner, pod, methods, target) {
        Ok(UpdateMethod::Recreate) if dry_run::is_accepted(planner, target) => {
            planner.delete_pod(pod, operation);
        }
        Ok(UpdateMethod::Recreate) => {
            let result = planner.observed.dry_runs.get(target);
            if matches!(result, Some(DryRunResult::Rejected { .. })) {
                planner.change_pod(pod, PodChange::Undo { operation });
            }
        }
        // Before a container ran, its old state could not be distinguished from the new one.
        Ok(UpdateMethod::InPlace) if is_starting(pod) || awaits_report => {}
        Ok(UpdateMethod::Annotations | UpdateMethod::Labels | UpdateMethod::InPlace) => {
            let to = target.clone();
            let mode = ApplyMode::UnderOperation;
            planner.change_pod(pod, PodChange::Apply { to, mode });
        }
        Err(blocker) => {
            planner.block(blocker);
            planner.change_pod(pod, PodChange::Undo { operation });
        }
    }
}

/// Finishes the operation on a Pod at its target as soon as its containers run with the new images
/// and resources.
fn finish_update(planner: &mut Planner<'_>, pod: &PodView) {
    let operation = OwnOperation::Update;
    let strategy = planner.observed.spec.update_strategy.resize.clone().unwrap_or_default();
    let last = last_pod_status(pod);
    let resources = missing(pod, &last.resized);
    let is_unchanged =
        last == LastPodStatus::default() && pod.annotation(well_known::APPLIED_AT).is_none();
    if is_unchanged && pod.revision != planner.revisions.updated {
        // The Pod left the scope before it was changed, so the operation is cancelled.
        planner.change_pod(pod, PodChange::Undo { operation });
    } else if !resources.is_empty() {
        let is_rejected = planner.observed.rejected_resizes.contains_key(&pod.uid);
        if is_rejected && strategy.on_infeasible == ResizePolicy::Recreate {
            planner.delete_pod(pod, operation);
        } else {
            planner.change_pod(pod, PodChange::Resize { resources });
        }
    } else if is_finished(pod, &last) {
        planner.change_pod(pod, PodChange::FinishUpdate);
    } else if let Some(blocker) = resize_blocker(pod, &last) {
        let is_infeasible = matches!(pod.resize, Some(Resize::Infeasible(_)));
        let policy = if is_infeasible { strategy.on_infeasible } else { strategy.on_deferred };
        match policy {
            ResizePolicy::Recreate => {
                planner.delete_pod(pod, operation);
            }
            ResizePolicy::Wait => planner.block(blocker),
        }
    }
}

/// Returns why a resize is stuck; `None` if the update resizes nothing or the resize progresses.
/// The affected Pods are listed in `status.waiting`.
fn resize_blocker(pod: &PodView, last: &LastPodStatus) -> Option<Blocker> {
    if last.resized.is_empty() {
        return None;
    }
    let resize = pod.resize.as_ref()?;
    let reason = match resize {
        Resize::Deferred(_) => &reasons::RESIZE_DEFERRED,
        Resize::Infeasible(_) => &reasons::RESIZE_INFEASIBLE,
        Resize::Failing(_) => &reasons::RESIZE_FAILING,
        Resize::InProgress => return None,
    };
    Some(Blocker::updating(reason, resize.to_string()))
}

/// Returns the update method under the CollaSet's policy.
///
/// # Errors
///
/// A [`Blocker`] if the policy is `InPlaceOnly` and the Pod would have to be recreated, or if a
/// revision does not exist.
fn chosen_method(
    planner: &Planner<'_>,
    pod: &PodView,
    methods: &UpdateMethods,
    target: &PodSource,
) -> Result<UpdateMethod, Blocker> {
    let step = SourceStep { from: pod.source(), to: target.clone() };
    let Some(method) = methods.get(&step).map(|method| method.of(pod)) else {
        return Err(target_not_found(target));
    };
    match planner.observed.spec.update_strategy.pod_upgrade_policy {
        PodUpgradePolicy::Recreate => Ok(UpdateMethod::Recreate),
        PodUpgradePolicy::InPlaceOnly if method == UpdateMethod::Recreate => Err(Blocker::updating(
            &reasons::IN_PLACE_UPDATE_NOT_POSSIBLE,
            "spec.updateStrategy.podUpgradePolicy is InPlaceOnly, but the template changes more \
             than images, metadata and resources that can be resized in place, or restarts a \
             container for whose image the kubelet reports no digest"
                .to_owned(),
        )),
        // Under Replace, this handles only Pods whose update began under another policy.
        PodUpgradePolicy::InPlaceIfPossible
        | PodUpgradePolicy::InPlaceOnly
        | PodUpgradePolicy::Replace => Ok(method),
    }
}

fn target_not_found(target: &PodSource) -> Blocker {
    Blocker::updating(
        &reasons::TARGET_REVISION_NOT_FOUND,
        format!("{target}: a ControllerRevision of the CollaSet or of a PodDecoration is missing"),
    )
}

/// Returns whether the Pod is scheduled and some containers have not run yet.
fn is_starting(pod: &PodView) -> bool {
    pod.node.is_some() && pod.not_running_reason.is_none() && !pod.has_all_images()
}
