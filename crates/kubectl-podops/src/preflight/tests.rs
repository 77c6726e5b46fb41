use serde_json::{Value, json};

use super::*;

/// Text of the findings, without remedies.
fn found(inventory: &Inventory, direction: Direction) -> Vec<String> {
    let findings = check(inventory, direction).0;
    findings.iter().map(|f| format!("{:?} {}: {}", f.level, f.subject, f.message)).collect()
}

/// Asserts that one finding begins with this text.
#[track_caller]
fn assert_found(inventory: &Inventory, direction: Direction, beginning: &str) {
    let found = found(inventory, direction);
    assert!(found.iter().any(|finding| finding.starts_with(beginning)), "{found:#?}");
}

fn recent() -> Inventory {
    Inventory { server_minor: 36, ..Inventory::default() }
}

fn set(spec: &Value) -> Value {
    let template = json!({ "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "nginx:1" }] } });
    let mut set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web", "namespace": "ns" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template,
            "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } },
    });
    for (field, value) in spec.as_object().unwrap() {
        set["spec"][field] = value.clone();
    }
    set
}

#[test]
fn a_cluster_without_problems_has_no_findings() {
    let inventory = Inventory { sets: vec![set(&json!({}))], ..recent() };
    let findings = check(&inventory, Direction::ToPodops);
    assert!(!findings.has_errors());
    assert_eq!(findings.to_string(), "0 errors, 0 warnings\n");
}

#[test]
fn running_programs_and_failing_webhooks_prevent_the_switch() {
    let deployment = |image: &str, labels: Value, replicas: i32| {
        json!({ "metadata": { "name": "manager", "namespace": "system", "labels": labels },
            "spec": { "replicas": replicas,
                "template": { "spec": { "containers": [{ "image": image }] } } } })
    };
    let webhooks = |labels: Value, policy: &str| {
        let rule = json!({ "apiGroups": [""], "resources": ["pods"] });
        json!({ "metadata": { "name": "pods", "labels": labels }, "webhooks": [
            { "name": "mutating-pod.apps.kusionstack.io", "failurePolicy": policy, "rules": [rule] }] })
    };
    let podops = json!({ "app.kubernetes.io/part-of": "podops" });
    let mut inventory = recent();
    inventory.deployments = vec![
        deployment("kusionstack/kuperator:v0.7.3", json!({}), 1),
        deployment("podops/collaset-operator", podops.clone(), 2),
    ];
    inventory.mutating_webhooks = vec![webhooks(json!({}), "Fail"), webhooks(podops, "Fail")];
    let running = "Error Deployment system/manager: runs";
    let failing = "Error MutatingWebhookConfiguration pods: has failurePolicy Fail";
    for direction in [Direction::ToPodops, Direction::ToKuperator] {
        assert_found(&inventory, direction, running);
        assert_found(&inventory, direction, failing);
        assert_eq!(found(&inventory, direction).len(), 2, "those of the other are not reported");
    }
    inventory.deployments[0]["spec"]["replicas"] = json!(0);
    inventory.mutating_webhooks.remove(0);
    assert_eq!(found(&inventory, Direction::ToPodops), Vec::<String>::new());
}

#[test]
fn collasets_that_podops_rejects_are_reported() {
    let sets = |spec: Value| Inventory { sets: vec![set(&spec)], ..recent() };
    let check = |spec: Value, finding: &str| {
        assert_found(&sets(spec), Direction::ToPodops, finding);
    };
    check(json!({ "replicas": 20_000 }), "Error CollaSet ns/web: has more than 10000 replicas");
    check(json!({ "replicas": "two" }), "Error CollaSet ns/web: cannot be decoded by Podops");
    check(json!({ "paused": true }), "Warning CollaSet ns/web: spec.paused is true");
    check(json!({ "updateStrategy": {} }), "Note CollaSet ns/web: has no maxUnavailable");
    let in_place = json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceOnly" } });
    check(in_place, "Warning CollaSet ns/web: podUpgradePolicy is InPlaceOnly");
}

#[test]
fn claims_without_instance_id_are_reported() {
    let claim = |labels: Value, owner: &str| {
        json!({ "metadata": { "name": "data", "namespace": "ns", "labels": labels,
            "ownerReferences": [{ "kind": owner }] } })
    };
    let labelled = json!({ "collaset.kusionstack.io/instance-id": "1" });
    let mut inventory = recent();
    inventory.claims = vec![claim(labelled, "CollaSet"), claim(json!({}), "StatefulSet")];
    assert_eq!(found(&inventory, Direction::ToPodops), Vec::<String>::new());
    inventory.claims.push(claim(json!({}), "CollaSet"));
    assert_found(
        &inventory,
        Direction::ToPodops,
        "Warning PersistentVolumeClaim ns/data: has no label collaset.kusionstack.io/instance-id",
    );
}

