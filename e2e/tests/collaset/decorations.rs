//! PodDecorations on a real API server: injection, updates in place and by recreation, partitions,
//! deletion, conflicts, bad input, and the number of requests.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    condition,
    pod_decoration::{PodDecoration, PodDecorationStatus},
    well_known,
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    measure::Cost,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .group(
            Group::new("pod_decorations", Lane::Beside, new_cluster)
                .beside(a_decoration_is_injected_updated_and_removed)
                .beside(a_partition_holds_pods_back)
                .beside(one_decoration_serves_two_collasets)
                .beside(weights_order_the_decorations)
                .beside(set_and_decoration_are_updated_separately)
                .beside(a_conflict_is_reported_and_affects_nothing_else)
                .beside(an_unknown_volume_is_a_conflict_until_it_is_fixed)
                .beside(labels_are_added_and_removed_without_recreation)
                .beside(a_decoration_that_the_api_server_rejects_is_left_out)
                .beside(bad_decorations_are_rejected)
                .end(all_requests_are_permitted),
        )
        .scenario(Lane::Beside, a_sidecar_update_needs_few_api_requests)
}

fn decorations(cluster: &TestCluster) -> Api<PodDecoration> {
    cluster.api()
}

/// Creates a decoration of the Pods of a CollaSet; the fields of `spec` are added to its spec.
async fn decorate(cluster: &TestCluster, name: &str, app: &str, mut spec: Value) {
    spec["selector"] = json!({ "matchLabels": { "app": app } });
    let decoration = json!({ "metadata": { "name": name }, "spec": spec });
    let decoration = serde_json::from_value(decoration).unwrap();
    decorations(cluster).create(&PostParams::default(), &decoration).await.unwrap();
}

/// Spec of a decoration that adds a sidecar behind the containers of the Pod.
fn sidecar(name: &str, image: &str) -> Value {
    let container =
        json!({ "name": name, "image": image, "injectPolicy": "AfterPrimaryContainer" });
    json!({ "template": { "containers": [container] } })
}

