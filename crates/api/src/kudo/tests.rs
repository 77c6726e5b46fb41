use serde_json::{Value, json};

use super::{
    DURATION, ExecutionStatus, Instance, Operator, OperatorVersion, Strategy, parse_duration,
};

/// Parses an object that Go serialized, and returns it as this crate serializes it.
fn written<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value) -> Value {
    let object: T = serde_json::from_value(object.clone()).unwrap();
    serde_json::to_value(object).unwrap()
}

#[test]
fn operators_lose_no_field() {
    let object = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Operator", "metadata": { "name": "kafka" },
        "spec": {
            "description": "d", "kudoVersion": "0.19.0", "kubernetesVersion": "1.16.0",
            "maintainers": [{ "name": "n", "email": "e" }], "url": "u", "namespaceManifest": "n.yaml",
        },
        "status": {},
    });
    assert_eq!(written::<Operator>(&object), object);
}

#[test]
fn operator_versions_lose_no_field() {
    let reference = json!({
        "apiVersion": "kudo.dev/v1beta1", "fieldPath": "f", "kind": "Operator", "name": "kafka",
        "namespace": "n", "resourceVersion": "1", "uid": "u",
    });
    let object = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "OperatorVersion", "metadata": { "name": "kafka-1" },
        "spec": {
            "operator": reference, "version": "1.0.0", "appVersion": "2.0.0",
            "templates": { "a.yaml": "text" },
            "tasks": [
                { "name": "t", "kind": "Apply", "spec": {
                    "resources": ["a.yaml"], "parameter": "p", "pod": "pod.yaml",
                    "pipe": [{ "file": "/f", "envFile": "", "kind": "Secret", "key": "k" }],
                    "wantErr": true, "fatal": true, "done": true, "package": "zookeeper",
                    "instanceName": "zk", "appVersion": "1", "operatorVersion": "2",
                    "parameterFile": "p.yaml" } },
                { "name": "w", "kind": "Wait", "spec": {
                    "image": "busybox", "graceful": false, "until": "true", "failed": "false" } },
            ],
            "parameters": [{
                "name": "P", "displayName": "d", "description": "d", "required": true, "default": "",
                "trigger": "deploy", "value-type": "array", "immutable": false, "enum": [] },
                { "name": "S", "sensitive": true }],
            "plans": { "deploy": { "strategy": "serial", "timeout": "30m", "phases": [{
                "name": "p", "strategy": "parallel", "steps": [{
                    "name": "s", "tasks": ["t"], "timeout": "5m", "retries": 3, "onFailure": "Pause",
                }] }] } },
            "connectionString": "c", "upgradableFrom": [reference],
        },
        "status": {},
    });
    assert_eq!(written::<OperatorVersion>(&object), object);
}

#[test]
fn instances_lose_no_field() {
    let time = "2026-01-02T03:04:05Z";
    let run = json!({
        "plan": "deploy", "uid": "u", "reason": "r", "started": time, "finished": time,
        "status": "FATAL_ERROR", "message": "m",
    });
    let object = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": "kafka" },
        "spec": {
            "operatorVersion": { "name": "kafka-1", "namespace": "n" },
            "parameters": { "P": "v" },
            "parametersFrom": [
                { "name": "S", "secretKeyRef": { "name": "s", "key": "k", "optional": true } }],
            "planExecution": { "planName": "deploy", "uid": "u", "status": "IN_PROGRESS", "cancel": "u" },
            "paused": true, "serviceAccountName": "a",
        },
        "status": {
            "observedGeneration": 3,
            "planStatus": { "deploy": {
                "name": "deploy", "status": "IN_PROGRESS", "message": "m",
                "lastUpdatedTimestamp": time, "uid": "u", "reason": "r", "started": time,
                "operatorVersion": "u/1", "phases": [{
                    "name": "p", "status": "ERROR", "message": "m", "steps": [{
                        "name": "s", "status": "PENDING", "message": "m", "started": time,
                        "finished": time, "attempts": 1, "done": ["t"] }] }] } },
            "observedInput": {
                "operatorVersion": "n/kafka-1", "parameters": { "P": "d" }, "requestedUid": "u",
                "deployed": true },
            "pending": ["backup"], "history": [run],
            "inventory": [{
                "task": "t", "apiVersion": "v1", "kind": "Service", "namespace": "n", "name": "s",
                "uid": "u", "hash": "h", "applied": "a", "run": "r" }],
            "conditions": [{
                "type": "Ready", "status": "True", "lastTransitionTime": time, "observedGeneration": 3,
                "reason": "ResourcesReady", "message": "" }],
        },
    });
    assert_eq!(written::<Instance>(&object), object);
}

#[test]
fn what_go_leaves_empty_is_read() {
    let object = json!({
        "metadata": {}, "spec": {
            "plans": { "deploy": { "strategy": "", "phases": null } },
            "tasks": [{ "name": "", "kind": "", "spec": { "resources": null, "pipe": null } }],
            "parameters": [{ "name": "P", "default": null, "required": null, "enum": null }],
        },
    });
    let version: OperatorVersion = serde_json::from_value(object).unwrap();
    assert_eq!(version.spec.plans["deploy"].strategy, Strategy::Parallel);
    assert_eq!(version.spec.parameters[0].allowed_values, None);
    let object = json!({ "metadata": {}, "spec": { "parameters": null, "planExecution": {} },
        "status": { "conditions": null, "planStatus": { "deploy": {
            "name": "deploy", "status": "", "lastUpdatedTimestamp": null, "phases": null } } } });
    let instance: Instance = serde_json::from_value(object).unwrap();
    let status = &instance.status.unwrap().plan_status["deploy"];
    assert_eq!(status.status, ExecutionStatus::NeverRun);
}

#[test]
fn an_unknown_strategy_is_parallel() {
    let read = |text: &str| serde_json::from_value::<Strategy>(json!(text)).unwrap();
    assert_eq!([read("serial"), read("Serial")], [Strategy::Serial, Strategy::Parallel]);
}

#[test]
fn durations_that_the_schema_accepts_are_read() {
    let pattern = regex::Regex::new(DURATION).unwrap();
    for (text, seconds) in [
        ("30m", 1_800.0),
        ("1h30m", 5_400.0),
        ("1.5h", 5_400.0),
        ("1h0.5m", 3_630.0),
        ("1h1m1s", 3_661.0),
        ("0.5s", 0.5),
        ("1s500ms", 1.5),
        ("1h2ms", 3_600.002),
        ("0s", 0.0),
    ] {
        assert!(pattern.is_match(text), "{text}");
        let read = parse_duration(text).map(|duration| duration.as_secs_f64());
        assert!(read.is_some_and(|read| (read - seconds).abs() < 1e-9), "{text}: {read:?}");
    }
    for text in ["", "soon", "5", "5m1h", "1.5h30m", "1m1m", "-5m", "5 m", "PT5M", "1d"] {
        assert!(!pattern.is_match(text), "{text}");
    }
    for text in ["", "soon", "5", "5m1h", "1.5h30m", "1m1m", "-5m", "PT5M"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}
