use serde_json::json;

use super::*;

/// Checks the health of an object of generation 2 with this kind, spec and status. `expected` is
/// empty for a healthy object; otherwise, it is a part of the reason, after `!` for a failed
/// object.
#[track_caller]
fn check(api_version: &str, kind: &str, spec: &Value, status: &Value, expected: &str) {
    let object = json!({
        "apiVersion": api_version, "kind": kind, "metadata": { "name": "a", "generation": 2 },
        "spec": spec, "status": status,
    });
    let found = health(&object);
    match (&found, expected.strip_prefix('!')) {
        (Health::Healthy, _) if expected.is_empty() => {}
        (Health::Failed(reason), Some(part)) if reason.contains(part) => {}
        (Health::Waiting(reason), None) if !expected.is_empty() && reason.contains(expected) => {}
        _ => panic!("{kind}: {found:?} instead of {expected:?}"),
    }
}

fn ready(status: &str) -> Value {
    json!([{ "type": "Ready", "status": status, "message": "2 Pods wait for a rule" }])
}

#[test]
fn a_definition_is_healthy_when_established() {
    let check = |status: &str, expected: &str| {
        let conditions = json!({ "conditions": [{ "type": "Established", "status": status }] });
        let api_version = "apiextensions.k8s.io/v1";
        check(api_version, "CustomResourceDefinition", &json!({}), &conditions, expected);
    };
    check("True", "");
    check("False", "not established");
}

#[test]
fn a_stateful_set_is_healthy_when_rolled_out() {
    let check = |spec: Value, status: Value, expected: &str| {
        check("apps/v1", "StatefulSet", &spec, &status, expected);
    };
    let three = json!({ "replicas": 3 });
    check(three.clone(), json!({}), "not observed");
    check(three.clone(), json!({ "observedGeneration": 1, "readyReplicas": 3 }), "not observed");
    check(
        three.clone(),
        json!({ "observedGeneration": 2, "readyReplicas": 2 }),
        "2 of 3 Pods are ready",
    );
    let ready = json!({ "observedGeneration": 2, "readyReplicas": 3, "updatedReplicas": 2 });
    check(three, ready.clone(), "2 of 3 Pods are updated");
    let partition =
        json!({ "replicas": 3, "updateStrategy": { "rollingUpdate": { "partition": 1 } } });
    check(partition, ready, "");
    check(json!({ "replicas": 0 }), json!({ "observedGeneration": 2 }), "");
}

/// K5: KUDO waits indefinitely, without a message.
#[test]
fn a_stateful_set_that_updates_on_deletion_is_healthy() {
    let spec = json!({ "replicas": 1, "updateStrategy": { "type": "OnDelete" } });
    let status = json!({ "observedGeneration": 2, "readyReplicas": 1 });
    check("apps/v1", "StatefulSet", &spec, &status, "");
}

#[test]
fn a_deployment_is_healthy_when_rolled_out() {
    let check = |status: Value, expected: &str| {
        check("apps/v1", "Deployment", &json!({ "replicas": 2 }), &status, expected);
    };
    let status = |updated: i64, all: i64, available: i64| {
        json!({
            "observedGeneration": 2, "updatedReplicas": updated, "replicas": all,
            "availableReplicas": available,
        })
    };
    check(json!({}), "not observed");
    check(status(1, 2, 2), "1 of 2 Pods are updated");
    check(status(2, 3, 2), "1 Pods of earlier revisions");
    check(status(2, 2, 1), "1 of 2 Pods are available");
    check(status(2, 2, 2), "");
}

/// K5: KUDO reports an error, so that the last readiness is kept.
#[test]
fn a_deployment_past_its_deadline_waits_and_says_why() {
    let conditions = json!([{
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "ReplicaSet web-1 has timed out",
    }]);
    let status = json!({ "observedGeneration": 2, "conditions": conditions });
    check("apps/v1", "Deployment", &json!({}), &status, "web-1 has timed out");
}

