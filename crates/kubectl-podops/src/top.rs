//! Operations in progress, waiting Pods by cause, and budgets of a namespace, as lines of text.
//! Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use podops_api::transition_rule::PodTransitionRule;
use podops_terminal::fit::fit;
use serde::Serialize;

use crate::{
    counted::first_names,
    explain::{self, Facts, age},
    pods::{is_in_service, operations},
};

/// Operations, waiting Pods and budgets of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Number of Pods under control.
    pub pods: usize,
    /// Number of them in service.
    pub in_service: usize,
    /// Operations in progress by ID and phase.
    pub operations: Vec<Operations>,
    /// Waiting Pods by cause, the most frequent first.
    pub waiting: Vec<Waiting>,
    /// Budgets of rules.
    pub budgets: Vec<Budget>,
    /// Time of the observation.
    #[serde(skip)]
    pub now: Timestamp,
}

/// Operations of one ID in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operations {
    /// ID.
    pub id: String,
    /// Phase.
    pub phase: String,
    /// Number of Pods.
    pub pods: usize,
}

/// Pods that wait for the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Cause of the wait.
    pub cause: String,
    /// Number of Pods.
    pub count: usize,
    /// Their names.
    pub pods: Vec<String>,
    /// Since when the first of them waits, if that is known.
    pub since: Option<Timestamp>,
}

/// Budget of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// PodTransitionRule and rule, as `budget/tenth`.
    pub rule: String,
    /// Number of unavailable Pods.
    pub unavailable: i32,
    /// Number of available Pods.
    pub available: i32,
    /// Maximum number of unavailable Pods.
    pub max_unavailable: Option<i32>,
    /// Minimum number of available Pods.
    pub min_available: Option<i32>,
    /// Number of waiting Pods that the rule rejects.
    pub rejecting: i32,
}

/// Returns the operations, waiting Pods and budgets of a namespace.
#[must_use]
pub fn top(facts: &Facts) -> Top {
    let mut by_phase = BTreeMap::<(String, String), usize>::new();
    for pod in &facts.pods {
        for (id, phase) in operations(pod) {
            *by_phase.entry((id, phase.to_string())).or_default() += 1;
        }
    }
    let operations = by_phase.into_iter();
    Top {
        pods: facts.pods.len(),
        in_service: facts.pods.iter().filter(|pod| is_in_service(pod)).count(),
        operations: operations.map(|((id, phase), pods)| Operations { id, phase, pods }).collect(),
        waiting: waiting(facts),
        budgets: facts.rules.iter().flat_map(budgets).collect(),
        now: facts.now,
    }
}

fn waiting(facts: &Facts) -> Vec<Waiting> {
    let waits = explain::waits(facts, facts.pods.iter().map(Arc::as_ref)).into_iter();
    let waiting = waits.map(|wait| Waiting {
        cause: wait.cause.message,
        count: wait.pods.len(),
        pods: wait.pods,
        since: wait.since,
    });
    waiting.collect()
}

fn budgets(rule: &PodTransitionRule) -> Vec<Budget> {
    let Some(status) = &rule.status else { return Vec::new() };
    let pods = status.pods.unwrap_or_default();
    let object = rule.metadata.name.as_deref().unwrap_or_default();
    let limited = status
        .rule_states
        .iter()
        .filter(|rule| rule.max_unavailable.is_some() || rule.min_available.is_some());
    let budgets = limited.map(|state| Budget {
        rule: format!("{object}/{}", state.name),
        unavailable: pods.unavailable,
        available: pods.available,
        max_unavailable: state.max_unavailable,
        min_available: state.min_available,
        rejecting: state.rejecting.unwrap_or_default(),
    });
    budgets.collect()
}

/// Returns the lines of the tables; those longer than `width` characters are wrapped.
#[must_use]
pub fn lines(top: &Top, width: usize) -> Vec<String> {
    let mut lines = vec![format!("{} of {} Pods in service", top.in_service, top.pods)];
    if !top.operations.is_empty() {
        lines.push(format!("{:<24} {:<12} PODS", "OPERATION", "PHASE"));
    }
    for Operations { id, phase, pods } in &top.operations {
        lines.push(format!("{id:<24} {phase:<12} {pods}"));
    }
    if !top.waiting.is_empty() {
        lines.push(format!("{:<5} {:<8} WAIT FOR", "PODS", "SINCE"));
    }
    for Waiting { cause, count, pods, since } in &top.waiting {
        let since = since.map(|since| age(since, top.now)).unwrap_or_default();
        lines.push(format!("{count:<5} {since:<8} {}: {cause}", first_names(pods)));
    }
    if !top.budgets.is_empty() {
        lines.push(format!("{:<32} {:<12} {:<16} REJECTS", "BUDGET", "UNAVAILABLE", "LIMIT"));
    }
    for budget in &top.budgets {
        let Budget { rule, unavailable, rejecting, .. } = budget;
        lines.push(format!("{rule:<32} {unavailable:<12} {:<16} {rejecting}", limit(budget)));
    }
    fit(lines, width)
}

fn limit(budget: &Budget) -> String {
    let most = budget.max_unavailable.map(|most| format!("at most {most}"));
    let least = budget.min_available.map(|least| format!("{least} available"));
    most.into_iter().chain(least).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn waiting_pod(name: &str, gate: &str) -> Arc<Pod> {
        let labels = json!({
            "kusionstack.io/control": "true",
            "operating.podopslifecycle.kusionstack.io/collaset": "1000000000",
            "operation-type.podopslifecycle.kusionstack.io/collaset": "update",
            "pre-check.podopslifecycle.kusionstack.io/collaset": "1000000000",
            format!("pre-check-gate.podopslifecycle.kusionstack.io/{gate}"): "1",
        });
        let pod = json!({ "metadata": { "name": name, "labels": labels } });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn waiting_pods_are_grouped_by_cause() {
        let pods = ["a", "b", "c", "d"].map(|name| waiting_pod(name, "audit"));
        let other = waiting_pod("e", "approval");
        let now = Timestamp::from_second(61).unwrap();
        let pods = [other].into_iter().chain(pods).collect();
        let facts = Facts { pods, now, ..Facts::default() };
        let lines = lines(&top(&facts), usize::MAX);
        assert_eq!(lines[0], "0 of 5 Pods in service");
        assert!(lines[2].starts_with("collaset                 PreCheck     5"), "{lines:#?}");
        assert!(lines[4].starts_with("4     1m       a, b, c: audit has not permitted it"));
        assert!(lines[5].starts_with("1     1m       e: approval has not"), "{lines:#?}");
    }

    #[test]
    fn budgets_show_their_use_and_limit() {
        let rule = json!({
            "metadata": { "name": "web" }, "spec": { "selector": {}, "rules": [] },
            "status": {
                "pods": { "total": 20, "available": 18, "unavailable": 2 },
                "ruleStates": [{ "name": "tenth", "maxUnavailable": 2, "rejecting": 3 }],
            },
        });
        let rules = vec![serde_json::from_value(rule).unwrap()];
        let facts = Facts { rules, ..Facts::default() };
        let lines = lines(&top(&facts), usize::MAX);
        let columns: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(columns, ["web/tenth", "2", "at", "most", "2", "3"]);
    }
}
