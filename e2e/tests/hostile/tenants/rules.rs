//! Rules that cost time or memory, and Pods that wait for them.

use std::net::SocketAddr;

use podops_api::well_known;
use podops_test_cluster::{
    cluster::{TIMEOUT, eventually},
    tenant::Tenant,
};
use serde_json::{Value, json};

/// Number of Pods with 250 KiB each.
const LARGE_PODS: usize = 60;

/// Creates Pods, one with a large annotation and one with many, and starts an operation on each
/// once the rules apply to it.
pub(super) async fn create_waiting_pods(tenant: &Tenant<'_>) {
    let many: serde_json::Map<_, _> = (0..1400).map(|n| (format!("n{n}"), json!(""))).collect();
    let pods = [
        ("large", json!({ "x": "x".repeat(250 << 10) })),
        ("many", Value::Object(many)),
        ("frozen", json!({})),
        ("silent", json!({ "x": "x".repeat(250 << 10) })),
    ];
    for (name, annotations) in pods {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "annotations": annotations,
                "labels": { "app": name, well_known::CONTROL: "true" },
            },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        tenant.create(&pod).await.unwrap();
        tenant.start_operations(name, 1).await.unwrap();
    }
}

/// Creates more Pods than fit into memory, each with a large annotation, which wait for a rule that
/// reads all of them.
pub(super) async fn create_large_pods(tenant: &Tenant<'_>) {
    let pods = (0..LARGE_PODS).map(|n| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("whole-{n}"), "annotations": { "x": "x".repeat(250 << 10) },
                "labels": { "app": "whole", well_known::CONTROL: "true" },
            },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        })
    });
    let pods: Vec<Value> = pods.collect();
    tenant.create(&json!({ "apiVersion": "v1", "kind": "List", "items": pods })).await.unwrap();
    tenant.start_operations("whole", LARGE_PODS).await.unwrap();
}

/// Number of Pods for which expensive rules are evaluated.
const COSTLY_PODS: usize = 10;
/// Number of labels of each, which the expressions compare with each other.
const COSTLY_LABELS: usize = 150;
/// Number of PodTransitionRules with the maximum number of expressions, each just below the limit.
const COSTLY_RULES: usize = 3;
/// Number of PodTransitionRules whose expressions, 32 each, are all different.
const DISTINCT_RULES: usize = 10;

/// Creates rules whose expressions cost almost as much as is permitted, and deny in the end, and
/// Pods for which they are evaluated again and again. Other rules have hundreds of different
/// expressions.
pub(super) async fn create_costly_rules(tenant: &Tenant<'_>) {
    let each = "pod.metadata.labels.all(x, pod.metadata.labels.all(y, x != y || true))";
    let expressions = (0..32).map(|n| if n < 31 { each.to_owned() } else { format!("!{each}") });
    let rules = expressions.enumerate().map(
        |(n, expression)| json!({ "name": format!("n{n}"), "cel": { "expression": expression } }),
    );
    let rules = json!(rules.collect::<Vec<_>>());
    for n in 0..COSTLY_RULES {
        tenant.create_rule(&format!("costly-{n}"), "costly", &rules).await.unwrap();
    }
    for n in 0..DISTINCT_RULES {
        let rules = (0..32).map(|i| {
            let expression = format!("pod.metadata.name != 'never-{n}-{i}'");
            json!({ "name": format!("n{i}"), "cel": { "expression": expression } })
        });
        let rules = json!(rules.collect::<Vec<_>>());
        tenant.create_rule(&format!("distinct-{n}"), "frozen", &rules).await.unwrap();
    }
    let pods = (0..COSTLY_PODS).map(|n| {
        let labels = (0..COSTLY_LABELS).map(|n| (format!("l{n}"), json!("")));
        let mut labels: serde_json::Map<_, _> = labels.collect();
        labels.insert("app".to_owned(), json!("costly"));
        labels.insert(well_known::CONTROL.to_owned(), json!("true"));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("costly-{n}"), "labels": labels },
            "spec": {
                "schedulingGates": [{ "name": "podops.test/never" }],
                "containers": [{ "name": "web", "image": "nginx:1" }],
            },
        })
    });
    let pods: Vec<Value> = pods.collect();
    let pods = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
    tenant.create(&pods).await.unwrap();
    tenant.start_operations("costly", COSTLY_PODS).await.unwrap();
}

/// Creates rules that are too expensive, and webhook rules whose service, at `silent`, never
/// answers.
pub(super) async fn create_rules(tenant: &Tenant<'_>, silent: SocketAddr) {
    let sum = ["pod.metadata.annotations.x"; 55].join(" + ");
    let ones = ["1"; 64].join(",");
    let memory = json!([{
        "name": "memory", "cel": { "expression": format!("[{ones}].map(i, {sum}).size() > 0") },
    }]);
    let nested = "pod.metadata.annotations.all(x, pod.metadata.annotations.all(y, x != y || true))";
    let many = (0..32).map(|n| json!({ "name": format!("n{n}"), "cel": { "expression": nested } }));
    let freeze = json!({ "from": "2020-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z" });
    let frozen = json!([{ "name": "freeze", "schedule": { "freezes": [freeze] } }]);
    let whole = json!([{
        "name": "whole", "cel": { "expression": "[pod].exists(p, p.spec.nodeName == 'never')" },
    }]);
    let many = json!(many.collect::<Vec<_>>());
    let rules = [
        ("large", memory),
        ("many", many),
        ("frozen", frozen),
        ("whole", whole),
        ("silent", webhooks(silent, 64)),
    ];
    for (name, rules) in rules {
        tenant.create_rule(name, name, &rules).await.unwrap();
    }
    for n in 0..QUEUED_RULES {
        tenant.create_rule(&format!("queued-{n}"), "silent", &webhooks(silent, 3)).await.unwrap();
    }
}

/// Number of PodTransitionRules whose requests have almost their maximum size: together, 240 MiB.
const QUEUED_RULES: usize = 10;

/// The maximum number of webhook rules, each with so many parameters, which have all annotations of
/// a Pod.
fn webhooks(service: SocketAddr, parameters: usize) -> Value {
    let parameters = (0..parameters).map(|n| {
        let field = json!({ "fieldRef": { "fieldPath": "metadata.annotations" } });
        json!({ "key": format!("p{n}"), "valueFrom": field })
    });
    let parameters = json!(parameters.collect::<Vec<_>>());
    let webhooks = (0..32).map(|n| {
        let client = json!({ "url": format!("http://{service}/{n}") });
        let webhook = json!({
            "clientConfig": client, "failurePolicy": "Fail", "timeoutSeconds": 30,
            "parameters": parameters,
        });
        json!({ "name": format!("n{n}"), "webhook": webhook })
    });
    json!(webhooks.collect::<Vec<_>>())
}

pub(super) async fn rules_report_their_errors(tenant: &Tenant<'_>) {
    let expected = [
        ("large", "may take more than"),
        ("many", "may take more than"),
        ("frozen", "frozen until 9999"),
        ("whole", "waiting Pods exceed 8 MiB"),
    ];
    for (rule, reason) in expected {
        let is_reported = async || {
            let status = tenant.kubectl(&["get", "podtransitionrule", rule, "-o", "json"]).await?;
            Ok(status.contains(reason))
        };
        let reported = eventually(TIMEOUT, is_reported).await;
        if reported.is_err() {
            let rule = tenant.kubectl(&["get", "podtransitionrule", rule, "-o", "yaml"]).await;
            panic!("{rule:?}");
        }
    }
}