#[test]
fn other_workloads_are_healthy_when_their_pods_are() {
    let status = json!({
        "observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2,
    });
    check("apps/v1", "DaemonSet", &json!({}), &status, "1 of 2 Pods are updated");
    let on_delete = json!({ "updateStrategy": { "type": "OnDelete" } });
    check("apps/v1", "DaemonSet", &on_delete, &status, "");
    let status = json!({ "observedGeneration": 2, "readyReplicas": 1 });
    check("apps/v1", "ReplicaSet", &json!({}), &status, "");
    check("apps/v1", "ReplicaSet", &json!({ "replicas": 2 }), &status, "1 of 2 Pods are ready");
    check(
        "v1",
        "ReplicationController",
        &json!({ "replicas": 2 }),
        &status,
        "1 of 2 Pods are ready",
    );
    let status =
        |ready_status: &str| json!({ "observedGeneration": 2, "conditions": ready(ready_status) });
    check("apps.kusionstack.io/v1alpha1", "CollaSet", &json!({}), &status("True"), "");
    check(
        "apps.kusionstack.io/v1alpha1",
        "CollaSet",
        &json!({}),
        &status("False"),
        "wait for a rule",
    );
}

/// Kuperator reports counts, but no condition Ready.
#[test]
fn a_colla_set_of_kuperator_is_healthy_by_its_counts() {
    let check = |strategy: Value, counts: [i64; 4], expected: &str| {
        let [replicas, available, updated, operating] = counts;
        let status = json!({
            "observedGeneration": 2, "replicas": replicas, "availableReplicas": available,
            "updatedAvailableReplicas": updated, "operatingReplicas": operating,
        });
        let spec = json!({ "replicas": 3, "updateStrategy": { "rollingUpdate": strategy } });
        check("apps.kusionstack.io/v1alpha1", "CollaSet", &spec, &status, expected);
    };
    check(json!({}), [3, 3, 3, 0], "");
    check(json!({}), [2, 2, 2, 0], "2 of 3 Pods exist");
    check(json!({}), [3, 2, 2, 0], "2 of 3 Pods are available");
    check(json!({}), [3, 3, 3, 1], "operations on 1 Pods");
    check(json!({}), [3, 3, 2, 0], "2 of 3 Pods are updated");
    check(json!({ "byPartition": { "partition": 1 } }), [3, 3, 2, 0], "");
    check(json!({ "byLabel": {} }), [3, 3, 0, 0], "");
}

#[test]
fn an_operation_job_ends_like_a_job() {
    let check = |progress: &str, expected: &str| {
        let status = json!({
            "observedGeneration": 2, "progress": progress, "totalPodCount": 3,
            "succeededPodCount": 2, "failedPodCount": 1,
        });
        check("apps.kusionstack.io/v1alpha1", "OperationJob", &json!({}), &status, expected);
    };
    check("Processing", "succeeded on 2 of 3 Pods");
    check("Succeeded", "");
    check("Failed", "!failed on 1 of 3 Pods");
}

/// K17: KUDO never treats a Job with several completions as healthy.
#[test]
fn a_job_is_healthy_when_complete_and_may_fail() {
    let check = |spec: Value, status: Value, expected: &str| {
        check("batch/v1", "Job", &spec, &status, expected);
    };
    check(json!({}), json!({ "succeeded": 1 }), "");
    check(json!({ "completions": 3 }), json!({ "succeeded": 2 }), "2 of 3");
    check(json!({ "completions": 3 }), json!({ "succeeded": 3 }), "");
    let conditions = |name: &str| json!([{ "type": name, "status": "True", "reason": "BackoffLimitExceeded", "message": "failed" }]);
    check(
        json!({ "completions": 3 }),
        json!({ "succeeded": 1, "conditions": conditions("Complete") }),
        "",
    );
    check(
        json!({}),
        json!({ "conditions": conditions("Failed") }),
        "!BackoffLimitExceeded: failed",
    );
}

/// K4: a Pod that has succeeded keeps KUDO's Instances unready indefinitely.
#[test]
fn a_pod_is_healthy_when_ready_or_succeeded() {
    let check = |phase: &str, status: &str, expected: &str| {
        let status = json!({ "phase": phase, "conditions": ready(status) });
        check("v1", "Pod", &json!({}), &status, expected);
    };
    check("Running", "True", "");
    check("Running", "False", "not Ready");
    check("Pending", "False", "Pending");
    check("Succeeded", "False", "");
    check("Failed", "False", "!Failed");
}

