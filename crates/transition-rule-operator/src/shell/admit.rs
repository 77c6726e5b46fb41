//! Validates the parts of PodTransitionRules that the schema cannot: expressions, selectors, time
//! zones and certificates. Sends no requests. A rule admitted while the webhook is unavailable
//! reports the same errors in its condition Degraded.

use std::collections::BTreeSet;

use kube::core::{DynamicObject, Status, admission::AdmissionRequest};
use podops_api::transition_rule::{PodTransitionRule, TransitionRule};
use podops_runtime::shell::admission::{Handler, Handlers, Verdict};

use super::webhook_client;
use crate::view::RuleView;

/// Name of the webhook in `deploy/components/rule-admission`, the same as Kuperator's.
const WEBHOOK: &str = "validating-podtransitionrule.apps.kusionstack.io";

/// Admission handlers by webhook name.
pub(super) fn handlers() -> Handlers {
    let handler: Handler = Box::new(|request| Box::pin(std::future::ready(review(request))));
    Handlers::from([(WEBHOOK, handler)])
}

fn review(request: AdmissionRequest<DynamicObject>) -> Verdict {
    let spec = |object: &Option<DynamicObject>| object.as_ref().map(|o| o.data["spec"].clone());
    // The stored spec may be invalid already; changes of labels and finalizers must still be
    // allowed.
    if spec(&request.object) == spec(&request.old_object) {
        return Verdict::Allow;
    }
    let Some(object) = request.object else { return Verdict::Allow };
    let rule = serde_json::to_value(object).and_then(serde_json::from_value);
    let validation_errors = match rule {
        Ok(rule) => validation_errors(&rule),
        Err(error) => vec![error.to_string()],
    };
    if validation_errors.is_empty() {
        return Verdict::Allow;
    }
    let status = Status { code: 422, ..Status::failure(&validation_errors.join("; "), "Invalid") };
    Verdict::Deny(Box::new(status))
}

/// Validation errors of a rule, each with its field.
fn validation_errors(rule: &PodTransitionRule) -> Vec<String> {
    let mut validation_errors = match RuleView::read(rule, &BTreeSet::new()) {
        Ok(view) => view.validation_errors,
        Err(error) => vec![format!("spec.selector: {error}")],
    };
    let is_active = |rule: &&TransitionRule| !rule.disabled && rule.conditions.is_empty();
    validation_errors.extend(rule.spec.rules.iter().filter(is_active).flat_map(ca_bundle_errors));
    validation_errors
}

fn ca_bundle_errors(rule: &TransitionRule) -> Vec<String> {
    let Some(client) = rule.webhook.as_ref().map(|webhook| &webhook.client_config) else {
        return Vec::new();
    };
    let poll = client.poll.as_ref().and_then(|poll| poll.ca_bundle.as_deref());
    let bundles = [("caBundle", client.ca_bundle.as_deref()), ("poll.caBundle", poll)];
    let unreadable = bundles.iter().filter(|(_, bundle)| !webhook_client::is_ca_bundle(*bundle));
    unreadable
        .map(|(field, _)| {
            let field_path = format!("spec.rules[{}].webhook.clientConfig.{field}", rule.name);
            format!("{field_path}: must be base64-encoded PEM")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rule(rule: Value) -> Value {
        let mut rule = rule;
        rule["name"] = json!("one");
        json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "r" }, "spec": { "selector": {}, "rules": [rule] },
        })
    }

    fn rejection(object: &Value, before: &Value) -> String {
        let request = json!({
            "uid": "1", "kind": { "group": "", "version": "", "kind": "" },
            "resource": { "group": "", "version": "", "resource": "" },
            "operation": "UPDATE", "userInfo": {}, "object": object, "oldObject": before,
        });
        match review(serde_json::from_value(request).unwrap()) {
            Verdict::Allow => String::new(),
            Verdict::Deny(status) => status.message,
        }
    }

    #[test]
    fn invalid_rules_are_rejected_with_their_field() {
        let bundle = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCm5vCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K";
        for (bad, reason) in [
            (
                json!({ "cel": { "expression": "pod.metadata.name ==" } }),
                "spec.rules[one].cel.expression",
            ),
            (json!({ "cel": { "expression": "unknown.field" } }), "unknown variable unknown"),
            (
                json!({ "schedule": { "timeZone": "Europe/Atlantis", "windows": [] } }),
                "spec.rules[one].schedule.timeZone: unknown time zone Europe/Atlantis",
            ),
            (
                json!({ "webhook": { "clientConfig": { "url": "https://a", "caBundle": bundle } } }),
                "spec.rules[one].webhook.clientConfig.caBundle: must be base64-encoded PEM",
            ),
            (
                json!({ "webhook": { "clientConfig": { "url": "https://a", "poll": { "url": "https://a", "caBundle": bundle } } } }),
                "clientConfig.poll.caBundle",
            ),
        ] {
            let message = rejection(&rule(bad.clone()), &Value::Null);
            assert!(message.contains(reason), "{bad}: {message}");
            assert_eq!(
                rejection(&rule(bad.clone()), &rule(bad)),
                "",
                "an unchanged spec is allowed"
            );
        }
        let good = rule(json!({ "cel": { "expression": "pod.metadata.name != ''" } }));
        assert_eq!(rejection(&good, &Value::Null), "");
    }
}
