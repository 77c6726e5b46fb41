//! Reviews of Pods in the text form of the plan's tests.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{graceful_deletion::decision::tests::candidate, plan::tests::now};

const AVAILABLE: &str = "open ready available";

/// Returns an eviction with these delete options.
fn eviction(options: &Value) -> AdmissionRequest<DynamicObject> {
    serde_json::from_value(json!({
        "uid": "1",
        "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
        "resource": { "group": "", "version": "v1", "resource": "pods" },
        "subResource": "eviction",
        "name": "web-1",
        "namespace": "ns",
        "operation": "CREATE",
        "userInfo": { "username": "drain" },
        "object": {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": "web-1", "namespace": "ns" },
            "deleteOptions": options,
        },
    }))
    .unwrap()
}

fn request(kind: RequestKind, options: &Value) -> DeletionRequest {
    DeletionRequest::read(kind, &eviction(options))
}

/// Returns the action as text: `allow`, or the changes before the denial.
fn action(request: &DeletionRequest, pod: &str, default: DeletionPolicy) -> String {
    match request.action(&candidate(pod), default, now()) {
        Action::Allow => "allow".to_owned(),
        Action::Defer(Deferral { consumes_disruption, label, .. }) => {
            let consume = if consumes_disruption { "consume " } else { "" };
            format!("{consume}{}", label.unwrap_or("deny"))
        }
    }
}

#[test]
fn an_eviction_consumes_a_disruption_unless_the_pod_is_replaced() {
    let eviction = request(RequestKind::Evict, &Value::Null);
    let check = |pod, default, expected| assert_eq!(action(&eviction, pod, default), expected);
    let consume = format!("consume {}", well_known::TO_DELETE);
    check(AVAILABLE, DeletionPolicy::Delete, &*consume);
    check(AVAILABLE, DeletionPolicy::Replace, well_known::TO_REPLACE);
    check("open ready to-delete", DeletionPolicy::Delete, "consume deny");
    check("closed to-delete", DeletionPolicy::Delete, "deny");
}

#[test]
fn a_delete_request_consumes_no_disruption() {
    let delete = request(RequestKind::Delete, &Value::Null);
    assert_eq!(action(&delete, AVAILABLE, DeletionPolicy::Delete), well_known::TO_DELETE);
    assert_eq!(action(&delete, "open ready to-delete", DeletionPolicy::Delete), "deny");
    assert_eq!(action(&delete, "deleting", DeletionPolicy::Delete), "allow");
}

#[test]
fn a_dry_run_changes_nothing() {
    let options = json!({ "dryRun": ["All"] });
    let eviction = request(RequestKind::Evict, &options);
    assert!(eviction.dry_run);
    assert_eq!(action(&eviction, AVAILABLE, DeletionPolicy::Delete), "allow");
    let delete = request(RequestKind::Delete, &options);
    assert_eq!(action(&delete, AVAILABLE, DeletionPolicy::Delete), "deny");
    assert!(!request(RequestKind::Evict, &json!({ "dryRun": [] })).dry_run);
}

#[test]
fn an_eviction_applies_to_the_pod_of_its_preconditions() {
    let pod = ObjectMeta {
        uid: Some("1".to_owned()),
        resource_version: Some("7".to_owned()),
        ..ObjectMeta::default()
    };
    for (preconditions, matches) in [
        (json!(null), true),
        (json!({ "uid": "1", "resourceVersion": "7" }), true),
        (json!({ "uid": "2" }), false),
        (json!({ "uid": "1", "resourceVersion": "6" }), false),
    ] {
        let options = json!({ "preconditions": preconditions });
        let eviction = request(RequestKind::Evict, &options);
        assert_eq!(eviction.matches_preconditions(&pod), matches, "{options}");
    }
}

/// Code, reason and causes of a status.
fn summary(status: Status) -> (u16, String, BTreeMap<String, String>) {
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    let causes = causes.into_iter().map(|cause| (cause.reason, cause.message)).collect();
    (status.code, status.reason, causes)
}

#[test]
fn evictions_are_denied_with_a_status_that_clients_retry() {
    let causes = |reason: &str, text: &str| BTreeMap::from([(reason.to_owned(), text.to_owned())]);
    let retry = "TooManyRequests".to_owned();
    let deferred = summary(RequestKind::Evict.deferred("waiting"));
    assert_eq!(deferred, (429, retry.clone(), causes("PodOpsLifecycle", "waiting")));
    let failed = summary(RequestKind::Evict.failed("timeout"));
    let message = "cannot start graceful deletion: timeout; retry";
    assert_eq!(failed, (429, retry.clone(), causes("PodOpsLifecycle", message)));
    let exhausted = summary(denied_by_budget(Denial::conflicted(10)));
    assert_eq!(exhausted, (429, retry, causes("DisruptionBudget", "")));
    let several = Denial { retryable: false, ..Denial::conflicted(10) };
    let denied = summary(denied_by_budget(several));
    assert_eq!(denied, (500, "InternalError".to_owned(), BTreeMap::new()));
}

#[test]
fn delete_requests_are_denied_or_may_be_retried() {
    let deferred = summary(RequestKind::Delete.deferred("waiting"));
    assert_eq!(deferred, (403, "Forbidden".to_owned(), BTreeMap::new()));
    let failed = summary(RequestKind::Delete.failed("timeout"));
    assert_eq!(failed, (503, "ServiceUnavailable".to_owned(), BTreeMap::new()));
}
