//! Admission webhook that validates PodTransitionRules. Sends no requests. A rule admitted while
//! the webhook is unavailable reports the same errors in its condition Degraded.

use kube::core::{DynamicObject, Status, admission::AdmissionRequest};
use podops_admission::{Handler, Handlers, Verdict, Webhooks};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::webhook_client::is_ca_bundle;
use crate::admission::validation_errors;

/// Name of the webhook in `deploy/components/rule-admission`, the same as Kuperator's.
const WEBHOOK: &str = "validating-podtransitionrule.apps.kusionstack.io";

/// The operator's admission webhooks.
pub(super) fn webhooks() -> Webhooks {
    let handler: Handler = Box::new(|request| Box::pin(review_off_thread(request)));
    Webhooks { validating: Handlers::from([(WEBHOOK, handler)]), ..Webhooks::default() }
}

/// Reviews in a thread of its own, which waits while expressions are parsed.
async fn review_off_thread(request: AdmissionRequest<DynamicObject>) -> Verdict {
    spawn_blocking(move || review(request)).await.unwrap_or_else(|error| {
        let message = format!("the review failed: {error}");
        Verdict::Deny(Box::new(Status { code: 500, ..Status::failure(&message, "InternalError") }))
    })
}

fn review(request: AdmissionRequest<DynamicObject>) -> Verdict {
    // The stored spec may be invalid already; changes of labels and finalizers must still be
    // allowed.
    if spec(request.object.as_ref()) == spec(request.old_object.as_ref()) {
        return Verdict::Allow;
    }
    let Some(object) = request.object else { return Verdict::Allow };
    let rule = serde_json::to_value(object).and_then(serde_json::from_value);
    let validation_errors = match rule {
        Ok(rule) => validation_errors(&rule, is_ca_bundle),
        Err(error) => vec![error.to_string()],
    };
    if validation_errors.is_empty() {
        return Verdict::Allow;
    }
    let status = Status { code: 422, ..Status::failure(&validation_errors.join("; "), "Invalid") };
    Verdict::Deny(Box::new(status))
}

fn spec(object: Option<&DynamicObject>) -> Option<&Value> {
    object.map(|object| &object.data["spec"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            Verdict::Allow | Verdict::Mutate(_) => String::new(),
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
