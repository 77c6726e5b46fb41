//! Graceful deletion by the deletion webhook: deletes, evictions, and drains of whole nodes.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
    core::Status,
};
use podops_api::{lifecycle, well_known};
use podops_test_cluster::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{TIMEOUT, TestCluster, app, eventually, programs},
    forged_review::{eviction, post},
    process::{Signal, signal},
    suite::{Group, Lane, Suite, all_requests_are_permitted},
};
use serde_json::{Value, json};

/// Start of Kuperator's message, which users search for.
const IN_PROGRESS: &str = "pod deletion process is underway and being managed by PodOpsLifecycle";

async fn cluster() -> TestCluster {
    TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap()
}

async fn pod_of(cluster: &TestCluster, set: &str) -> Pod {
    cluster.pods_of(set).await.unwrap().remove(0)
}

/// Deletes a Pod and returns the message of the rejection; empty if the delete is accepted.
async fn delete(cluster: &TestCluster, pod: &str, params: &DeleteParams) -> String {
    match cluster.pods().delete(pod, params).await {
        Ok(_) => String::new(),
        Err(kube::Error::Api(status)) => status.message,
        Err(other) => panic!("{other}"),
    }
}

/// Evicts a Pod and returns the status of the rejection.
async fn evict(cluster: &TestCluster, pod: &str) -> Result<(), Box<Status>> {
    let pods = Api::<Pod>::namespaced(
        cluster.plane.client_without_retries().await.unwrap(),
        &cluster.namespace,
    );
    match pods.evict(pod, &EvictParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

/// A rule that permits no operation.
fn deny_all(name: &str) -> Value {
    json!([{ "name": name, "availablePolicy": { "maxUnavailableValue": 0 } }])
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .group(
            Group::new("deletions", Lane::Beside, cluster)
                .beside(a_deleted_pod_leaves_service_first_and_is_recreated)
                .beside(rejections_state_the_cause_and_deletion_can_be_cancelled)
                .beside(a_dry_run_changes_nothing)
                .beside(a_terminating_pod_may_be_deleted_and_evicted_again)
                .beside(pods_without_the_control_label_are_deleted_at_once)
                .beside(an_eviction_is_rejected_until_the_pod_may_be_deleted)
                .beside(disruption_budgets_count_pods_in_graceful_deletion)
                .beside(a_pod_is_replaced_before_it_is_deleted)
                .beside(a_deployment_scales_in_no_more_pods_than_it_has_to)
                .beside(rules_with_invalid_expressions_are_rejected)
                .end(all_requests_are_permitted),
        )
        .scenario(Lane::Beside, operator_outage_blocks_only_pods_in_service)
        .scenario(Lane::Beside, kubectl_drain_succeeds_and_exceeds_no_budget)
}

/// A Pod that waits for its rule is Ready as the others are, and the ReplicaSet tries again to delete
/// one.
async fn a_deployment_scales_in_no_more_pods_than_it_has_to(cluster: &TestCluster) {
    const NAME: &str = "api";
    let deployment = json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": 5,
            "selector": { "matchLabels": { "app": NAME } },
            "template": {
                "metadata": { "labels": { "app": NAME, well_known::CONTROL: "true" } },
                "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
            },
        },
    });
    let deployments: Api<Deployment> = cluster.api();
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let with_label = async |label: &str| -> Vec<String> {
        let pods = cluster.pods_of(NAME).await.unwrap();
        let found = pods.iter().filter(|pod| pod.labels().contains_key(label));
        found.map(ResourceExt::name_any).collect()
    };
    let are_available = async || Ok(with_label(well_known::SERVICE_AVAILABLE).await.len() == 5);
    eventually(TIMEOUT, are_available).await.unwrap();
    let before = with_label(well_known::CONTROL).await;
    cluster.create_rule(NAME, app(NAME), deny_all("deny-all")).await.unwrap();
    let smaller = Patch::Merge(json!({ "spec": { "replicas": 3 } }));
    deployments.patch(NAME, &PatchParams::default(), &smaller).await.unwrap();
    let requested = async || Ok(with_label(well_known::TO_DELETE).await.len() >= 2);
    eventually(TIMEOUT, requested).await.unwrap();
    // The ReplicaSet tries again after 5 ms, 10 ms, 20 ms, up to some seconds.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let chosen = with_label(well_known::TO_DELETE).await;
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    cluster.rules().delete(NAME, &DeleteParams::default()).await.unwrap();
    for pod in &chosen {
        cluster.wait_until_deleted(pod).await.unwrap();
    }
    let left = with_label(well_known::CONTROL).await;
    let expected: Vec<String> = before.into_iter().filter(|pod| !chosen.contains(pod)).collect();
    assert_eq!(left, expected, "no other Pod was deleted, and none created");
}

