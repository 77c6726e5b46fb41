//! CollaSets and rules whose conditions report that they need a user, and CollaSets with one selector.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    finding::Findings,
    installation::{Installation, Object},
};

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    for set in installation.of("CollaSet").filter(|set| !set.is_deleting()) {
        if let Some(message) = message_of(set, "Stalled") {
            let namespace = set.namespace.as_deref().unwrap_or_default();
            let remedy = format!("kubectl podops explain collaset/{} -n {namespace}", set.name);
            findings.warning(set.to_string(), &format!("is stalled: {message}"), &remedy);
        }
    }
    for rule in installation.of("PodTransitionRule").filter(|rule| !rule.is_deleting()) {
        if let Some(message) = message_of(rule, "Degraded") {
            let namespace = rule.namespace.as_deref().unwrap_or_default();
            let remedy = format!("kubectl edit podtransitionrule {} -n {namespace}", rule.name);
            findings.warning(rule.to_string(), &format!("is degraded: {message}"), &remedy);
        }
    }
    check_selectors(installation, findings);
}

/// Message of a condition that is True.
fn message_of<'a>(object: &'a Object, type_: &str) -> Option<&'a str> {
    let condition = object.true_condition(type_)?;
    Some(condition["message"].as_str().unwrap_or_default())
}

/// CollaSets that select the Pods of each other count and adopt those as their own.
fn check_selectors(installation: &Installation, findings: &mut Findings) {
    let mut by_selector = BTreeMap::<(Option<&str>, String), Vec<&Object>>::new();
    for set in installation.of("CollaSet") {
        let selector: &Value = &set.value["spec"]["selector"];
        if !selector.is_null() {
            let key = (set.namespace.as_deref(), selector.to_string());
            by_selector.entry(key).or_default().push(set);
        }
    }
    for ((namespace, _), sets) in by_selector.into_iter().filter(|(_, sets)| sets.len() > 1) {
        let names: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
        let subject = format!(
            "CollaSets {} in namespace {}",
            names.join(", "),
            namespace.unwrap_or_default()
        );
        findings.warning(
            subject,
            "have the same selector, so one may adopt the Pods of the other",
            "Create one of them with another selector; it cannot be changed.",
        );
    }
}
