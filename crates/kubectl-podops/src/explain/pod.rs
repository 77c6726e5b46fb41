//! Explains why a Pod waits.

use k8s_openapi::api::core::v1::Pod;
use podops_api::{
    lifecycle::PodLifecycle,
    operation_job::{OperationJob, Progress},
    well_known,
};

use super::{
    Cause, Explanation, Facts, decoration,
    operation::{self, returned},
    running::not_running_cause,
    set,
};
use crate::pods::{finalizers, has_gate, is_controlled, is_in_service, label, labels, name};

/// Explains a Pod; `None` if it is not among the facts.
#[must_use]
pub fn explain(facts: &Facts, pod: &str) -> Option<Explanation> {
    let pod = facts.pod(pod)?;
    let causes = causes(facts, pod);
    let state = match (is_in_service(pod), causes.is_empty()) {
        _ if !is_controlled(pod) => "does not take part in the lifecycle",
        (true, true) => "is in service and waits for nothing",
        (true, false) => "is in service",
        (false, _) => "is out of service",
    };
    Some(Explanation {
        subject: format!("pod/{}", name(pod)),
        state: state.to_owned(),
        causes,
        now: facts.now,
    })
}

fn causes(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    let lifecycle = match PodLifecycle::parse(&labels(pod)) {
        Ok(lifecycle) => lifecycle,
        Err(invalid) => {
            let message = format!("{invalid}: lifecycle-operator does not reconcile the Pod");
            let remedy = format!("kubectl label pod {} {}-", name(pod), invalid.key);
            return vec![Cause::new(message).remedy(remedy)];
        }
    };
    let operations = lifecycle.operations.iter().filter(|(_, operation)| !operation.is_empty());
    let mut causes: Vec<Cause> =
        operations.map(|(id, operation)| operation::explain(facts, pod, id, operation)).collect();
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        let finalizers = finalizers(pod).join(", ");
        if !finalizers.is_empty() {
            let message = format!("its deletion waits for the finalizers {finalizers}");
            causes.push(Cause::new(message).since(Some(deleted.0)));
        }
        return causes;
    }
    if !causes.is_empty() {
        return causes;
    }
    causes.extend(protection(pod));
    causes.extend(requests(facts, pod));
    if is_controlled(pod) && !is_in_service(pod) {
        causes.extend(returned(facts, pod));
    } else if !is_in_service(pod) {
        causes.extend(not_running_cause(pod));
    }
    causes.extend(set::explain_update(facts, pod));
    causes.extend(decoration::explain(facts, pod));
    causes
}

/// Returns the cause for which the lifecycle does not protect the Pod.
fn protection(pod: &Pod) -> Option<Cause> {
    let owned = label(pod, well_known::INSTANCE_ID).is_some();
    if !is_controlled(pod) {
        // A Pod that does not take part waits for nothing.
        return owned.then(|| {
            let remedy = format!("kubectl label pod {} {}", name(pod), well_known::CONTROLLED);
            let message = format!("it has lost the label {}", well_known::CONTROLLED);
            Cause::new(message).remedy(remedy)
        });
    }
    (!has_gate(pod)).then(|| {
        let message = format!(
            "it has no readiness gate {}: its traffic does not stop before an operation",
            well_known::SERVICE_READY
        );
        Cause::new(message)
            .remedy("add the gate to the template, or apply the component readiness-gate")
    })
}

/// Requests to delete, replace or operate on a Pod that have not begun.
fn requests(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    let mut causes = Vec::new();
    for key in [well_known::TO_DELETE, well_known::TO_REPLACE, well_known::TO_EXCLUDE] {
        if label(pod, key).is_some() {
            let operator = facts.absence("collaset-operator");
            causes.push(Cause::new(format!("{key} is requested")).because(operator));
        }
    }
    for job in &facts.jobs {
        let targets = job.status.iter().flat_map(|status| &status.target_details);
        let own = targets.filter(|t| t.name == name(pod) && !t.progress.is_final());
        let job_name = job.metadata.name.as_deref().unwrap_or_default();
        let absence = facts.absence("operationjob-operator");
        causes.extend(own.map(|target| {
            let waiting = target.extra_info.get("Waiting").map(|what| format!(" for {what}"));
            let waiting = waiting.unwrap_or_default();
            let message = format!("{} of OperationJob {job_name} waits{waiting}", job.spec.action);
            Cause::new(message).because(absence.clone())
        }));
        causes.extend(not_begun(job, pod).map(|message| Cause::new(message).because(absence)));
    }
    causes
}

/// A job whose status does not have the target yet.
fn not_begun(job: &OperationJob, pod: &Pod) -> Option<String> {
    let status = job.status.as_ref();
    let mut known = status.into_iter().flat_map(|status| &status.target_details);
    let is_known = known.any(|target| target.name == name(pod));
    let is_target = job.spec.targets.iter().any(|target| target.name == name(pod));
    let progress = status.and_then(|status| status.progress);
    let has_ended = progress.is_some_and(Progress::is_final);
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let action = &job.spec.action;
    (is_target && !is_known && !has_ended)
        .then(|| format!("{action} of OperationJob {job_name} has not begun"))
}