async fn patch(cluster: &TestCluster, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    decorations(cluster).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the status of a decoration is of the current generation and fulfils `condition`.
async fn wait(cluster: &TestCluster, name: &str, condition: impl Fn(&PodDecorationStatus) -> bool) {
    let api = decorations(cluster);
    let waited = eventually(TIMEOUT, async || {
        let decoration = api.get(name).await?;
        let generation = decoration.metadata.generation;
        let status = decoration.status.unwrap_or_default();
        Ok(Some(status.observed_generation) == generation && condition(&status))
    });
    let is_reached = waited.await.is_ok();
    assert!(is_reached, "{name}: {:#?}", decorations(cluster).get(name).await.unwrap().status);
}

/// Waits until this many Pods are selected, and as many updated and available.
async fn wait_for_pods(cluster: &TestCluster, name: &str, matched: i32, updated: i32) {
    let is_rolled_out = |s: &PodDecorationStatus| {
        [s.matched_pods, s.updated_pods, s.updated_available_pods] == [matched, updated, updated]
    };
    wait(cluster, name, is_rolled_out).await;
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

fn images(pod: &Pod) -> Vec<String> {
    let containers = &pod.spec.as_ref().unwrap().containers;
    containers.iter().map(|container| container.image.clone().unwrap_or_default()).collect()
}

fn count(pods: &[Pod], image: &str) -> usize {
    pods.iter().filter(|pod| images(pod).iter().any(|known| known == image)).count()
}

async fn a_decoration_is_injected_updated_and_removed(cluster: &TestCluster) {
    cluster.create_and_wait("inject", 2, &json!({})).await.unwrap();
    let bare = pods(cluster, "inject").await;
    decorate(cluster, "inject", "inject", sidecar("log", "log:1")).await;
    // The current revision follows once the status of the CollaSet reports all its Pods.
    wait(cluster, "inject", |s| {
        s.updated_available_pods == 2 && s.updated_revision == s.current_revision
    })
    .await;
    let injected = pods(cluster, "inject").await;
    assert!(uids(&injected).is_disjoint(&uids(&bare)), "a container is added by recreation");
    let revision = decorations(cluster).get("inject").await.unwrap().status.unwrap();
    for pod in &injected {
        assert_eq!(images(pod), ["nginx:1", "log:1"]);
        let label = &pod.labels()["poddecoration.kusionstack.io/pd-inject"];
        assert_eq!(*label, revision.updated_revision);
        let annotation = json!([{ "name": "inject", "revision": revision.updated_revision }]);
        assert_eq!(pod.annotations()[well_known::DECORATIONS], annotation.to_string());
    }
    patch(cluster, "inject", sidecar("log", "log:2")).await;
    wait(cluster, "inject", |s| {
        s.updated_available_pods == 2 && s.updated_revision == s.current_revision
    })
    .await;
    let updated = pods(cluster, "inject").await;
    assert_eq!(uids(&updated), uids(&injected), "an image is changed in place");
    assert_eq!(count(&updated, "log:2"), 2);

    decorations(cluster).delete("inject", &DeleteParams::default()).await.unwrap();
    let is_gone = async || Ok(decorations(cluster).get_opt("inject").await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
    for pod in pods(cluster, "inject").await {
        assert_eq!(images(&pod), ["nginx:1"]);
        assert!(pod.labels().keys().all(|key| !key.starts_with("poddecoration")));
    }
    cluster.wait_until_rolled_out("inject", 2, TIMEOUT).await.unwrap();
}

async fn a_partition_holds_pods_back(cluster: &TestCluster) {
    cluster.create_and_wait("part", 3, &json!({})).await.unwrap();
    let mut spec = sidecar("log", "log:1");
    spec["updateStrategy"] = json!({ "rollingUpdate": { "partition": 2 } });
    decorate(cluster, "part", "part", spec).await;
    wait_for_pods(cluster, "part", 3, 1).await;
    cluster.wait_until_changes_are_handled("after-partition").await.unwrap();
    let decorated = pods(cluster, "part").await;
    assert_eq!(count(&decorated, "log:1"), 1);
    // A Pod that was does not have the revision is lost: neither gets its successor.
    let held = decorated.iter().find(|pod| images(pod).len() == 1).unwrap();
    let id = held.labels()[well_known::INSTANCE_ID].clone();
    cluster.pods().delete(&held.name_any(), &DeleteParams::default()).await.unwrap();
    let is_recreated = async || {
        let pods = pods(cluster, "part").await;
        let successor = pods.iter().find(|pod| pod.labels()[well_known::INSTANCE_ID] == id);
        Ok(successor.is_some_and(|pod| pod.uid() != held.uid() && images(pod).len() == 1))
    };
    eventually(TIMEOUT, is_recreated).await.unwrap();
    patch(cluster, "part", json!({ "updateStrategy": { "rollingUpdate": { "partition": 1 } } }))
        .await;
    wait_for_pods(cluster, "part", 3, 2).await;
    let held = decorations(cluster).get("part").await.unwrap().status.unwrap();
    assert_eq!(held.current_revision, "", "one Pod does not have it");
    patch(cluster, "part", json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } }))
        .await;
    wait(cluster, "part", |s| {
        s.updated_available_pods == 3 && s.current_revision == s.updated_revision
    })
    .await;
}