#[test]
fn a_pod_under_control_is_healthy_once_its_operations_completed() {
    let pod = |labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "labels": labels },
            "status": { "phase": "Running", "conditions": ready("True") },
        })
    };
    let mut labels = json!({ "operating.podopslifecycle.kusionstack.io/restart": "1" });
    assert_eq!(health(&pod(labels.clone())), Health::Healthy, "it is not under control");
    labels["kusionstack.io/control"] = json!("true");
    let expected = Health::Waiting("operation restart is in Requested".to_owned());
    assert_eq!(health(&pod(labels)), expected);
    assert_eq!(health(&pod(json!({ "kusionstack.io/control": "true" }))), Health::Healthy);
}

#[test]
fn a_service_is_healthy_when_it_has_addresses() {
    let check = |spec: Value, status: Value, expected: &str| {
        check("v1", "Service", &spec, &status, expected);
    };
    check(json!({ "type": "ExternalName" }), json!({}), "");
    check(json!({}), json!({}), "cluster IP");
    check(json!({ "clusterIP": "None" }), json!({}), "");
    let balanced = json!({ "type": "LoadBalancer", "clusterIP": "10.0.0.1" });
    check(balanced.clone(), json!({}), "no address");
    check(balanced, json!({ "loadBalancer": { "ingress": [{ "ip": "1.2.3.4" }] } }), "");
    let external =
        json!({ "type": "LoadBalancer", "clusterIP": "10.0.0.1", "externalIPs": ["1.2.3.4"] });
    check(external, json!({}), "");
}

/// K1: KUDO treats a child whose plan has failed as healthy.
#[test]
fn an_instance_is_healthy_when_its_plans_have_run() {
    let check = |status: Value, expected: &str| {
        check("kudo.dev/v1beta1", "Instance", &json!({}), &status, expected);
    };
    let run = |status: &str| json!([{ "plan": "deploy", "uid": "a", "status": status, "message": "no image" }]);
    check(json!({}), "have not run");
    check(json!({ "observedGeneration": 1, "history": run("COMPLETE") }), "have not run");
    check(json!({ "observedGeneration": 2, "history": run("COMPLETE") }), "");
    check(json!({ "observedGeneration": 2, "pending": ["backup"] }), "have not run");
    check(
        json!({ "observedGeneration": 2, "history": run("FATAL_ERROR") }),
        "!deploy failed: no image",
    );
    let running = json!({ "deploy": { "name": "deploy", "status": "IN_PROGRESS" } });
    check(json!({ "observedGeneration": 2, "planStatus": running }), "plan deploy is IN_PROGRESS");
}

/// K1, K20: a child that cannot run has not succeeded, regardless of its last run.
#[test]
fn an_instance_whose_spec_is_rejected_is_waited_for() {
    for reason in ["InvalidOperatorVersion", "InvalidParams", "InvalidPlan"] {
        let degraded =
            json!([{ "type": "Degraded", "status": "True", "reason": reason, "message": "why" }]);
        let complete = json!([{ "plan": "deploy", "uid": "a", "status": "COMPLETE" }]);
        for history in [json!([]), complete] {
            let status =
                json!({ "observedGeneration": 2, "conditions": degraded, "history": history });
            check("kudo.dev/v1beta1", "Instance", &json!({}), &status, "do not run: why");
        }
    }
}

/// A failure that a controller has reported for an earlier generation is ignored.
#[test]
fn an_annotated_object_fails_only_by_a_current_status() {
    let with = |observed: u8| {
        health(&json!({
            "apiVersion": "example.com/v1", "kind": "Thing",
            "metadata": {
                "generation": 2, "annotations": { FAILED_WHEN: "self.status.phase == 'Failed'" },
            },
            "status": { "observedGeneration": observed, "phase": "Failed" },
        }))
    };
    assert_eq!(with(1), Health::waiting(NOT_OBSERVED));
    assert_eq!(with(2), Health::Failed(format!("{FAILED_WHEN} is true")));
}

#[test]
fn namespaces_and_all_other_kinds() {
    check("v1", "Namespace", &json!({}), &json!({ "phase": "Active" }), "");
    check("v1", "Namespace", &json!({}), &json!({ "phase": "Terminating" }), "Terminating");
    for (api_version, kind) in
        [("v1", "ConfigMap"), ("v1", "PersistentVolumeClaim"), ("example.com/v1", "Pod")]
    {
        let object = json!({ "apiVersion": api_version, "kind": kind });
        assert!(!is_judged(&object), "{kind}");
        assert_eq!(health(&object), Health::Healthy);
    }
}