#[test]
fn rules_that_behave_differently_prevent_the_switch() {
    let rules = |rules: Value| {
        let rule =
            json!({ "metadata": { "name": "web", "namespace": "ns" }, "spec": { "rules": rules } });
        Inventory { rules: vec![rule], ..recent() }
    };
    let webhook = |policy: &str| json!([{ "name": "w", "webhook": { "failurePolicy": policy } }]);
    let ignored = "Error PodTransitionRule ns/web: rule w: failurePolicy is Ignore";
    assert_found(&rules(webhook("Ignore")), Direction::ToPodops, ignored);
    assert_eq!(found(&rules(webhook("Fail")), Direction::ToPodops), Vec::<String>::new());
    let several = json!([{ "name": "w", "availablePolicy": {}, "labelCheck": {} }]);
    let finding =
        "Error PodTransitionRule ns/web: rule w has 2 kinds (availablePolicy, labelCheck)";
    assert_found(&rules(several), Direction::ToPodops, finding);
    let twice = json!([{ "name": "w", "labelCheck": {} }, { "name": "w", "labelCheck": {} }]);
    assert_found(
        &rules(twice),
        Direction::ToPodops,
        "Error PodTransitionRule ns/web: has two rules",
    );
    let schedule = rules(json!([{ "name": "w", "schedule": {} }]));
    let skipped =
        "Error PodTransitionRule ns/web: rule w is of kind schedule, which Kuperator skips";
    assert_found(&schedule, Direction::ToKuperator, skipped);
}

#[test]
fn decorations_that_change_pods_are_reported() {
    let decoration = |template: Value| {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let object = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
            "metadata": { "name": "log", "namespace": "ns" },
            "spec": { "selector": selector, "template": template } });
        Inventory { decorations: vec![object], ..recent() }
    };
    let container = json!({ "name": "log", "image": "log:1" });
    let twice = json!({ "containers": [container, container] });
    let finding = "Error PodDecoration ns/log: adds two containers of the name log";
    assert_found(&decoration(twice), Direction::ToPodops, finding);
    let class = json!({ "runtimeClassName": "kata" });
    let finding = "Warning PodDecoration ns/log: sets runtimeClassName";
    assert_found(&decoration(class), Direction::ToPodops, finding);
    let once = decoration(json!({ "containers": [container] }));
    assert_eq!(found(&once, Direction::ToPodops), Vec::<String>::new());
}

#[test]
fn jobs_of_other_actions_are_reported() {
    let job = |action: &str, progress: &str| {
        let object = json!({ "metadata": { "name": "job", "namespace": "ns" },
            "spec": { "action": action, "targets": [] }, "status": { "progress": progress } });
        Inventory { jobs: vec![object], ..recent() }
    };
    let unknown = "Warning OperationJob ns/job: has the action Custom";
    assert_found(&job("Custom", "Processing"), Direction::ToPodops, unknown);
    let restart = "Error OperationJob ns/job: is not complete and has the action Restart";
    assert_found(&job("Restart", "Processing"), Direction::ToKuperator, restart);
    assert_eq!(found(&job("Restart", "Succeeded"), Direction::ToKuperator), Vec::<String>::new());
}

#[test]
fn pods_that_an_ended_job_protects_are_reported() {
    let protected = json!({ "metadata": { "name": "web-a", "namespace": "ns",
        "finalizers": [podops_api::well_known::REPLACE_PROTECTED] } });
    let job = |progress: &str| {
        json!({ "metadata": { "name": "job", "namespace": "ns" },
            "spec": { "action": "Replace", "targets": [{ "name": "web-a" }] },
            "status": { "progress": progress } })
    };
    let with = |jobs: Vec<Value>| Inventory { pods: vec![protected.clone()], jobs, ..recent() };
    let finding = "Warning Pod ns/web-a: has the finalizer";
    assert_found(&with(Vec::new()), Direction::ToPodops, finding);
    assert_found(&with(vec![job("Failed")]), Direction::ToPodops, finding);
    let in_progress = found(&with(vec![job("Processing")]), Direction::ToPodops);
    assert!(in_progress.iter().all(|found| !found.starts_with(finding)), "{in_progress:?}");
}

#[test]
fn what_kuperator_would_continue_prevents_the_return() {
    let check = |edit: &dyn Fn(&mut Value), finding: &str| {
        let mut set = set(&json!({}));
        edit(&mut set);
        let inventory = Inventory { sets: vec![set], ..recent() };
        assert_found(&inventory, Direction::ToKuperator, finding);
    };
    let rolling = |set: &mut Value, field: &str, value: Value| {
        set["spec"]["updateStrategy"]["rollingUpdate"][field] = value;
    };
    check(
        &|set| rolling(set, "byPartition", json!({ "partition": "50%" })),
        "Error CollaSet ns/web: partition is a percentage",
    );
    check(&|set| set["spec"]["paused"] = json!(true), "Error CollaSet ns/web: spec.paused is true");
    check(
        &|set| set["status"]["haltedRevision"] = json!("web-1"),
        "Error CollaSet ns/web: the rollout is halted",
    );
    check(
        &|set| set["status"]["rolloutStep"] = json!({ "step": 1 }),
        "Error CollaSet ns/web: the rollout has steps",
    );
    check(
        &|_| (),
        "Warning CollaSet ns/web: fields that Kuperator does not have: \
         updateStrategy.rollingUpdate.maxUnavailable",
    );
}

#[test]
fn an_old_server_needs_another_overlay() {
    let of_minor = |server_minor| Inventory { server_minor, ..Inventory::default() };
    assert_found(&of_minor(33), Direction::ToPodops, "Warning Kubernetes 1.33: does not serve");
    assert_found(&of_minor(30), Direction::ToPodops, "Error Kubernetes 1.30: is older than 1.33");
}