async fn one_decoration_serves_two_collasets(cluster: &TestCluster) {
    let mut spec = sidecar("log", "log:1");
    spec["updateStrategy"] = json!({ "rollingUpdate": {
        "selector": { "matchLabels": { (well_known::INSTANCE_ID): "0" } } } });
    decorate(cluster, "both", "both", spec).await;
    // Before there are Pods, the updated revision is the current one as well.
    wait(cluster, "both", |s| !s.current_revision.is_empty()).await;
    let template = json!({
        "metadata": { "labels": { "app": "both" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let overrides =
        json!({ "selector": { "matchLabels": { "app": "both" } }, "template": template });
    for set in ["both-a", "both-b"] {
        cluster.create_with(set, 2, "nginx:1", &overrides).await.unwrap();
    }
    wait_for_pods(cluster, "both", 4, 4).await;
    let mut init = sidecar("log", "log:1");
    init["template"]["initContainers"] = json!([{ "name": "setup", "image": "setup:1" }]);
    patch(cluster, "both", init).await;
    wait_for_pods(cluster, "both", 4, 2).await;
    cluster.wait_until_changes_are_handled("after-both").await.unwrap();
    let pods = pods(cluster, "both").await;
    let has_init =
        |pod: &&Pod| pod.spec.as_ref().unwrap().init_containers.iter().flatten().count() == 1;
    let ids: Vec<&String> =
        pods.iter().filter(has_init).map(|pod| &pod.labels()[well_known::INSTANCE_ID]).collect();
    assert_eq!(ids, ["0", "0"]);
    let status = decorations(cluster).get("both").await.unwrap().status.unwrap();
    let sets: Vec<&str> = status.details.iter().map(|set| set.colla_set.as_str()).collect();
    assert_eq!(sets, ["both-a", "both-b"]);
}

async fn weights_order_the_decorations(cluster: &TestCluster) {
    let by_weight = |container: &str, weight: i32| {
        let mut spec = sidecar(container, &format!("{container}:1"));
        spec["weight"] = json!(weight);
        spec
    };
    decorate(cluster, "weight-a", "weight", by_weight("late", 11)).await;
    decorate(cluster, "weight-b", "weight", by_weight("early", 10)).await;
    cluster.create_and_wait("weight", 1, &json!({})).await.unwrap();
    wait_for_pods(cluster, "weight-a", 1, 1).await;
    wait_for_pods(cluster, "weight-b", 1, 1).await;
    assert_eq!(images(&pods(cluster, "weight").await[0]), ["nginx:1", "early:1", "late:1"]);
}

async fn set_and_decoration_are_updated_separately(cluster: &TestCluster) {
    decorate(cluster, "apart", "apart", sidecar("log", "log:1")).await;
    cluster.create_and_wait("apart", 3, &json!({})).await.unwrap();
    wait_for_pods(cluster, "apart", 3, 3).await;
    let by_partition = |partition: i32| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } });
    cluster.patch("apart", by_partition(2)).await.unwrap();
    cluster.set_image("apart", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("apart", [3, 3, 3, 1]).await.unwrap();
    wait_for_pods(cluster, "apart", 3, 3).await;
    let before = uids(&pods(cluster, "apart").await);
    let mut held = sidecar("log", "log:2");
    held["updateStrategy"] = json!({ "rollingUpdate": { "partition": 1 } });
    patch(cluster, "apart", held).await;
    wait_for_pods(cluster, "apart", 3, 2).await;
    cluster.wait_for_replicas("apart", [3, 3, 3, 1]).await.unwrap();
    let decorated = pods(cluster, "apart").await;
    assert_eq!((count(&decorated, "nginx:2"), count(&decorated, "log:2")), (1, 2));
    cluster.patch("apart", by_partition(0)).await.unwrap();
    cluster.wait_for_replicas("apart", [3; 4]).await.unwrap();
    wait_for_pods(cluster, "apart", 3, 2).await;
    patch(cluster, "apart", json!({ "updateStrategy": { "rollingUpdate": { "partition": 0 } } }))
        .await;
    wait_for_pods(cluster, "apart", 3, 3).await;
    assert_eq!(uids(&pods(cluster, "apart").await), before, "only images have changed");
}

async fn a_conflict_is_reported_and_affects_nothing_else(cluster: &TestCluster) {
    cluster.create_and_wait("conflict", 1, &json!({})).await.unwrap();
    decorate(cluster, "conflict-bad", "conflict", sidecar("web", "other:1")).await;
    decorate(cluster, "conflict-good", "conflict", sidecar("log", "log:1")).await;
    wait_for_pods(cluster, "conflict-good", 1, 1).await;
    wait(cluster, "conflict-bad", |status| {
        let degraded = condition::find(&status.conditions, "Degraded");
        let message = degraded.and_then(|c| c.message.as_deref()).unwrap_or_default();
        message == "CollaSet conflict: the Pod has a container web already; rename one of them"
    })
    .await;
    cluster.wait_for_event("conflict-bad", "DecorationConflict").await.unwrap();
    let decorated = pods(cluster, "conflict").await;
    assert_eq!(images(&decorated[0]), ["nginx:1", "log:1"]);
    let status = decorations(cluster).get("conflict-bad").await.unwrap().status.unwrap();
    assert!(status.details[0].pods[0].escaped, "{status:#?}");
    patch(cluster, "conflict-bad", sidecar("renamed", "other:1")).await;
    wait_for_pods(cluster, "conflict-bad", 1, 1).await;
}

async fn labels_are_added_and_removed_without_recreation(cluster: &TestCluster) {
    cluster.create_and_wait("labels", 2, &json!({})).await.unwrap();
    let before = uids(&pods(cluster, "labels").await);
    let metadata = json!([{ "labels": { "team": "a" }, "annotations": { "note": "x" } }]);
    decorate(cluster, "labels", "labels", json!({ "template": { "metadata": metadata } })).await;
    wait_for_pods(cluster, "labels", 2, 2).await;
    let decorated = pods(cluster, "labels").await;
    assert!(decorated.iter().all(|pod| pod.labels()["team"] == "a"));
    decorations(cluster).delete("labels", &DeleteParams::default()).await.unwrap();
    let is_gone = async || Ok(decorations(cluster).get_opt("labels").await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
    let after = pods(cluster, "labels").await;
    assert_eq!(uids(&after), before, "metadata needs no recreation");
    let is_removed = |pod: &Pod| {
        !pod.labels().contains_key("team")
            && !pod.annotations().contains_key("note")
            && !pod.annotations().contains_key(well_known::DECORATIONS)
    };
    assert!(after.iter().all(is_removed));
}

/// Waits until a condition has this type, this status, and this part in its message.
async fn wait_for_condition(cluster: &TestCluster, decoration: &str, expected: [&str; 3]) {
    let [type_, status_, part] = expected;
    wait(cluster, decoration, |status| {
        condition::find(&status.conditions, type_).is_some_and(|c| {
            let message = c.message.as_deref().unwrap_or_default();
            c.status == status_ && message.contains(part)
        })
    })
    .await;
}

/// No rule of the decorations knows this: only the API server compares a request with its limit.
async fn a_decoration_that_the_api_server_rejects_is_left_out(cluster: &TestCluster) {
    let mut spec = sidecar("log", "log:1");
    spec["template"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "1" } });
    decorate(cluster, "limit", "limit", spec.clone()).await;
    decorate(cluster, "limit-good", "limit", sidecar("other", "other:1")).await;
    wait(cluster, "limit", |_| true).await;
    wait(cluster, "limit-good", |_| true).await;
    cluster.create_and_wait("limit", 2, &json!({})).await.unwrap();
    let message = "the API server rejects the Pod with";
    wait_for_condition(cluster, "limit", ["Stalled", "True", message]).await;
    wait_for_pods(cluster, "limit-good", 2, 2).await;
    for pod in pods(cluster, "limit").await {
        assert_eq!(images(&pod), ["nginx:1", "other:1"]);
    }
    spec["template"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
    patch(cluster, "limit", spec).await;
    wait_for_pods(cluster, "limit", 2, 2).await;
}

async fn an_unknown_volume_is_a_conflict_until_it_is_fixed(cluster: &TestCluster) {
    let mut spec = sidecar("log", "log:1");
    spec["template"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "unknown", "mountPath": "/x" }]);
    decorate(cluster, "volume", "volume", spec.clone()).await;
    // Otherwise the first Pods may be created before the operator has observed the decoration.
    wait(cluster, "volume", |_| true).await;
    // Pods are created without it.
    cluster.create_and_wait("volume", 2, &json!({})).await.unwrap();
    let message = "the Pod has no volume unknown to mount";
    wait_for_condition(cluster, "volume", ["Ready", "False", message]).await;
    spec["template"]["volumes"] = json!([{ "name": "unknown", "emptyDir": {} }]);
    patch(cluster, "volume", spec).await;
    cluster.wait_for_replicas("volume", [2; 4]).await.unwrap();
    wait_for_pods(cluster, "volume", 2, 2).await;
}