async fn a_deleted_pod_leaves_service_first_and_is_recreated(cluster: &TestCluster) {
    cluster.create_and_wait("deleted", 2, &json!({})).await.unwrap();
    let pod = pod_of(cluster, "deleted").await;
    let name = pod.name_any();
    let finalizer = format!("{}/balancer", well_known::PROTECTION_FINALIZER);
    cluster.patch_pod_metadata(&name, json!({ "finalizers": [finalizer] })).await.unwrap();
    let message = delete(cluster, &name, &DeleteParams::default()).await;
    assert!(
        message.contains(IN_PROGRESS) && message.contains(&format!("finalizers: [{finalizer}]")),
        "{message}"
    );
    cluster
        .wait_for_pod(&name, |pod| !pod.labels().contains_key(well_known::SERVICE_AVAILABLE))
        .await
        .unwrap();
    let message = delete(cluster, &name, &DeleteParams::default().grace_period(0)).await;
    assert_operation_waits(&message, "Preparing", "traffic controllers");
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("deleted", [2; 4]).await.unwrap();
    cluster.wait_for_event(&name, "DeletionRequested").await.unwrap();
}

/// Asserts that the part of the message about the operation `pod-delete` names its phase, and the
/// party that it waits for.
fn assert_operation_waits(message: &str, phase: &str, party: &str) {
    let prefix = format!("operation pod-delete: {phase} since ");
    let suffix = format!(", waiting for {party}");
    let found = message
        .split("; ")
        .any(|part| part.split_once(&prefix).is_some_and(|(_, rest)| rest.contains(&suffix)));
    assert!(found, "{message}");
}

async fn rejections_state_the_cause_and_deletion_can_be_cancelled(cluster: &TestCluster) {
    cluster.create_and_wait("cancelled", 1, &json!({})).await.unwrap();
    cluster.create_rule("cancelled", app("cancelled"), deny_all("deny-all")).await.unwrap();
    let name = pod_of(cluster, "cancelled").await.name_any();
    assert!(delete(cluster, &name, &DeleteParams::default()).await.contains(IN_PROGRESS));
    cluster.wait_for_pod(&name, |pod| lifecycle::is_operated_on(pod.labels())).await.unwrap();
    let message = delete(cluster, &name, &DeleteParams::default()).await;
    assert_operation_waits(&message, "PreCheck", "a rule checker");
    cluster
        .patch_pod_metadata(&name, json!({ "labels": { well_known::TO_DELETE: null } }))
        .await
        .unwrap();
    let is_cancelled = |pod: &Pod| {
        !lifecycle::is_operated_on(pod.labels())
            && pod.labels().contains_key(well_known::SERVICE_AVAILABLE)
            && !pod.labels().contains_key(well_known::PREPARING_TO_DELETE)
    };
    cluster.wait_for_pod(&name, is_cancelled).await.unwrap();
}

