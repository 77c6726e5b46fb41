//! Explains why an operation on a Pod waits, by its phase.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use podops_api::{
    availability::AvailableConditions,
    ids::LifecycleTime,
    lifecycle::{self, LabelKind, Operation, Phase},
    well_known,
};

use super::{Cause, Facts, rule, running::not_running_cause, set};
use crate::{
    pod_change::OFFLINE,
    pods::{
        annotation, condition, finalizers, has_condition, is_controlled, label, name, not_ready,
    },
};

const LIFECYCLE: &str = "lifecycle-operator";

/// Explains one operation of a Pod.
pub(super) fn explain(facts: &Facts, pod: &Pod, id: &str, operation: &Operation) -> Cause {
    let phase = Phase::of(operation);
    let kind = operation.any_type().map(|kind| format!(" ({kind})")).unwrap_or_default();
    let causes = match phase {
        Phase::Requested | Phase::PreCheck if operation.operation_type().is_none() => {
            vec![without_type(id)]
        }
        Phase::Requested => requested(facts, pod),
        Phase::PreCheck | Phase::PreChecked => checked(facts, pod, well_known::PRE_CHECK_GATE),
        Phase::Preparing => drained(facts, pod),
        Phase::Operate if id == OFFLINE => {
            let cause = Cause::new("it was taken offline by a user");
            vec![cause.remedy(format!("kubectl podops online {}", name(pod)))]
        }
        Phase::Operate | Phase::Operated => operated(facts, pod, id),
        Phase::PostCheck | Phase::PostChecked => checked(facts, pod, well_known::POST_CHECK_GATE),
        Phase::Completing => returned(facts, pod),
    };
    Cause::new(format!("operation {id}{kind} is in phase {phase}"))
        .since(since(operation, phase))
        .because(causes)
}

/// Time at which an operation entered its phase.
fn since(operation: &Operation, phase: Phase) -> Option<Timestamp> {
    let label = match phase {
        Phase::Requested => LabelKind::Operating,
        Phase::PreCheck => LabelKind::PreCheck,
        Phase::PreChecked => LabelKind::PreChecked,
        Phase::Preparing => LabelKind::Preparing,
        Phase::Operate => LabelKind::Operate,
        Phase::Operated => LabelKind::Operated,
        Phase::PostCheck => LabelKind::PostCheck,
        Phase::PostChecked => LabelKind::PostChecked,
        Phase::Completing => LabelKind::Completing,
    };
    let stamp = operation.get(label).or(operation.get(LabelKind::Operating))?;
    LifecycleTime::parse(stamp).map(|time| time.0)
}

fn requested(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    if !is_controlled(pod) {
        let remedy = format!("kubectl label pod {} {}", name(pod), well_known::CONTROLLED);
        let message = "the Pod does not take part in the lifecycle: it has no such label";
        return vec![Cause::new(message).remedy(remedy)];
    }
    let absence = facts.absence(LIFECYCLE);
    vec![absence.unwrap_or_else(|| {
        Cause::new("lifecycle-operator has not started it")
            .remedy(format!("read the events: kubectl describe pod {}", name(pod)))
    })]
}

/// An operation whose requester has not set its type.
fn without_type(id: &str) -> Cause {
    let key = LabelKind::OperationType.key(id);
    Cause::new(format!("its requester has not set the label {key}"))
        .remedy(format!("fix the program that uses the operation ID {id}, or remove its labels"))
}

fn checked(facts: &Facts, pod: &Pod, gate: &str) -> Vec<Cause> {
    let labels = pod.metadata.labels.iter().flatten();
    let checkers = labels.filter_map(|(key, _)| key.strip_prefix(gate)?.strip_prefix('/'));
    let mut causes = Vec::new();
    for checker in checkers {
        if checker == well_known::TRANSITION_RULE {
            causes.extend(rule::explain(facts, pod));
        } else {
            let message = format!("{checker} has not permitted it: gate {gate}/{checker}");
            let remedy = format!("check the program {checker}, or remove its gate from the Pod");
            causes.push(Cause::new(message).remedy(remedy));
        }
    }
    if causes.is_empty() {
        causes.extend(facts.absence(LIFECYCLE));
    }
    causes
}

/// Traffic has not ended.
fn drained(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    let expected = expected_finalizers(pod);
    let blocking =
        finalizers(pod).iter().filter(|f| f.starts_with(well_known::PROTECTION_FINALIZER));
    let mut causes: Vec<Cause> = blocking
        .map(|finalizer| {
            let employer = expected.iter().find(|(_, name)| name == finalizer);
            let by = employer.map_or_else(
                || format!("another program: finalizer {finalizer}"),
                |(employer, _)| employer.clone(),
            );
            let cause = Cause::new(format!("traffic has not ended: the Pod is protected by {by}"));
            with_report(cause, pod, finalizer, facts)
        })
        .collect();
    if causes.is_empty() {
        causes.extend(facts.absence(LIFECYCLE));
    }
    if causes.is_empty() {
        causes.push(Cause::new("the readiness gate has not closed yet"));
    }
    causes
}

/// Adds the absence of consist-operator and its report about the finalizer, a condition of the Pod.
fn with_report(cause: Cause, pod: &Pod, finalizer: &str, facts: &Facts) -> Cause {
    let cause = cause.because(facts.absence("consist-operator"));
    let Some(report) = condition(pod, finalizer) else { return cause };
    let reason = report.reason.as_deref().unwrap_or_default();
    let message = report.message.as_deref().unwrap_or_default();
    let since = report.last_transition_time.as_ref().map(|time| time.0);
    cause.because([Cause::new(format!("{reason}: {message}")).since(since)])
}

