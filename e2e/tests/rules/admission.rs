//! Objects that the API server rejects by the shipped CRDs alone, without webhooks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use kube::api::{Patch, PatchParams, PostParams};
use podops_api::transition_rule::{FailurePolicy, PodTransitionRule};
use podops_test_cluster::{
    control_plane::ControlPlane,
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

fn set(name: &str, changes: &Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
            },
        },
    });
    json_patch_merge(&mut set["spec"], changes);
    set
}

fn json_patch_merge(into: &mut Value, changes: &Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                json_patch_merge(into.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

fn crds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds")
}

/// Invalid changes of a valid CollaSet's spec, with a part of the expected error.
fn invalid_sets() -> Vec<(Value, &'static str)> {
    let rolling = |partition: i32| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } });
    vec![
        (json!({ "replicas": -1 }), "spec.replicas: replicas should not be smaller than 0"),
        (json!({ "replicas": 20_000 }), "spec.replicas: replicas should not be greater than 10000"),
        (
            json!({ "selector": { "matchLabels": { "app": "other" } } }),
            "selector does not match labels in pod template",
        ),
        (
            json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["web"] }] } }),
            "spec.selector.matchExpressions: selector does not match",
        ),
        (
            json!({ "updateStrategy": { "podUpgradePolicy": "Sometimes" } }),
            "spec.updateStrategy.podUpgradePolicy: Unsupported value",
        ),
        (rolling(-1), "partition should not be smaller than 0"),
        (
            json!({ "scaleStrategy": { "context": "Not_A_Label" } }),
            "spec.scaleStrategy.context: context should be a DNS label",
        ),
        (
            json!({ "updateStrategy": { "operationDelaySeconds": -1 } }),
            "operationDelaySeconds should not be smaller than 0",
        ),
        (
            json!({ "namingStrategy": { "podNamingSuffixPolicy": "Funny" } }),
            "spec.namingStrategy.podNamingSuffixPolicy: Unsupported value",
        ),
        (
            json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" }, "scaleStrategy": { "podToExclude": ["a"] } }),
            "podToExclude and podToInclude are not allowed",
        ),
        (json!({ "template": { "spec": { "containers": [] } } }), "spec.template.spec.containers"),
        (
            json!({ "historyLimit": -1 }),
            "spec.historyLimit: historyLimit should not be smaller than 0",
        ),
    ]
    .into_iter()
    .chain(incomplete())
    .chain(intersections())
    .chain(invalid_update_strategies())
    .collect()
}

/// Specs with missing or malformed fields, with a part of the expected error.
fn incomplete() -> Vec<(Value, &'static str)> {
    vec![
        (json!({ "selector": null }), "spec.selector: Required value"),
        (
            json!({ "minReadySeconds": 30, "progressDeadlineSeconds": 30 }),
            "progressDeadlineSeconds should be larger than minReadySeconds",
        ),
        (
            json!({ "selector": { "matchLabels": null } }),
            "spec.selector: an empty selector selects the Pods of all workloads",
        ),
        (
            json!({ "selector": { "matchLabels": null, "matchExpressions": [] } }),
            "spec.selector: an empty selector selects the Pods of all workloads",
        ),
        (
            json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "Near" }] } }),
            "spec.selector.matchExpressions[0].operator: Unsupported value",
        ),
        (
            json!({ "selector": { "matchLabels": null }, "template": { "metadata": { "labels": null } } }),
            "spec.template.metadata.labels: labels is required",
        ),
        (
            json!({ "scaleStrategy": { "operationDelaySeconds": -1 } }),
            "spec.scaleStrategy.operationDelaySeconds: operationDelaySeconds should not be smaller than 0",
        ),
        (
            json!({ "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Keep" } } }),
            "whenScaled: Unsupported value",
        ),
        (
            json!({ "template": { "spec": { "containers": [{ "name": "Web_1", "image": "nginx" }] } } }),
            "spec.template.spec.containers[0].name: Invalid value",
        ),
        (
            json!({ "template": { "spec": { "containers": [{ "name": "web" }] } } }),
            "spec.template.spec.containers[0].image: Required value",
        ),
        (
            json!({ "template": { "spec": { "restartPolicy": "Sometimes" } } }),
            "spec.template.spec.restartPolicy: Unsupported value",
        ),
        (
            json!({ "volumeClaimTemplates": [{ "metadata": { "name": "a" }, "spec": {} }, { "metadata": { "name": "a" }, "spec": {} }] }),
            "spec.volumeClaimTemplates: names should be unique",
        ),
        (json!({ "minReadySeconds": -1 }), "minReadySeconds should not be smaller than 0"),
        (
            json!({ "progressDeadlineSeconds": 0 }),
            "progressDeadlineSeconds should not be smaller than 1",
        ),
    ]
}