/// Kuperator's known defect 7 (docs/KUPERATOR.md#known-defects).
async fn a_dry_run_changes_nothing(cluster: &TestCluster) {
    cluster.create_and_wait("dry", 1, &json!({})).await.unwrap();
    let before = pod_of(cluster, "dry").await;
    let name = before.name_any();
    let message = delete(cluster, &name, &DeleteParams::default().dry_run()).await;
    assert!(message.contains(IN_PROGRESS), "{message}");
    // As kubectl sends it: in the Eviction. The server ignores the query parameter that kube sends.
    let options = json!({ "dryRun": ["All"] });
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name },
        "deleteOptions": options,
    });
    let params = PostParams::default();
    let response: Value =
        cluster.pods().create_subresource("eviction", &name, &params, &eviction).await.unwrap();
    assert_eq!(response["status"], "Success");
    let dry_run = ["delete", "pod", &name, "--dry-run=server", "--namespace", &cluster.namespace];
    assert!(cluster.plane.kubectl(&dry_run).await.unwrap_err().to_string().contains(IN_PROGRESS));
    let after = cluster.pods().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version());
}

/// Kuperator's known defect 6 (docs/KUPERATOR.md#known-defects).
async fn a_terminating_pod_may_be_deleted_and_evicted_again(cluster: &TestCluster) {
    cluster.create_and_wait("terminating", 2, &json!({})).await.unwrap();
    let name = pod_of(cluster, "terminating").await.name_any();
    let finalizer = json!({ "finalizers": ["podops.test/block"] });
    cluster.patch_pod_metadata(&name, finalizer).await.unwrap();
    assert!(evict(cluster, &name).await.is_err());
    // The Pod terminates and another client's finalizer blocks it: further requests are accepted.
    cluster.wait_for_pod(&name, |pod| pod.metadata.deletion_timestamp.is_some()).await.unwrap();
    assert_eq!(delete(cluster, &name, &DeleteParams::default().grace_period(0)).await, "");
    assert!(evict(cluster, &name).await.is_ok());
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("terminating", [2; 4]).await.unwrap();
}

