//! PodTransitionRules.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{direction::Direction, objects::subject};
use crate::{finding::Findings, installation::items};

/// Longest name of a PodTransitionRule.
const NAME_MAX: usize = 63;
/// Kinds of rules that both know.
const KINDS: [&str; 3] = ["availablePolicy", "labelCheck", "webhook"];
/// Kinds of rules that Kuperator skips.
const KINDS_OF_PODOPS: [&str; 4] = ["schedule", "cel", "disruptionBudget", "topologySpread"];

pub(super) fn check(object: &Value, direction: Direction, findings: &mut Findings) {
    let subject = subject("PodTransitionRule", object);
    match direction {
        Direction::ToPodops => {
            if object["metadata"]["name"].as_str().is_some_and(|name| name.len() > NAME_MAX) {
                let message = format!("has a name of more than {NAME_MAX} characters");
                findings.error(&subject, &message, "Create it under another name.");
            }
            let mut names = BTreeSet::new();
            for rule in items(&object["spec"]["rules"]) {
                check_rule(&subject, rule, findings);
                let name = rule["name"].as_str().unwrap_or_default();
                if !names.insert(name) {
                    let message = format!("has two rules of the name {name}");
                    findings.error(&subject, &message, "Rename one of them.");
                }
            }
        }
        Direction::ToKuperator => {
            for rule in items(&object["spec"]["rules"]) {
                check_rule_of_podops(&subject, rule, findings);
            }
        }
    }
}

fn check_rule(subject: &str, rule: &Value, findings: &mut Findings) {
    let name = rule["name"].as_str().unwrap_or_default();
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| !rule[*kind].is_null()).collect();
    if kinds.len() != 1 {
        let message = format!(
            "rule {name} has {} kinds ({}); Podops requires one at the next write",
            kinds.len(),
            kinds.join(", ")
        );
        findings.error(
            subject,
            &message,
            "Keep the first, which is the one that Kuperator evaluates.",
        );
    }
    // Kuperator's webhook stores `Ignore` by default, and its controller behaves as `Fail`.
    if !rule["webhook"].is_null() && rule["webhook"]["failurePolicy"] != "Fail" {
        let message = format!(
            "rule {name}: failurePolicy is Ignore, which Kuperator handles as Fail, and Podops permits operations while the webhook is down"
        );
        findings.error(
            subject,
            &message,
            "Set failurePolicy to Fail, or to Ignore again after the switch.",
        );
    }
}

fn check_rule_of_podops(subject: &str, rule: &Value, findings: &mut Findings) {
    let name = rule["name"].as_str().unwrap_or_default();
    if let Some(kind) = KINDS_OF_PODOPS.into_iter().find(|kind| !rule[*kind].is_null()) {
        let message = format!("rule {name} is of kind {kind}, which Kuperator skips");
        findings.error(subject, &message, "Replace it by another rule, or remove it.");
    }
}