/// Lists of Pods that must not intersect, with a part of the expected error.
fn intersections() -> Vec<(Value, &'static str)> {
    let both =
        |one: &str, other: &str| json!({ "scaleStrategy": { one: ["a", "b"], other: ["b"] } });
    vec![
        (
            both("podToExclude", "podToInclude"),
            "scaleStrategy.podToExclude[podToInclude] should not have intersection",
        ),
        (
            both("podToDelete", "podToInclude"),
            "scaleStrategy.podToDelete[podToInclude] should not have intersection",
        ),
        (
            both("podToDelete", "podToExclude"),
            "scaleStrategy.podToDelete[podToExclude] should not have intersection",
        ),
    ]
}

/// Invalid update strategies, with a part of the expected error.
fn invalid_update_strategies() -> Vec<(Value, &'static str)> {
    let update = |policy: &str, rolling: Value| json!({ "updateStrategy": { "podUpgradePolicy": policy, "rollingUpdate": rolling } });
    let percentage =
        |value: &str| update("Recreate", json!({ "byPartition": { "partition": value } }));
    vec![
        (
            percentage("101%"),
            "partition should not be smaller than 0, or be a percentage up to 100%",
        ),
        (
            update("Recreate", json!({ "byPartition": { "partition": 3_000_000_000_u64 } })),
            "byPartition.partition: partition should not be",
        ),
        (percentage("half"), "byPartition.partition: partition should not be"),
        (
            update("Recreate", json!({ "maxUnavailable": -1 })),
            "maxUnavailable should be a number not smaller than 0, or a percentage",
        ),
        (
            update("Recreate", json!({ "maxUnavailable": 0 })),
            "maxUnavailable must not be 0 unless podUpgradePolicy is Replace",
        ),
        (
            update("InPlaceIfPossible", json!({ "maxUnavailable": "0%" })),
            "maxUnavailable must not be 0 unless podUpgradePolicy is Replace",
        ),
        (
            update("Replace", json!({ "maxSurge": "0%" })),
            "maxSurge must not be 0 when podUpgradePolicy is Replace",
        ),
        (
            update("Replace", json!({ "maxSurge": "many" })),
            "maxSurge should be a number not smaller than 0, or a percentage",
        ),
        (
            json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceOnly", "resize": { "onInfeasible": "Recreate" } } }),
            "spec.updateStrategy.resize: Recreate is not allowed when podUpgradePolicy is InPlaceOnly",
        ),
        (
            json!({ "updateStrategy": { "resize": { "onDeferred": "Hope" } } }),
            "spec.updateStrategy.resize.onDeferred: Unsupported value",
        ),
        (
            json!({ "updateStrategy": { "revision": "x".repeat(64) } }),
            "revision should be the name of a ControllerRevision",
        ),
    ]
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, invalid_collasets_are_rejected_with_field_and_reason)
        .scenario(Lane::Beside, invalid_rules_are_rejected_with_field_and_reason)
}

fn without_replicas() -> Value {
    let mut set = set("without", &json!({}));
    set["spec"].as_object_mut().unwrap().remove("replicas");
    set
}

