//! Every other way that a Pod can go: deletes, evictions, and drains of whole nodes.
//! Numbers in names are those of the peer's weaknesses in the specification.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    core::v1::{ConfigMap, Pod, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
    core::Status,
};
use podops_api::{lifecycle, well_known};
use podops_e2e::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{TIMEOUT, TestCluster, app, eventually, programs},
    process::{Signal, signal},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Kuperator's words, which people look for.
const KNOWN: &str = "pod deletion process is underway and being managed by PodOpsLifecycle";

async fn cluster() -> TestCluster {
    TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap()
}

async fn pod_of(cluster: &TestCluster, set: &str) -> Pod {
    cluster.pods_of(set).await.unwrap().remove(0)
}

/// What the server has against a delete; empty if it has nothing.
async fn delete(cluster: &TestCluster, pod: &str, params: &DeleteParams) -> String {
    match cluster.pods().delete(pod, params).await {
        Ok(_) => String::new(),
        Err(kube::Error::Api(status)) => status.message,
        Err(other) => panic!("{other}"),
    }
}

/// What the server has against an eviction.
async fn evict(cluster: &TestCluster, pod: &str) -> Result<(), Box<Status>> {
    let pods = Api::<Pod>::namespaced(cluster.plane.client_without_retries().await.unwrap(), &cluster.namespace);
    match pods.evict(pod, &EvictParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

fn hold(kind: &str) -> Value {
    json!([{ "name": kind, "availablePolicy": { "maxUnavailableValue": 0 } }])
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_when_their_lifecycles_let_them() {
    let cluster = cluster().await;
    tokio::join!(
        a_deleted_pod_leaves_service_first_and_another_takes_its_place(&cluster),
        who_waits_is_told_what_for_and_may_change_their_mind(&cluster),
        weakness_7_a_dry_run_changes_nothing(&cluster),
        weakness_6_a_pod_that_was_evicted_and_terminates_is_not_held(&cluster),
        pods_that_are_not_under_control_go_as_ever(&cluster),
        an_evicted_pod_is_waited_for(&cluster),
        budgets_count_the_pods_that_are_on_their_way(&cluster),
        a_pod_is_replaced_before_it_leaves(&cluster),
        rules_that_cannot_be_kept_are_refused(&cluster),
    );
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn a_deleted_pod_leaves_service_first_and_another_takes_its_place(cluster: &TestCluster) {
    cluster.create_and_wait("leaving", 2, &json!({})).await.unwrap();
    let pod = pod_of(cluster, "leaving").await;
    let name = pod.name_any();
    let finalizer = format!("{}/balancer", well_known::PROTECTION_FINALIZER);
    cluster.patch_pod_metadata(&name, json!({ "finalizers": [finalizer] })).await.unwrap();
    let told = delete(cluster, &name, &DeleteParams::default()).await;
    assert!(told.contains(KNOWN) && told.contains(&format!("finalizers: [{finalizer}]")), "{told}");
    cluster
        .wait_for_pod(&name, |pod| !pod.labels().contains_key(well_known::SERVICE_AVAILABLE))
        .await
        .unwrap();
    let told = delete(cluster, &name, &DeleteParams::default().grace_period(0)).await;
    assert!(told.contains("operation pod-delete: Preparing since "), "{told}");
    assert!(told.contains(", waiting for traffic controllers"), "{told}");
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("leaving", [2; 4]).await.unwrap();
    cluster.wait_for_event(&name, "DeletionRequested").await.unwrap();
}

async fn who_waits_is_told_what_for_and_may_change_their_mind(cluster: &TestCluster) {
    cluster.create_and_wait("staying", 1, &json!({})).await.unwrap();
    cluster.create_rule("staying", app("staying"), hold("none-may-go")).await.unwrap();
    let name = pod_of(cluster, "staying").await.name_any();
    assert!(delete(cluster, &name, &DeleteParams::default()).await.contains(KNOWN));
    cluster.wait_for_pod(&name, |pod| lifecycle::is_operated_on(pod.labels())).await.unwrap();
    let told = delete(cluster, &name, &DeleteParams::default()).await;
    assert!(told.contains("operation pod-delete: PreCheck since "), "{told}");
    assert!(told.contains(", waiting for a rule checker"), "{told}");
    cluster.patch_pod_metadata(&name, json!({ "labels": { well_known::TO_DELETE: null } })).await.unwrap();
    let stays = |pod: &Pod| {
        !lifecycle::is_operated_on(pod.labels())
            && pod.labels().contains_key(well_known::SERVICE_AVAILABLE)
            && !pod.labels().contains_key(well_known::PREPARING_TO_DELETE)
    };
    cluster.wait_for_pod(&name, stays).await.unwrap();
}

async fn weakness_7_a_dry_run_changes_nothing(cluster: &TestCluster) {
    cluster.create_and_wait("dry", 1, &json!({})).await.unwrap();
    let before = pod_of(cluster, "dry").await;
    let name = before.name_any();
    let told = delete(cluster, &name, &DeleteParams::default().dry_run()).await;
    assert!(told.contains(KNOWN), "{told}");
    // As kubectl asks for it: in the eviction, not in the request; kube's own way is lost on the server.
    let options = json!({ "dryRun": ["All"] });
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name },
        "deleteOptions": options,
    });
    let params = PostParams::default();
    let answer: Value =
        cluster.pods().create_subresource("eviction", &name, &params, &eviction).await.unwrap();
    assert_eq!(answer["status"], "Success");
    let asked = ["delete", "pod", &name, "--dry-run=server", "--namespace", &cluster.namespace];
    assert!(cluster.plane.kubectl(&asked).await.unwrap_err().to_string().contains(KNOWN));
    let after = cluster.pods().get(&name).await.unwrap();
    assert_eq!(after.resource_version(), before.resource_version());
}

async fn weakness_6_a_pod_that_was_evicted_and_terminates_is_not_held(cluster: &TestCluster) {
    cluster.create_and_wait("ended", 2, &json!({})).await.unwrap();
    let name = pod_of(cluster, "ended").await.name_any();
    let held = json!({ "finalizers": ["podops.test/held"] });
    cluster.patch_pod_metadata(&name, held).await.unwrap();
    assert!(evict(cluster, &name).await.is_err());
    // It terminates and is held by somebody else's finalizer: whoever deletes it again may.
    cluster.wait_for_pod(&name, |pod| pod.metadata.deletion_timestamp.is_some()).await.unwrap();
    assert_eq!(delete(cluster, &name, &DeleteParams::default().grace_period(0)).await, "");
    assert!(evict(cluster, &name).await.is_ok());
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("ended", [2; 4]).await.unwrap();
}

async fn pods_that_are_not_under_control_go_as_ever(cluster: &TestCluster) {
    let make = async |name: &str| {
        let spec = json!({ "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "nginx:1" }] });
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        let pod = serde_json::from_value(pod).unwrap();
        cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
    };
    make("free").await;
    assert_eq!(delete(cluster, "free", &DeleteParams::default()).await, "");
    make("free-too").await;
    assert!(evict(cluster, "free-too").await.is_ok());
    cluster.wait_until_deleted("free-too").await.unwrap();
}

async fn an_evicted_pod_is_waited_for(cluster: &TestCluster) {
    cluster.create_and_wait("evicted", 2, &json!({})).await.unwrap();
    let name = pod_of(cluster, "evicted").await.name_any();
    let status = evict(cluster, &name).await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"), "{status:?}");
    let details = status.details.unwrap();
    assert!(details.retry_after_seconds > 0);
    assert_eq!(details.causes[0].reason, "PodOpsLifecycle");
    assert!(details.causes[0].message.contains(KNOWN));
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("evicted", [2; 4]).await.unwrap();
}

async fn budgets_count_the_pods_that_are_on_their_way(cluster: &TestCluster) {
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
    let pods = cluster.pods_of("budgeted").await.unwrap();
    let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    let answers = tokio::join!(
        evict(cluster, &names[0]),
        evict(cluster, &names[1]),
        evict(cluster, &names[2]),
        evict(cluster, &names[3]),
    );
    let answers = [answers.0, answers.1, answers.2, answers.3].map(Result::unwrap_err);
    let cause = |status: &Status| status.details.as_ref().unwrap().causes[0].reason.clone();
    let mut causes = answers.each_ref().map(|status| cause(status));
    causes.sort();
    let over = "DisruptionBudget";
    assert_eq!(causes, [over, over, over, "PodOpsLifecycle"], "{answers:#?}");
    let asked: Vec<bool> = cluster
        .pods_of("budgeted")
        .await
        .unwrap()
        .iter()
        .map(|pod| pod.labels().contains_key(well_known::TO_DELETE))
        .collect();
    assert!(asked.iter().filter(|asked| **asked).count() <= 1, "{asked:?}");
    cluster.wait_for_replicas("budgeted", [4; 4]).await.unwrap();
}

async fn a_pod_is_replaced_before_it_leaves(cluster: &TestCluster) {
    let marked = json!({ "app": "replaced", TEAM: "replaced" });
    let template = json!({
        "metadata": { "labels": marked, "annotations": { well_known::DELETION_POLICY: "Replace" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    cluster.create_and_wait("replaced", 1, &json!({ "template": template })).await.unwrap();
    let seen = AvailabilityMonitor::start(cluster).await.unwrap();
    for way in ["delete", "evict"] {
        let name = pod_of(cluster, "replaced").await.name_any();
        if way == "delete" {
            let told = delete(cluster, &name, &DeleteParams::default()).await;
            assert!(told.contains("waiting for a replacement Pod"), "{told}");
        } else {
            assert_eq!(evict(cluster, &name).await.unwrap_err().code, 429);
        }
        cluster.wait_until_deleted(&name).await.unwrap();
        cluster.wait_for_replicas("replaced", [1; 4]).await.unwrap();
    }
    assert_eq!(seen.min_available("replaced"), 1, "at every instant one served");
}

/// What the schema cannot judge; all of it is in the operator's own tests.
async fn rules_that_cannot_be_kept_are_refused(cluster: &TestCluster) {
    let rule = |name: &str, expression: &str| {
        let kinds = json!([{ "name": "one", "cel": { "expression": expression } }]);
        let spec = json!({ "selector": app("nobody"), "rules": kinds });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    // The API server takes a moment to ask.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refused = async || {
        let made = cluster.rules().create(&dry, &rule("bad", "pod.metadata ==")).await;
        Ok(made.is_err_and(|e| e.to_string().contains("spec.rules[one].cel.expression: ")))
    };
    eventually(TIMEOUT, refused).await.unwrap();
    let good = rule("good", "has(pod.metadata)");
    cluster.rules().create(&PostParams::default(), &good).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_operator_is_down_pods_that_serve_stay_and_the_cluster_goes_on() {
    let cluster = cluster().await;
    cluster.create_and_wait("web", 1, &json!({})).await.unwrap();
    let name = pod_of(&cluster, "web").await.name_any();
    forged_reviews_begin_nothing(&cluster, &name).await;
    let name = pod_of(&cluster, "web").await.name_any();
    cluster.plane.kubectl(&["create", "namespace", "ending"]).await.unwrap();
    let (owned, ending) =
        (cluster.pods(), Api::<Pod>::namespaced(cluster.plane.admin.clone(), "ending"));
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.plane.admin.clone(), "ending");
    eventually(TIMEOUT, async || Ok(accounts.get_opt("default").await?.is_some())).await.unwrap();
    let maps = cluster.api::<ConfigMap>();
    let map = serde_json::from_value(json!({ "metadata": { "name": "owner" } })).unwrap();
    let map = maps.create(&PostParams::default(), &map).await.unwrap();
    let owner_of = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": map.uid().unwrap(),
    }]);
    for (pods, owners) in [(&owned, owner_of), (&ending, json!([]))] {
        let labels = json!({ well_known::CONTROL: "true" });
        let gates = json!([{ "conditionType": well_known::SERVICE_READY }]);
        let pod = json!({
            "metadata": { "name": "graceful-deletion", "labels": labels, "ownerReferences": owners },
            "spec": { "readinessGates": gates, "containers": [{ "name": "c", "image": "nginx:1" }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let serves = async || {
            Ok(pods
                .get("graceful-deletion")
                .await?
                .labels()
                .contains_key(well_known::SERVICE_AVAILABLE))
        };
        eventually(TIMEOUT, serves).await.unwrap();
    }
    // One that no node has seen, so that nobody writes its status but this.
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

    let down = cluster.operator("lifecycle-operator").unwrap().pid();
    signal(down, Signal::STOP).unwrap();
    let told = delete(&cluster, &name, &DeleteParams::default()).await;
    assert!(told.contains("failed calling webhook"), "{told}");
    assert_eq!(evict(&cluster, &name).await.unwrap_err().code, 500);
    assert_eq!(delete(&cluster, "failed", &DeleteParams::default()).await, "");
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_deleted("graceful-deletion").await.unwrap();
    cluster.plane.kubectl(&["delete", "namespace", "ending", "--timeout=60s"]).await.unwrap();
    signal(down, Signal::CONT).unwrap();
}

/// Who can reach the port, and sends what the API server sends, is no API server.
async fn forged_reviews_begin_nothing(cluster: &TestCluster, pod: &str) {
    let hooks: Api<ValidatingWebhookConfiguration> = Api::all(cluster.plane.admin.clone());
    let hooks = hooks.get("podops-lifecycle-operator").await.unwrap().webhooks.unwrap();
    let url: http::Uri = hooks[1].client_config.url.as_ref().unwrap().parse().unwrap();
    let bundle = &hooks[1].client_config.ca_bundle.as_ref().unwrap().0;
    let request = json!({
        "uid": "1", "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
        "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": "eviction",
        "name": pod, "namespace": cluster.namespace, "operation": "CREATE", "userInfo": {},
    });
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
    let (known, guessed) = (url.path(), url.path().replacen('/', "/0", 1));
    assert_eq!(post(&url, bundle, &guessed, &review.to_string()).await, 404);
    assert_eq!(post(&url, bundle, "/", &review.to_string()).await, 404);
    assert_eq!(post(&url, bundle, known, "{").await, 400);
    assert_eq!(post(&url, bundle, known, &" ".repeat(9 << 20)).await, 413);
    let labels = async || cluster.pods().get(pod).await.unwrap().labels().clone();
    assert!(!labels().await.contains_key(well_known::TO_DELETE));
    // The same review begins something where the API server sends it.
    assert_eq!(post(&url, bundle, known, &review.to_string()).await, 200);
    cluster.wait_until_deleted(pod).await.unwrap();
    cluster.wait_for_replicas("web", [1; 4]).await.unwrap();
}

/// Posts over TLS, trusting whom the API server trusts; the status that comes back.
async fn post(url: &http::Uri, bundle: &[u8], path: &str, body: &str) -> u16 {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(url.authority().unwrap().as_str()).await.unwrap();
    let name = ServerName::try_from(url.host().unwrap().to_owned()).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // Whoever reads no further may hang up.
    drop(stream.write_all(body.as_bytes()).await);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
}

/// The sets of a drained node: a name, how many Pods it has, and how many of them may be out.
const DRAINED: [(&str, i32, usize); 5] =
    [("single", 1, 0), ("small", 4, 1), ("middle", 7, 2), ("large", 8, 2), ("larger", 10, 3)];

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_and_succeeds_and_keeps_every_budget() {
    let cluster = cluster().await;
    let node = "node-0";
    let others = ["node-1", "node-2", "node-3", "node-4"];
    for other in others {
        cluster.plane.kubectl(&["cordon", other]).await.unwrap();
    }
    for (name, replicas, out) in DRAINED {
        let single = if replicas == 1 { "Replace" } else { "Delete" };
        let template = json!({
            "metadata": { "labels": { "app": name, TEAM: name }, "annotations": { well_known::DELETION_POLICY: single } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let policy = if out == 0 {
            json!({ "minAvailableValue": 1 })
        } else {
            json!({ "maxUnavailableValue": out })
        };
        let rule = json!([{ "name": "pace", "availablePolicy": policy }]);
        cluster.create_rule(name, app(name), rule).await.unwrap();
        cluster.create_and_wait(name, replicas, &json!({ "template": template })).await.unwrap();
    }
    let on_node = async || {
        let pods = cluster.pods().list(&ListParams::default()).await?.items;
        let of = |pod: &&Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
        anyhow::Ok(pods.iter().filter(of).count())
    };
    assert_eq!(on_node().await.unwrap(), 30);
    for other in others {
        cluster.plane.kubectl(&["uncordon", other]).await.unwrap();
    }
    let (seen, from) = (AvailabilityMonitor::start(&cluster).await.unwrap(), cluster.audit_log_end().unwrap());
    cluster.plane.kubectl(&["drain", node, "--timeout=180s"]).await.unwrap();
    let (requests, _) = cluster.requests(from).unwrap();
    assert_eq!(on_node().await.unwrap(), 0);
    for (name, replicas, out) in DRAINED {
        cluster.wait_for_replicas(name, [replicas; 4]).await.unwrap();
        let least = usize::try_from(replicas).unwrap() - out;
        assert!(seen.min_available(name) >= least, "{name}: {} of {replicas} served", seen.min_available(name));
        assert!(seen.max_unavailable(name) <= out.max(1), "{name}: {} were out", seen.max_unavailable(name));
    }
    let evictions = requests.iter().filter(|r| r.subresource() == "eviction").count();
    assert!(evictions >= 30, "{evictions} evictions were asked for");
    cluster.assert_no_forbidden_requests().unwrap();
}
