//! Which PodTransitionRules reject a Pod, and which other Pods use up their budgets.

use k8s_openapi::api::core::v1::Pod;
use podops_api::transition_rule::{PodTransitionRule, RejectInfo, TransitionRule};

use super::{Cause, Facts, running::not_running_cause};
use crate::pods::{is_in_service, name, operations};

/// Maximum number of other Pods that are named.
const MAX_PODS: usize = 3;

/// Explains why the rules have not permitted an operation.
pub(super) fn explain(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    let mut causes = Vec::new();
    for rule in &facts.rules {
        let Some(status) = &rule.status else { continue };
        let waiting = status.details.iter().find(|detail| detail.name == name(pod));
        let Some(detail) = waiting.filter(|detail| !detail.passed) else { continue };
        let since = detail.since.as_ref().map(|time| time.0);
        causes.extend(detail.reject_info.iter().map(|info| {
            rejection(facts, pod, rule, info).because(used_by(facts, pod, rule, info)).since(since)
        }));
    }
    if causes.is_empty() {
        causes.extend(facts.absence("transition-rule-operator"));
    }
    if causes.is_empty() {
        causes.push(Cause::new("transition-rule-operator has not evaluated the rules yet"));
    }
    causes
}

fn rejection(facts: &Facts, pod: &Pod, rule: &PodTransitionRule, info: &RejectInfo) -> Cause {
    let object = rule.metadata.name.as_deref().unwrap_or_default();
    let RejectInfo { rule_name, reason } = info;
    let message = format!("rule {rule_name} of PodTransitionRule {object} rejects it: {reason}");
    Cause::new(message)
        .remedy(remedy(pod, rule, rule_name))
        .because(facts.absence("transition-rule-operator"))
}

/// Next step for a Pod that a rule rejects; a change of the rule is the last resort.
fn remedy(pod: &Pod, object: &PodTransitionRule, rule: &str) -> String {
    let change = format!(
        "change the rule: kubectl edit ptr {}",
        object.metadata.name.as_deref().unwrap_or_default()
    );
    let rule = object.spec.rules.iter().find(|known| known.name == rule);
    match rule.and_then(|rule| step(pod, rule)) {
        Some(step) => format!("{step}; as a last resort, {change}"),
        None => change,
    }
}

fn step(pod: &Pod, rule: &TransitionRule) -> Option<String> {
    let is_budget = rule.available_policy.is_some()
        || rule.disruption_budget.is_some()
        || rule.topology_spread.is_some();
    if let Some(check) = &rule.label_check {
        let labels = check.requires.match_labels.iter().flatten();
        let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
        let is_complete = check.requires.match_expressions.iter().flatten().next().is_none();
        let command = format!("kubectl label pod {} {} --overwrite", name(pod), labels.join(" "));
        return Some(if is_complete { command } else { "set the labels of the Pod".to_owned() });
    }
    let step = if is_budget {
        "bring the unavailable Pods back into service"
    } else if rule.webhook.is_some() {
        "see the service of the webhook"
    } else if rule.schedule.is_some() {
        "wait for the next window"
    } else if rule.cel.is_some() {
        "change what the expression checks"
    } else {
        return None;
    };
    Some(step.to_owned())
}

/// Pods under a budget that are out of service, with the cause of each.
fn used_by(facts: &Facts, pod: &Pod, rule: &PodTransitionRule, info: &RejectInfo) -> Vec<Cause> {
    let is_budget = info.reason.contains("vailable");
    let targets = rule.status.iter().flat_map(|status| &status.targets).filter(|_| is_budget);
    let others = targets.filter(|target| *target != name(pod));
    let known = others.filter_map(|target| facts.pod(target));
    let unavailable = known.filter(|other| !is_in_service(other));
    unavailable.take(MAX_PODS).map(unavailable_cause).collect()
}

fn unavailable_cause(pod: &Pod) -> Cause {
    let cause = Cause::new(format!("Pod {} is out of service", name(pod)));
    if let Some(reason) = not_running_cause(pod) {
        return cause.because([reason]);
    }
    let phases = operations(pod)
        .into_iter()
        .map(|(id, phase)| Cause::new(format!("operation {id} is in phase {phase}")));
    cause.because(phases)
}