/// Finalizers that the Pod must have to be available, by employer.
fn expected_finalizers(pod: &Pod) -> Vec<(String, String)> {
    let annotation = annotation(pod, well_known::AVAILABLE_CONDITIONS);
    let expected: AvailableConditions =
        annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    expected.expected_finalizers.into_iter().collect()
}

/// The operation itself is not complete.
fn operated(facts: &Facts, pod: &Pod, id: &str) -> Vec<Cause> {
    if let Some(cause) = not_running_cause(pod) {
        return vec![cause];
    }
    if id != lifecycle::COLLASET {
        return job_cause(facts, pod, id).into_iter().collect();
    }
    if let Some(cause) = resize_cause(pod) {
        return vec![cause];
    }
    if annotation(pod, well_known::LAST_POD_STATUS).is_some() {
        let cause = Cause::new("the kubelet has not applied the new images or resources yet");
        return vec![cause.remedy(format!("kubectl describe pod {}; check the node", name(pod)))];
    }
    let absence = facts.absence("collaset-operator");
    vec![absence.unwrap_or_else(|| Cause::new(not_applied(facts, pod)))]
}

/// Returns the cause for which a CollaSet has not changed a Pod that may be operated on.
fn not_applied(facts: &Facts, pod: &Pod) -> String {
    let text = "the CollaSet has not applied the change yet";
    let spec = set::owner(facts, pod).map(|set| &set.spec);
    let delays = spec.map(|spec| {
        let scaling = spec.scale_strategy.as_ref();
        let scaling = scaling.and_then(|strategy| strategy.operation_delay_seconds);
        [spec.update_strategy.operation_delay_seconds, scaling]
    });
    let delay = delays.into_iter().flatten().flatten().find(|seconds| *seconds > 0);
    delay.map_or_else(
        || text.to_owned(),
        |seconds| format!("{text}; operationDelaySeconds delays it by {seconds}s"),
    )
}

/// Returns the cause, as the kubelet reports it, for which the containers do not have their new
/// resources.
fn resize_cause(pod: &Pod) -> Option<Cause> {
    let pending = true_condition(pod, "PodResizePending");
    let condition = pending.or_else(|| true_condition(pod, "PodResizeInProgress"))?;
    let message = condition.message.as_deref().unwrap_or_default();
    let since = condition.last_transition_time.as_ref().map(|time| time.0);
    let (cause, remedy) = match condition.reason.as_deref() {
        Some("Infeasible") => (
            format!("the node can never provide the resources: {message}"),
            "request less in the template, or set updateStrategy.resize.onInfeasible to Recreate",
        ),
        Some("Error") => (
            format!("the kubelet failed to apply the resources, and tries again: {message}"),
            "check the kubelet of the node",
        ),
        _ if pending.is_some() => (
            format!("the node lacks free resources: {message}"),
            "free resources of the node, or set updateStrategy.resize.onDeferred to Recreate",
        ),
        _ => ("the kubelet is applying the resources".to_owned(), ""),
    };
    Some(Cause::new(cause).since(since).remedy(remedy))
}

fn true_condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    condition(pod, type_).filter(|condition| condition.status == "True")
}

/// The operation of a job, or of another program.
fn job_cause(facts: &Facts, pod: &Pod, id: &str) -> Option<Cause> {
    let job = facts.jobs.iter().find(|job| job.metadata.name.as_deref() == Some(id));
    let Some(job) = job else {
        let message = format!("the program of the operation ID {id} has not finished it");
        let kind = label(pod, &LabelKind::OperationType.key(id)).unwrap_or_default();
        let remedy = format!(
            "check that program, or undo the operation: kubectl label pod {} {}={kind}",
            name(pod),
            LabelKind::UndoOperationType.key(id)
        );
        return (id != lifecycle::POD_DELETE).then(|| Cause::new(message).remedy(remedy));
    };
    let status = job.status.as_ref()?;
    let target = status.target_details.iter().find(|target| target.name == name(pod))?;
    let waits_for = target.extra_info.get("Waiting")?;
    Some(Cause::new(format!("OperationJob {id} waits for {waits_for}")))
}

/// The Pod is not back in service.
pub(super) fn returned(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    if label(pod, well_known::STAY_OFFLINE).is_some() {
        let message = format!("the label {} keeps it out of service", well_known::STAY_OFFLINE);
        let remedy = format!("kubectl label pod {} {}-", name(pod), well_known::STAY_OFFLINE);
        return vec![Cause::new(message).remedy(remedy)];
    }
    if let Some(cause) = not_running_cause(pod) {
        return vec![cause];
    }
    let missing = expected_finalizers(pod);
    let missing = missing.into_iter().filter(|(_, f)| !finalizers(pod).contains(f));
    let mut causes: Vec<Cause> = missing
        .map(|(employer, finalizer)| {
            let cause = Cause::new(format!("{employer} does not send traffic to the Pod yet"));
            with_report(cause, pod, &finalizer, facts)
        })
        .collect();
    if !has_condition(pod, "ContainersReady") {
        causes.extend(not_ready(pod).map(|message| {
            Cause::new(message)
                .remedy(format!("read its probes: kubectl describe pod {}", name(pod)))
        }));
    }
    if causes.is_empty() {
        causes.extend(facts.absence(LIFECYCLE));
    }
    if causes.is_empty() && !has_condition(pod, well_known::SERVICE_READY) {
        causes.push(Cause::new("the readiness gate has not opened yet"));
    }
    causes
}
