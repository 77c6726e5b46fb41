//! Answers the API server about rules that its schema cannot judge: expressions, selectors, time zones
//! and certificates. No request leaves the process; a rule that is admitted while nobody answers says
//! the same in its Degraded condition.

use std::collections::BTreeSet;

use kube::core::{DynamicObject, Status, admission::AdmissionRequest};
use podops_api::transition_rule::{PodTransitionRule, TransitionRule};
use podops_runtime::shell::admission::{Handler, Handlers, Verdict};

use super::webhook_client;
use crate::view::RuleView;

/// The name of the webhook, as `deploy/components/rule-admission` has it; Kuperator's.
const RULES: &str = "validating-podtransitionrule.apps.kusionstack.io";

/// The webhook's handler.
pub(super) fn handlers() -> Handlers {
    let handler: Handler = Box::new(|request| Box::pin(std::future::ready(review(request))));
    Handlers::from([(RULES, handler)])
}

fn review(request: AdmissionRequest<DynamicObject>) -> Verdict {
    let spec = |object: &Option<DynamicObject>| object.as_ref().map(|o| o.data["spec"].clone());
    // What is stored may be bad from before; its labels and finalizers can still be changed.
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

/// What is wrong with a rule, each with its field.
fn validation_errors(rule: &PodTransitionRule) -> Vec<String> {
    let mut validation_errors = match RuleView::read(rule, &BTreeSet::new()) {
        Ok(view) => view.validation_errors,
        Err(error) => vec![format!("spec.selector: {error}")],
    };
    let counts = |rule: &&TransitionRule| !rule.disabled && rule.conditions.is_empty();
    validation_errors.extend(rule.spec.rules.iter().filter(counts).flat_map(certificates));
    validation_errors
}

fn certificates(rule: &TransitionRule) -> Vec<String> {
    let Some(client) = rule.webhook.as_ref().map(|webhook| &webhook.client_config) else {
        return Vec::new();
    };
    let poll = client.poll.as_ref().and_then(|poll| poll.ca_bundle.as_deref());
    let bundles = [("caBundle", client.ca_bundle.as_deref()), ("poll.caBundle", poll)];
    let unreadable = bundles.iter().filter(|(_, bundle)| !webhook_client::is_authority(*bundle));
    unreadable
        .map(|(field, _)| {
            let place = format!("spec.rules[{}].webhook.clientConfig.{field}", rule.name);
            format!("{place}: no certificate can be read from it")
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

    fn reported(object: &Value, before: &Value) -> String {
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
    fn what_the_schema_cannot_judge_is_told_with_its_field() {
        let bundle = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCm5vCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K";
        for (bad, reason) in [
            (
                json!({ "cel": { "expression": "pod.metadata.name ==" } }),
                "spec.rules[one].cel.expression",
            ),
            (json!({ "cel": { "expression": "nobody.knows" } }), "nobody is not known"),
            (
                json!({ "schedule": { "timeZone": "Europe/Atlantis", "windows": [] } }),
                "spec.rules[one].schedule.timeZone: Europe/Atlantis is not known",
            ),
            (
                json!({ "webhook": { "clientConfig": { "url": "https://a", "caBundle": bundle } } }),
                "spec.rules[one].webhook.clientConfig.caBundle: no certificate can be read from it",
            ),
            (
                json!({ "webhook": { "clientConfig": { "url": "https://a", "poll": { "url": "https://a", "caBundle": bundle } } } }),
                "clientConfig.poll.caBundle",
            ),
        ] {
            let told_of = reported(&rule(bad.clone()), &Value::Null);
            assert!(told_of.contains(reason), "{bad}: {told_of}");
            assert_eq!(reported(&rule(bad.clone()), &rule(bad)), "", "it is stored already");
        }
        let good = rule(json!({ "cel": { "expression": "pod.metadata.name != ''" } }));
        assert_eq!(reported(&good, &Value::Null), "");
    }
}
