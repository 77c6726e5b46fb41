//! Pods whose operation has no running controller, and Services that send traffic to Pods in operations.

use std::collections::BTreeMap;

use podops_api::{
    lifecycle::{LabelKind, Labels, Phase, PodLifecycle},
    well_known,
};
use serde_json::Value;

use crate::{
    counted::{counted, first_names},
    finding::Findings,
    installation::{Installation, Object, items},
};

/// Problem of a Pod, with its remedy.
struct Problem {
    message: String,
    remedy: String,
    is_error: bool,
}

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    let mut groups = BTreeMap::<String, (Problem, Vec<String>)>::new();
    for pod in installation.of("Pod").filter(|pod| !pod.is_deleting()) {
        for problem in problems(installation, pod) {
            let key = problem.message.clone();
            let (_, pods) = groups.entry(key).or_insert_with(|| (problem, Vec::new()));
            pods.push(format!("{}/{}", pod.namespace.as_deref().unwrap_or_default(), pod.name));
        }
    }
    for (message, (problem, pods)) in groups {
        let named = first_names(&pods);
        let subject = format!("{} Pods", pods.len());
        let message = format!("{message} ({named})");
        if problem.is_error {
            findings.error(subject, &message, &problem.remedy);
        } else {
            findings.warning(subject, &message, &problem.remedy);
        }
    }
}

/// Services that select Pods under control, and whose traffic no operation waits for.
pub(super) fn check_services(installation: &Installation, findings: &mut Findings) {
    if installation.is_absent("consist-operator") {
        return;
    }
    let pods: Vec<&Object> = installation.of("Pod").filter(|pod| is_controlled(pod)).collect();
    for service in installation.of("Service").filter(|service| !is_controlled(service)) {
        let Some(selector) = service.value["spec"]["selector"].as_object() else { continue };
        let is_selected = |pod: &&&Object| {
            let labels = &pod.value["metadata"]["labels"];
            pod.namespace == service.namespace
                && selector.iter().all(|(key, value)| labels[key] == *value)
        };
        let selected = pods.iter().filter(is_selected).count();
        if selected > 0 && !selector.is_empty() {
            let namespace = service.namespace.as_deref().unwrap_or_default();
            let message = format!(
                "selects {} under control, whose operations do not wait for its traffic",
                counted(selected, "Pod")
            );
            let label = format!("{}={}", well_known::CONTROL, well_known::CONTROL_ON);
            let remedy = format!("kubectl label service {} -n {namespace} {label}", service.name);
            findings.warning(service.to_string(), &message, &remedy);
        }
    }
}

fn is_controlled(object: &Object) -> bool {
    object.value["metadata"]["labels"][well_known::CONTROL] == well_known::CONTROL_ON
}

fn problems(installation: &Installation, pod: &Object) -> Vec<Problem> {
    let labels: Labels =
        serde_json::from_value(pod.value["metadata"]["labels"].clone()).unwrap_or_default();
    let mut problems = Vec::new();
    let lifecycle = match PodLifecycle::parse(&labels) {
        Ok(lifecycle) => lifecycle,
        Err(invalid) => {
            problems.push(error(invalid.to_string(), "remove the label"));
            PodLifecycle::default()
        }
    };
    let mut operations = lifecycle.operations.iter();
    let untyped = operations.find(|(_, operation)| {
        operation.operation_type().is_none()
            && matches!(Phase::of(operation), Phase::Requested | Phase::PreCheck)
    });
    if let Some((id, _)) = untyped {
        let message = format!("have an operation {id} without a type, which does not begin");
        let key = LabelKind::OperationType.key(id);
        problems.push(warning(message, &format!("set the label {key}")));
    }
    let phases: Vec<Phase> = lifecycle.operations.values().map(Phase::of).collect();
    if !phases.is_empty() && installation.is_absent("lifecycle-operator") {
        let message = "are in operations, and lifecycle-operator is not running";
        problems.push(error(message.to_owned(), "start lifecycle-operator"));
    }
    let gates = [
        (well_known::PRE_CHECK_GATE, Phase::PreCheck),
        (well_known::POST_CHECK_GATE, Phase::PostCheck),
    ];
    for (gate, phase) in gates {
        let is_waiting = phases.contains(&phase);
        let checkers = labels.keys().filter_map(|key| key.strip_prefix(gate)?.strip_prefix('/'));
        let checkers =
            checkers.filter(|checker| is_waiting || *checker == well_known::TRANSITION_RULE);
        problems.extend(checkers.filter_map(|checker| unchecked(installation, gate, checker)));
    }
    let finalizers = items(&pod.value["metadata"]["finalizers"]);
    let mut finalizers = finalizers.filter_map(Value::as_str);
    let is_protected = finalizers.any(|f| f.starts_with(well_known::PROTECTION_FINALIZER));
    if is_protected && installation.is_absent("consist-operator") {
        let message = "have a protection finalizer, and consist-operator is not running";
        let remedy = "start consist-operator, or check the program that protects them";
        problems.push(warning(message.to_owned(), remedy));
    }
    let mut gates = items(&pod.value["spec"]["readinessGates"]);
    if well_known::is_controlled(&labels)
        && !gates.any(|gate| gate["conditionType"] == well_known::SERVICE_READY)
    {
        let message =
            "are under control without the readiness gate: they stay in service during operations";
        problems.push(warning(message.to_owned(), "add the gate to their template"));
    }
    problems
}

/// A gate whose checker does not run, as far as that is known.
fn unchecked(installation: &Installation, gate: &str, checker: &str) -> Option<Problem> {
    if checker != well_known::TRANSITION_RULE {
        let message = format!("wait for {checker} in their operations: gate {gate}/{checker}");
        return Some(warning(message, "make sure that this program runs"));
    }
    installation.is_absent("transition-rule-operator").then(|| {
        let message = "have gates of rules, and transition-rule-operator is not running".to_owned();
        error(message, "start transition-rule-operator, or remove the gates from the Pods")
    })
}

fn error(message: String, remedy: &str) -> Problem {
    Problem { message, remedy: remedy.to_owned(), is_error: true }
}

fn warning(message: String, remedy: &str) -> Problem {
    Problem { message, remedy: remedy.to_owned(), is_error: false }
}