async fn pods_without_the_control_label_are_deleted_at_once(cluster: &TestCluster) {
    let create = async |name: &str| {
        let spec = json!({ "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "nginx:1" }] });
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        let pod = serde_json::from_value(pod).unwrap();
        cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
    };
    create("free").await;
    assert_eq!(delete(cluster, "free", &DeleteParams::default()).await, "");
    create("free-too").await;
    assert!(evict(cluster, "free-too").await.is_ok());
    cluster.wait_until_deleted("free-too").await.unwrap();
}

async fn an_eviction_is_rejected_until_the_pod_may_be_deleted(cluster: &TestCluster) {
    cluster.create_and_wait("evicted", 2, &json!({})).await.unwrap();
    let name = pod_of(cluster, "evicted").await.name_any();
    let status = evict(cluster, &name).await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"), "{status:?}");
    let details = status.details.unwrap();
    assert!(details.retry_after_seconds > 0);
    assert_eq!(details.causes[0].reason, "PodOpsLifecycle");
    assert!(details.causes[0].message.contains(IN_PROGRESS));
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("evicted", [2; 4]).await.unwrap();
}

async fn disruption_budgets_count_pods_in_graceful_deletion(cluster: &TestCluster) {
    cluster.create_and_wait("budgeted", 4, &json!({})).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = cluster.api();
    let budget = json!({
        "metadata": { "name": "budgeted" },
        "spec": { "minAvailable": 3, "selector": app("budgeted") },
    });
    let budget = serde_json::from_value(budget).unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    let counted = async || {
        let status = budgets.get_status("budgeted").await?.status;
        Ok(status.is_some_and(|s| s.disruptions_allowed == Some(1)))
    };
    eventually(TIMEOUT, counted).await.unwrap();
    // A time that jiff cannot hold must not reject the evictions of the namespace.
    let late = json!([
        { "op": "replace", "path": "/metadata/managedFields/0/time", "value": "9999-12-31T23:59:59Z" },
        { "op": "add", "path": "/metadata/annotations", "value": { "late": "true" } },
    ]);
    let late = ["patch", "pdb", "budgeted", "--type=json", "--patch", &late.to_string()];
    cluster.plane.kubectl(&late).await.unwrap();
    let pods = cluster.pods_of("budgeted").await.unwrap();
    let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    let rejections = tokio::join!(
        evict(cluster, &names[0]),
        evict(cluster, &names[1]),
        evict(cluster, &names[2]),
        evict(cluster, &names[3]),
    );
    let rejections =
        [rejections.0, rejections.1, rejections.2, rejections.3].map(Result::unwrap_err);
    let cause = |status: &Status| status.details.as_ref().unwrap().causes[0].reason.clone();
    let mut causes = rejections.each_ref().map(|status| cause(status));
    causes.sort();
    let budget = "DisruptionBudget";
    assert_eq!(causes, [budget, budget, budget, "PodOpsLifecycle"], "{rejections:#?}");
    let requested: Vec<bool> = cluster
        .pods_of("budgeted")
        .await
        .unwrap()
        .iter()
        .map(|pod| pod.labels().contains_key(well_known::TO_DELETE))
        .collect();
    assert!(requested.iter().filter(|is| **is).count() <= 1, "{requested:?}");
    cluster.wait_for_replicas("budgeted", [4; 4]).await.unwrap();
}

async fn a_pod_is_replaced_before_it_is_deleted(cluster: &TestCluster) {
    let labels = json!({ "app": "replaced", TEAM: "replaced" });
    let template = json!({
        "metadata": { "labels": labels, "annotations": { well_known::DELETION_POLICY: "Replace" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    cluster.create_and_wait("replaced", 1, &json!({ "template": template })).await.unwrap();
    let monitor = AvailabilityMonitor::start(cluster).await.unwrap();
    for request in ["delete", "evict"] {
        let name = pod_of(cluster, "replaced").await.name_any();
        if request == "delete" {
            let message = delete(cluster, &name, &DeleteParams::default()).await;
            assert!(message.contains("waiting for a replacement Pod"), "{message}");
        } else {
            assert_eq!(evict(cluster, &name).await.unwrap_err().code, 429);
        }
        cluster.wait_until_deleted(&name).await.unwrap();
        cluster.wait_for_replicas("replaced", [1; 4]).await.unwrap();
    }
    assert_eq!(monitor.min_available("replaced"), 1, "a Pod must be available at all times");
}

/// One error that only the webhook detects, not the schema; the operator's own tests cover all.
async fn rules_with_invalid_expressions_are_rejected(cluster: &TestCluster) {
    let rule = |name: &str, expression: &str| {
        let kinds = json!([{ "name": "one", "cel": { "expression": expression } }]);
        let spec = json!({ "selector": app("no-pods"), "rules": kinds });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    // The API server takes a moment to load the webhook configuration.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let rejected = async || {
        let created = cluster.rules().create(&dry, &rule("bad", "pod.metadata ==")).await;
        Ok(created.is_err_and(|e| e.to_string().contains("spec.rules[one].cel.expression: ")))
    };
    eventually(TIMEOUT, rejected).await.unwrap();
    // Expressions that parse: one is a number, one reads a field that no Pod has.
    for expression in ["size(pod.metadata.labels)", "pod.metadata.nmae == 'a'"] {
        let created = cluster.rules().create(&dry, &rule("bad", expression)).await;
        let error = created.unwrap_err().to_string();
        assert!(error.contains("spec.rules[one].cel.expression: "), "{expression}: {error}");
    }
    let good = rule("good", "has(pod.metadata)");
    cluster.rules().create(&PostParams::default(), &good).await.unwrap();
}

async fn operator_outage_blocks_only_pods_in_service() {
    let cluster = cluster().await;
    cluster.create_and_wait("web", 1, &json!({})).await.unwrap();
    let name = pod_of(&cluster, "web").await.name_any();
    forged_reviews_start_nothing(&cluster, &name).await;
    let name = pod_of(&cluster, "web").await.name_any();
    cluster.create_namespace("ending").await.unwrap();
    let (owned, in_namespace) =
        (cluster.pods(), Api::<Pod>::namespaced(cluster.plane.admin.clone(), "ending"));
    let maps = cluster.api::<ConfigMap>();
    let map = serde_json::from_value(json!({ "metadata": { "name": "owner" } })).unwrap();
    let map = maps.create(&PostParams::default(), &map).await.unwrap();
    let owner_of = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": map.uid().unwrap(),
    }]);
    for (pods, owners) in [(&owned, owner_of), (&in_namespace, json!([]))] {
        let labels = json!({ well_known::CONTROL: "true" });
        let gates = json!([{ "conditionType": well_known::SERVICE_READY }]);
        let pod = json!({
            "metadata": { "name": "in-service", "labels": labels, "ownerReferences": owners },
            "spec": { "readinessGates": gates, "containers": [{ "name": "c", "image": "nginx:1" }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let available = async || {
            Ok(pods.get("in-service").await?.labels().contains_key(well_known::SERVICE_AVAILABLE))
        };
        eventually(TIMEOUT, available).await.unwrap();
    }
    // Not scheduled, so that only this test writes its status.
    let failed = json!({
        "metadata": { "name": "failed", "labels": { well_known::CONTROL: "true" } },
        "spec": {
            "readinessGates": [{ "conditionType": well_known::SERVICE_READY }],
            "schedulingGates": [{ "name": "podops.test/never" }],
            "containers": [{ "name": "c", "image": "nginx:1" }],
        },
    });
    owned.create(&PostParams::default(), &serde_json::from_value(failed).unwrap()).await.unwrap();
    let phase = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    owned.patch_status("failed", &PatchParams::default(), &phase).await.unwrap();

    let pid = cluster.operator("lifecycle-operator").unwrap().pid();
    signal(pid, Signal::STOP).unwrap();
    let message = delete(&cluster, &name, &DeleteParams::default()).await;
    assert!(message.contains("failed calling webhook"), "{message}");
    assert_eq!(evict(&cluster, &name).await.unwrap_err().code, 500);
    an_eviction_in_another_namespace_does_not_depend_on_the_operator(&cluster).await;
    let scheduler = [
        "delete",
        "pod",
        &name,
        "--as=system:kube-scheduler",
        "--as-group=system:authenticated",
        "--wait=false",
    ];
    cluster.plane.kubectl(&scheduler).await.unwrap();
    assert_eq!(delete(&cluster, "failed", &DeleteParams::default()).await, "");
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_deleted("in-service").await.unwrap();
    cluster.plane.kubectl(&["delete", "namespace", "ending", "--timeout=60s"]).await.unwrap();
    signal(pid, Signal::CONT).unwrap();
}

async fn an_eviction_in_another_namespace_does_not_depend_on_the_operator(cluster: &TestCluster) {
    let pods = Api::<Pod>::namespaced(cluster.plane.admin.clone(), "ending");
    let pod = json!({
        "metadata": { "name": "unrelated" },
        "spec": { "containers": [{ "name": "c", "image": "nginx:1" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    pods.evict("unrelated", &EvictParams::default()).await.unwrap();
}

/// Reviews from clients that do not know the path token are rejected and start nothing.
async fn forged_reviews_start_nothing(cluster: &TestCluster, pod: &str) {
    let (url, bundle) = &cluster.eviction_webhook().await.unwrap();
    let review = eviction(&cluster.namespace, pod);
    let (with_token, guessed) = (url.path(), url.path().replacen('/', "/0", 1));
    assert_eq!(post(url, bundle, &guessed, &review.to_string()).await.unwrap(), 404);
    assert_eq!(post(url, bundle, "/", &review.to_string()).await.unwrap(), 404);
    assert_eq!(post(url, bundle, with_token, "{").await.unwrap(), 400);
    assert_eq!(post(url, bundle, with_token, &" ".repeat(9 << 20)).await.unwrap(), 413);
    let labels = async || cluster.pods().get(pod).await.unwrap().labels().clone();
    assert!(!labels().await.contains_key(well_known::TO_DELETE));
    // The same review with the token starts the deletion.
    assert_eq!(post(url, bundle, with_token, &review.to_string()).await.unwrap(), 200);
    cluster.wait_until_deleted(pod).await.unwrap();
    cluster.wait_for_replicas("web", [1; 4]).await.unwrap();
}

/// CollaSets of the drained node: name, replicas, and maximum number of unavailable Pods.
const DRAINED_SETS: [(&str, i32, usize); 5] =
    [("single", 1, 0), ("small", 4, 1), ("middle", 7, 2), ("large", 8, 2), ("larger", 10, 3)];

async fn kubectl_drain_succeeds_and_exceeds_no_budget() {
    let programs = programs().unwrap();
    let cluster = TestCluster::start_with_client_certificates(&programs).await.unwrap();
    let node = "node-0";
    let others = ["node-1", "node-2", "node-3", "node-4"];
    for other in others {
        cluster.plane.kubectl(&["cordon", other]).await.unwrap();
    }
    for (name, replicas, max_unavailable) in DRAINED_SETS {
        let deletion_policy = if replicas == 1 { "Replace" } else { "Delete" };
        let template = json!({
            "metadata": { "labels": { "app": name, TEAM: name }, "annotations": { well_known::DELETION_POLICY: deletion_policy } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let policy = if max_unavailable == 0 {
            json!({ "minAvailableValue": 1 })
        } else {
            json!({ "maxUnavailableValue": max_unavailable })
        };
        let rule = json!([{ "name": "budget", "availablePolicy": policy }]);
        cluster.create_rule(name, app(name), rule).await.unwrap();
        cluster.create_and_wait(name, replicas, &json!({ "template": template })).await.unwrap();
    }
    let on_node = async || {
        let pods = cluster.pods().list(&ListParams::default()).await?.items;
        let is_on_node =
            |pod: &&Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
        anyhow::Ok(pods.iter().filter(is_on_node).count())
    };
    assert_eq!(on_node().await.unwrap(), 30);
    for other in others {
        cluster.plane.kubectl(&["uncordon", other]).await.unwrap();
    }
    let (monitor, start) =
        (AvailabilityMonitor::start(&cluster).await.unwrap(), cluster.audit_log_end().unwrap());
    cluster.plane.kubectl(&["drain", node, "--timeout=180s"]).await.unwrap();
    let (requests, _) = cluster.requests(start).unwrap();
    assert_eq!(on_node().await.unwrap(), 0);
    for (name, replicas, max_unavailable) in DRAINED_SETS {
        cluster.wait_for_replicas(name, [replicas; 4]).await.unwrap();
        let least = usize::try_from(replicas).unwrap() - max_unavailable;
        assert!(
            monitor.min_available(name) >= least,
            "{name}: {} of {replicas} available",
            monitor.min_available(name)
        );
        assert!(
            monitor.max_unavailable(name) <= max_unavailable.max(1),
            "{name}: {} unavailable",
            monitor.max_unavailable(name)
        );
    }
    let evictions = requests.iter().filter(|r| r.subresource() == "eviction").count();
    assert!(evictions >= 30, "{evictions} evictions requested");
    a_review_without_a_client_certificate_is_refused(&cluster).await;
    cluster.assert_no_forbidden_requests().unwrap();
}

/// The path token alone permits nothing if the API server has a client certificate.
async fn a_review_without_a_client_certificate_is_refused(cluster: &TestCluster) {
    let pod = pod_of(cluster, "small").await.name_any();
    let (url, bundle) = cluster.eviction_webhook().await.unwrap();
    let review = eviction(&cluster.namespace, &pod);
    assert!(post(&url, &bundle, url.path(), &review.to_string()).await.is_err());
    let labels = cluster.pods().get(&pod).await.unwrap().labels().clone();
    assert!(!labels.contains_key(well_known::TO_DELETE));
}
