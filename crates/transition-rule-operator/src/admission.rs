//! Validates the parts of PodTransitionRules that the schema cannot: expressions, selectors, time
//! zones and certificates. Pure.

use std::collections::BTreeSet;

use podops_api::transition_rule::{PodTransitionRule, TransitionRule};

use crate::view::RuleView;

/// Validation errors of a rule, each with its field. `is_ca_bundle` checks a CA bundle, which may
/// be absent.
#[must_use]
pub fn validation_errors(
    rule: &PodTransitionRule,
    is_ca_bundle: fn(Option<&str>) -> bool,
) -> Vec<String> {
    let mut validation_errors = match RuleView::read(rule, &BTreeSet::new()) {
        Ok(view) => view.validation_errors,
        Err(error) => vec![format!("spec.selector: {error}")],
    };
    for rule in rule.spec.rules.iter().filter(|rule| !rule.disabled && rule.conditions.is_empty()) {
        validation_errors.extend(ca_bundle_errors(rule, is_ca_bundle));
    }
    validation_errors
}

fn ca_bundle_errors(rule: &TransitionRule, is_ca_bundle: fn(Option<&str>) -> bool) -> Vec<String> {
    let Some(client) = rule.webhook.as_ref().map(|webhook| &webhook.client_config) else {
        return Vec::new();
    };
    let poll = client.poll.as_ref().and_then(|poll| poll.ca_bundle.as_deref());
    let bundles = [("caBundle", client.ca_bundle.as_deref()), ("poll.caBundle", poll)];
    let unreadable = bundles.into_iter().filter(|(_, bundle)| !is_ca_bundle(*bundle));
    unreadable
        .map(|(field, _)| {
            let field_path = format!("spec.rules[{}].webhook.clientConfig.{field}", rule.name);
            format!("{field_path}: must be base64-encoded PEM")
        })
        .collect()
}