/// A rejected spec, and a part of the message.
fn bad_specs() -> Vec<(Value, &'static str)> {
    let template = |part: &str, value: Value| json!({ "template": { part: value } });
    let primary = |value: Value| template("primaryContainers", json!([value]));
    let mount = |mount: Value| primary(json!({ "targetPolicy": "All", "volumeMounts": [mount] }));
    vec![
        (
            json!({ "selector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } }),
            "operator",
        ),
        (
            json!({ "selector": { "matchLabels": { "a": "no label" } } }),
            "spec.selector.matchLabels",
        ),
        (json!({ "updateStrategy": { "rollingUpdate": { "partition": -1 } } }), "partition"),
        (json!({ "historyLimit": -1 }), "historyLimit"),
        (primary(json!({ "targetPolicy": "ByName" })), "primaryContainers"),
        (primary(json!({ "targetPolicy": "Some" })), "targetPolicy"),
        (primary(json!({ "env": [{ "name": "", "value": "x" }] })), "env[0].name"),
        (mount(json!({ "name": "", "mountPath": "/x" })), "volumeMounts[0].name"),
        (mount(json!({ "name": "v" })), "mountPath"),
        (mount(json!({ "name": "v", "mountPath": "/x", "subPath": "/y" })), "subPath"),
        (mount(json!({ "name": "v", "mountPath": "/x", "subPath": "a/../b" })), "subPath"),
        (
            mount(json!({ "name": "v", "mountPath": "/x", "subPath": "a", "subPathExpr": "b" })),
            "mutually exclusive",
        ),
        (template("volumes", json!([{ "emptyDir": {} }])), "volumes[0].name"),
        (template("initContainers", json!([{ "image": "i" }])), "initContainers[0].name"),
        (template("containers", json!([{ "name": "a" }, { "name": "a" }])), "Duplicate"),
        (
            template("containers", json!([{ "name": "a", "injectPolicy": "Between" }])),
            "injectPolicy",
        ),
        (
            template("tolerations", json!([{ "key": "a", "operator": "Exists", "value": "b" }])),
            "value should be empty",
        ),
        (template("tolerations", json!([{ "effect": "NoSchedule" }])), "operator should be Exists"),
        (
            template(
                "metadata",
                json!([{ "patchPolicy": "MergePatchJson", "labels": { "a": "b" } }]),
            ),
            "labels are not allowed",
        ),
        (template("metadata", json!([{ "labels": { "a": "no label" } }])), "labels"),
    ]
}

async fn bad_decorations_are_rejected(cluster: &TestCluster) {
    let kind = kube::api::ApiResource::erase::<PodDecoration>(&());
    let client = cluster.pods().into_client();
    let api: Api<DynamicObject> = Api::namespaced_with(client, &cluster.namespace, &kind);
    let long = "x".repeat(61);
    let specs = bad_specs().into_iter().map(|(spec, field)| ("bad", spec, field));
    for (name, spec, field) in specs.chain([(long.as_str(), json!({}), "metadata.name")]) {
        let object = DynamicObject::new(name, &kind).data(json!({ "spec": spec }));
        let rejected = api.create(&PostParams::default(), &object).await;
        let message = rejected.map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(field), "{spec}: {message}");
    }
}

/// Updating a sidecar's image on 100 Pods of 3 CollaSets, under a partition of the decoration.
async fn a_sidecar_update_needs_few_api_requests() {
    let cluster = new_cluster().await;
    decorate(&cluster, "fleet", "fleet", sidecar("log", "log:1")).await;
    let template = json!({
        "metadata": { "labels": { "app": "fleet" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let overrides =
        json!({ "selector": { "matchLabels": { "app": "fleet" } }, "template": template });
    for (set, replicas) in [("fleet-a", 40), ("fleet-b", 40), ("fleet-c", 25)] {
        cluster.create_with(set, replicas, "nginx:1", &overrides).await.unwrap();
    }
    wait_for_pods(&cluster, "fleet", 105, 105).await;
    let before = uids(&pods(&cluster, "fleet").await);
    let updated = Cost::of(&cluster, 100, async {
        let mut spec = sidecar("log", "log:2");
        spec["updateStrategy"] = json!({ "rollingUpdate": { "partition": 5 } });
        patch(&cluster, "fleet", spec).await;
        wait_for_pods(&cluster, "fleet", 105, 100).await;
        Ok(())
    });
    let updated = updated.await.unwrap();
    eprintln!("requests per decorated Pod: {:.2}", updated.requests_per_pod());
    assert!(updated.requests_per_pod() <= 7.0, "{:.2}", updated.requests_per_pod());
    updated.ensure_none_rejected().unwrap();
    assert_eq!(uids(&pods(&cluster, "fleet").await), before);

    // An edit that changes no template creates no revision.
    let revisions: Api<ControllerRevision> = cluster.api();
    let known = revisions.list(&ListParams::default()).await.unwrap().items.len();
    patch(&cluster, "fleet", json!({ "historyLimit": 5 })).await;
    wait_for_pods(&cluster, "fleet", 105, 100).await;
    assert_eq!(revisions.list(&ListParams::default()).await.unwrap().items.len(), known);
    let idle = Cost::of(&cluster, 1, async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    assert_eq!(idle.await.unwrap().writes(), 0, "writes while nothing changes");

    // A restarted operator decides the same.
    cluster.kill_and_restart("collaset-operator").await.unwrap();
    let restarted = Cost::of(&cluster, 1, async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    assert_eq!(restarted.await.unwrap().writes(), 0, "writes after a restart");
    assert_eq!(count(&pods(&cluster, "fleet").await, "log:2"), 100);
    assert_eq!(image(&pods(&cluster, "fleet").await[0]), "nginx:1");
    cluster.assert_no_forbidden_requests().unwrap();
}