async fn invalid_collasets_are_rejected_with_field_and_reason() {
    let plane = ControlPlane::start().await.unwrap();
    plane.kubectl(&["apply", "--server-side", "-k", &crds().display().to_string()]).await.unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    plane.kubectl(&established).await.unwrap();
    let kind = kube::core::ApiResource::erase::<podops_api::collaset::CollaSet>(&());
    let sets = kube::Api::<kube::core::DynamicObject>::namespaced_with(
        plane.admin.clone(),
        "default",
        &kind,
    );
    let create = async |name: &str, changes: Value| {
        let object = serde_json::from_value(set(name, &changes)).unwrap();
        sets.create(&PostParams::default(), &object).await
    };

    for (index, (changes, reason)) in invalid_sets().into_iter().enumerate() {
        let error = create(&format!("bad-{index}"), changes.clone())
            .await
            .expect_err(&changes.to_string())
            .to_string();
        assert!(error.contains(reason), "{changes}: {error}");
    }

    let by_sequence =
        json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    for name in ["dotted.name".to_owned(), "x".repeat(62)] {
        let error = create(&name, by_sequence.clone()).await.expect_err(&name).to_string();
        assert!(
            error.contains("metadata.name: name should be a DNS label of at most 61"),
            "{error}"
        );
    }
    // Instance IDs of two digits would yield hostnames of 64 characters.
    let mut many = by_sequence.clone();
    many["replicas"] = json!(11);
    let name = "x".repeat(61);
    let error = create(&name, many).await.expect_err(&name).to_string();
    assert!(error.contains("name is too long for this number of replicas"), "{error}");
    create(&name, by_sequence.clone()).await.unwrap();
    let valid = json!({ "updateStrategy": {
        "podUpgradePolicy": "Replace",
        "rollingUpdate": { "byPartition": { "partition": "50%" }, "maxUnavailable": 0, "maxSurge": "25%" },
    } });
    create("valid", valid).await.unwrap();
    // Fields that charts leave empty, because Kuperator's webhook sets their defaults.
    let empty = json!({
        "updateStrategy": { "podUpgradePolicy": "" },
        "namingStrategy": { "podNamingSuffixPolicy": "" },
        "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "" } },
        "template": { "spec": { "restartPolicy": "" } },
    });
    let empty = create("empty", empty).await.unwrap();
    let read = serde_json::to_value(&empty).unwrap();
    serde_json::from_value::<podops_api::collaset::CollaSet>(read).unwrap();

    let newer = json!({ "template": { "spec": { "hostUsers": false, "fieldOfTheFuture": 1 } } });
    let good = create("good", newer).await.unwrap().data;
    assert_eq!(
        good["spec"]["template"]["spec"]["fieldOfTheFuture"], 1,
        "unknown template fields must be preserved"
    );
    assert_eq!(good["spec"]["updateStrategy"]["podUpgradePolicy"], "InPlaceIfPossible");
    assert_eq!(good["spec"]["updateStrategy"]["rollingUpdate"], json!({ "byPartition": {} }));
    assert_eq!(good["spec"]["historyLimit"], 20);
    let without = serde_json::from_value(without_replicas()).unwrap();
    let without = sets.create(&PostParams::default(), &without).await.unwrap().data;
    assert_eq!(without["spec"]["replicas"], 1, "an autoscaler needs a number");

    let other_context = Patch::Merge(json!({ "spec": { "scaleStrategy": { "context": "pool" } } }));
    let error =
        sets.patch("good", &PatchParams::default(), &other_context).await.unwrap_err().to_string();
    assert!(error.contains("scaleStrategy.context is not allowed to be changed"), "{error}");
    plane.kubectl(&["scale", "collaset", "good", "--replicas=3"]).await.unwrap();
    assert_eq!(sets.get("good").await.unwrap().data["spec"]["replicas"], 3);
}

/// Invalid rules, with a part of the expected error.
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_rules() -> Vec<(Value, &'static str)> {
    let available = |policy: Value| json!({ "availablePolicy": policy });
    let webhook = |config: Value| json!({ "webhook": { "clientConfig": config } });
    let (schedule, kind) = (|spec: Value| json!({ "schedule": spec }), "exactly one of");
    vec![
        (json!({}), kind),
        (json!({ "labelCheck": { "requires": {} }, "disruptionBudget": {} }), kind),
        (json!({ "name": "", "disruptionBudget": {} }), "spec.rules[0].name: Invalid value"),
        (
            json!({ "disruptionBudget": {}, "stage": "Always" }),
            "spec.rules[0].stage: Unsupported value",
        ),
        (
            json!({ "disruptionBudget": {}, "mode": "Maybe" }),
            "spec.rules[0].mode: Unsupported value",
        ),
        (available(json!({})), "one of maxUnavailableValue and minAvailableValue is required"),
        (
            available(json!({ "maxUnavailableValue": "101%" })),
            "spec.rules[0].availablePolicy.maxUnavailableValue",
        ),
        (
            available(json!({ "maxUnavailableValue": "5" })),
            "spec.rules[0].availablePolicy.maxUnavailableValue: Invalid value: \"5\"",
        ),
        (available(json!({ "minAvailableValue": -1 })), "should be greater than or equal to 0"),
        (
            available(json!({ "maxUnavailablePolicy": { "expFunc": { "pow": "-1" } } })),
            "expFunc.pow: Invalid value",
        ),
        (json!({ "labelCheck": {} }), "spec.rules[0].labelCheck.requires: Required value"),
        (
            json!({ "labelCheck": { "requires": { "matchExpressions": [{ "key": "a", "operator": "In" }] } } }),
            "values is required for In and NotIn",
        ),
        (
            webhook(json!({ "url": "ftp://example.com" })),
            "spec.rules[0].webhook.clientConfig.url: Invalid value",
        ),
        (webhook(json!({ "url": "example.com" })), "an http or https URL is required"),
        (
            webhook(json!({ "url": "https://example.com", "caBundle": "bm90IFBFTQ==" })),
            "clientConfig.caBundle: Invalid value",
        ),
        (
            webhook(
                json!({ "url": "http://a.example", "poll": { "url": "http://a.example", "intervalSeconds": 0 } }),
            ),
            "poll.intervalSeconds: Invalid value",
        ),
        (schedule(json!({})), "one of windows and freezes is required"),
        (
            schedule(
                json!({ "timeZone": "Mars/Olympus", "windows": [{ "from": "10:00", "to": "11:00" }] }),
            ),
            "spec.rules[0].schedule.timeZone",
        ),
        (
            schedule(
                json!({ "timeZone": "+02:00", "windows": [{ "from": "10:00", "to": "11:00" }] }),
            ),
            "spec.rules[0].schedule.timeZone",
        ),
        (
            schedule(json!({ "windows": [{ "from": "25:00", "to": "11:00" }] })),
            "windows[0].from: Invalid value",
        ),
        (
            schedule(json!({ "windows": [{ "from": "10:00", "to": "10:00" }] })),
            "from and to should differ",
        ),
        (
            schedule(
                json!({ "windows": [{ "from": "10:00", "to": "11:00", "days": ["Someday"] }] }),
            ),
            "windows[0].days[0]: Unsupported value",
        ),
        (
            schedule(
                json!({ "freezes": [{ "from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z" }] }),
            ),
            "to should be later than from",
        ),
        (
            json!({ "topologySpread": { "topologyKey": "zone", "maxUnavailable": 0 } }),
            "maxUnavailable: Invalid value",
        ),
        (json!({ "cel": { "expression": "" } }), "spec.rules[0].cel.expression: Invalid value"),
    ]
}

