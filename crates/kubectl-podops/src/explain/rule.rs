//! Which PodTransitionRules reject a Pod, and which other Pods use up their budgets.

use k8s_openapi::api::core::v1::Pod;
use podops_api::transition_rule::{PodTransitionRule, RejectInfo};

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
            rejection(facts, rule, info).because(used_by(facts, pod, rule, info)).since(since)
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

fn rejection(facts: &Facts, rule: &PodTransitionRule, info: &RejectInfo) -> Cause {
    let object = rule.metadata.name.as_deref().unwrap_or_default();
    let RejectInfo { rule_name, reason } = info;
    let message = format!("rule {rule_name} of PodTransitionRule {object} rejects it: {reason}");
    Cause::new(message)
        .remedy(format!("change the rule: kubectl edit ptr {object}"))
        .because(facts.absence("transition-rule-operator"))
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