async fn invalid_rules_are_rejected_with_field_and_reason() {
    let plane = ControlPlane::start().await.unwrap();
    plane.kubectl(&["apply", "--server-side", "-k", &crds().display().to_string()]).await.unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    plane.kubectl(&established).await.unwrap();
    let kind = kube::core::ApiResource::erase::<PodTransitionRule>(&());
    let all = kube::Api::<kube::core::DynamicObject>::namespaced_with(
        plane.admin.clone(),
        "default",
        &kind,
    );
    let create = async |name: &str, rules: Value| {
        let object = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": name }, "spec": { "selector": {}, "rules": rules },
        });
        all.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    };
    let with_name = |mut rule: Value| {
        if rule.get("name").is_none() {
            rule["name"] = json!("one");
        }
        rule
    };
    for (index, (rule, reason)) in invalid_rules().into_iter().enumerate() {
        let created = create(&format!("bad-{index}"), json!([with_name(rule.clone())])).await;
        let error = created.expect_err(&rule.to_string()).to_string();
        assert!(error.contains(reason), "{rule}: {error}");
    }
    let one = with_name(json!({ "disruptionBudget": {} }));
    let twice = create("twice", json!([one, one])).await.unwrap_err().to_string();
    assert!(twice.contains("spec.rules[1]: Duplicate value"), "{twice}");
    let long = create(&"x".repeat(64), json!([one])).await.unwrap_err().to_string();
    assert!(long.contains("at most 63 characters"), "{long}");

    let certificate = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let bundle = base64(&format!("# ours\n{}", certificate.cert.pem()));
    let good = json!([
        { "name": "budget", "availablePolicy": { "maxUnavailableValue": "25%", "minAvailableValue": 1 } },
        { "name": "root", "availablePolicy": { "maxUnavailablePolicy": { "expFunc": { "coeff": "1.5", "pow": "0.5" } } } },
        { "name": "webhook", "stage": "PostCheck", "webhook": { "clientConfig": { "url": "https://a.example:8443/x?y=z", "caBundle": bundle, "poll": { "url": "http://10.0.0.1/", "caBundle": "Cg==" } } } },
        { "name": "nights", "schedule": { "timeZone": "America/Argentina/Buenos_Aires", "windows": [{ "days": ["Sat", "Sun"], "from": "22:00", "to": "06:00" }] } },
        { "name": "dry", "mode": "DryRun", "cel": { "expression": "pod.metadata.name != 'a'" } },
        { "name": "spread", "topologySpread": { "topologyKey": "topology.kubernetes.io/zone" } },
    ]);
    let created = create("good", good).await.unwrap();
    let read: PodTransitionRule =
        serde_json::from_value(serde_json::to_value(&created).unwrap()).unwrap();
    let webhook = read.spec.rules[2].webhook.clone().unwrap();
    let poll = webhook.client_config.poll.unwrap();
    assert_eq!((poll.interval_seconds, poll.timeout_seconds), (5, 60), "Kuperator's defaults");
    assert_eq!(webhook.failure_policy, FailurePolicy::Ignore);
}

/// Encodes text with the program `base64`, as users do for `caBundle`.
fn base64(text: &str) -> String {
    use std::{io::Write as _, process::Stdio};
    let mut child = std::process::Command::new("base64")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}
