//! No Pod is operated on while it receives traffic: Services, HAProxy, and a load generator that
//! counts failed requests.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    availability::AvailableConditions,
    consist,
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use podops_test_cluster::{
    balancers::Haproxy,
    cluster::{
        OPERATORS, TIMEOUT, TestCluster, app, eventually, image, is_rolled_out, is_true, programs,
    },
    measure::Cost,
    scenarios::Scenario,
    server,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
    traffic::{Load, has_protection_finalizer, server_set, update_without_consist},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

async fn create_service(cluster: &TestCluster, name: &str, annotations: &Value) {
    cluster.create_managed_service(name, json!({ "app": name }), annotations).await.unwrap();
}

fn is_protected_by(pod: &Pod, employer: &str) -> bool {
    has_protection_finalizer(pod, consist::SERVICE, employer)
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .group(
            Group::new("protected_pods", Lane::Beside, new_cluster)
                .beside(a_service_protects_and_releases_its_pods)
                .beside(an_unavailable_backend_is_reported_and_can_be_removed)
                .beside(a_new_pod_expects_all_its_services_from_its_creation)
                .beside(a_pod_is_released_after_its_service_was_force_deleted)
                .beside(a_pod_without_readiness_gate_is_reported_and_does_not_wait)
                .beside(a_full_backend_does_not_block_pods_from_being_drained)
                .beside(invalid_backends_are_rejected_at_admission)
                .end(all_requests_are_permitted),
        )
        .scenario(Lane::Beside, a_pod_is_released_and_protected_again_in_two_writes)
        .scenario(Lane::Beside, a_pod_waits_for_its_last_request_not_for_a_timeout)
        .scenario(Lane::Beside, a_failing_and_restarted_backend_releases_no_pod_early)
        .scenario(Lane::Beside, no_request_fails_behind_haproxy)
}

async fn a_service_protects_and_releases_its_pods(cluster: &TestCluster) {
    create_service(cluster, "protected", &json!({})).await;
    cluster.create_and_wait("protected", 3, &json!({})).await.unwrap();
    for pod in cluster.pods_of("protected").await.unwrap() {
        // The API server may load the policy that adds entries after it has created the first Pods.
        cluster
            .wait_for_pod(&pod.name_any(), |pod| {
                let entries = pod.annotations().get(well_known::AVAILABLE_CONDITIONS);
                is_protected_by(pod, "protected")
                    && entries.is_some_and(|e| e.contains("Service/default/protected"))
            })
            .await
            .unwrap();
    }
    cluster.set_image("protected", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("protected", 3, TIMEOUT).await.unwrap();
    // A Pod that is no longer selected is drained and released, as are those of a deleted Service.
    let relabelled = cluster.pods_of("protected").await.unwrap()[0].name_any();
    cluster
        .patch_pod_metadata(&relabelled, json!({ "labels": { "app": "relabelled" } }))
        .await
        .unwrap();
    cluster.wait_for_pod(&relabelled, |pod| !is_protected_by(pod, "protected")).await.unwrap();
    cluster.api::<Service>().delete("protected", &DeleteParams::default()).await.unwrap();
    let deleted = async || Ok(cluster.api::<Service>().get_opt("protected").await?.is_none());
    eventually(TIMEOUT, deleted).await.unwrap();
    for pod in cluster.pods_of("protected").await.unwrap() {
        assert!(!is_protected_by(&pod, "protected"), "Pod {} is still protected", pod.name_any());
    }
}

/// Kuperator's known defect W4 (docs/KUPERATOR.md#known-defects).
async fn a_new_pod_expects_all_its_services_from_its_creation(cluster: &TestCluster) {
    for name in ["first", "second"] {
        cluster
            .create_managed_service(name, json!({ "app": "selected" }), &json!({}))
            .await
            .unwrap();
    }
    let pod = |metadata: Value| {
        let mut pod = json!({
            "metadata": { "name": "dry", "labels": { "app": "selected", well_known::CONTROL: "true" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let added_entries = async |metadata: Value| {
        let created = cluster.pods().create(&dry, &pod(metadata)).await?;
        let text = created.annotations().get(well_known::AVAILABLE_CONDITIONS).cloned();
        anyhow::Ok(text.unwrap_or_default())
    };
    let finalizer = |name| consist::lifecycle_finalizer(consist::SERVICE, "default", name);
    let entries =
        ["first", "second"].map(|name| (format!("Service/default/{name}"), finalizer(name)));
    let both = AvailableConditions { expected_finalizers: entries.into() };
    let read = |text: &str| serde_json::from_str::<AvailableConditions>(text).ok();
    let all = async || Ok(read(&added_entries(json!({})).await?).as_ref() == Some(&both));
    eventually(TIMEOUT, all).await.unwrap();
    let other = r#"{"expectedFinalizers":{"LB/x/y":"prot.podopslifecycle.kusionstack.io/z"}}"#;
    let other_entry = json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: other } });
    let three = read(&added_entries(other_entry).await.unwrap()).unwrap();
    assert_eq!(three.expected_finalizers.len(), 3, "{three:?}");
    let unselected = json!({ "labels": { "app": "unselected", well_known::CONTROL: "true" } });
    assert_eq!(added_entries(unselected).await.unwrap(), "");
    let invalid = json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: "{ \"own\": 1 }" } });
    assert_eq!(
        added_entries(invalid).await.unwrap(),
        "{ \"own\": 1 }",
        "an invalid value is not changed"
    );
}

/// Nothing can take such a Pod out of the EndpointSlices before it is deleted.
async fn a_pod_without_readiness_gate_is_reported_and_does_not_wait(cluster: &TestCluster) {
    create_service(cluster, "ungated", &json!({})).await;
    // A Pod that is under control when it is created gets the readiness gate.
    let pod = json!({
        "metadata": { "name": "ungated", "labels": { "app": "ungated" } },
        "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let pod = serde_json::from_value(pod).unwrap();
    cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
    let is_ready = |pod: &Pod| is_true(pod, "Ready");
    cluster.wait_for_pod("ungated", is_ready).await.unwrap();
    let control = json!({ "labels": { well_known::CONTROL: "true" } });
    cluster.patch_pod_metadata("ungated", control).await.unwrap();
    cluster.wait_for_event("ungated", "TrafficNotProtected").await.unwrap();
    let is_available = |pod: &Pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE);
    cluster.wait_for_pod("ungated", is_available).await.unwrap();

    let key = |kind: LabelKind| kind.key("t");
    let (operating, operation_type) = (key(LabelKind::Operating), key(LabelKind::OperationType));
    let start = json!({ "labels": { &operating: "1", &operation_type: "update" } });
    cluster.patch_pod_metadata("ungated", start).await.unwrap();
    let may_start = |pod: &Pod| pod.labels().contains_key(&key(LabelKind::Operate));
    cluster.wait_for_pod("ungated", may_start).await.unwrap();
    let pod = cluster.pods().get("ungated").await.unwrap();
    assert!(is_ready(&pod) && !is_protected_by(&pod, "ungated"), "{:?}", pod.metadata);
    let end = json!({ "labels": { &operating: null } });
    cluster.patch_pod_metadata("ungated", end).await.unwrap();
    cluster.wait_for_pod("ungated", is_available).await.unwrap();
}

/// A user removed the Service's finalizer and deleted it, so the Pod's finalizer and entry remain.
async fn a_pod_is_released_after_its_service_was_force_deleted(cluster: &TestCluster) {
    cluster.create_and_wait("force-deleted", 1, &json!({})).await.unwrap();
    let pod = cluster.pods_of("force-deleted").await.unwrap()[0].name_any();
    let finalizer = consist::lifecycle_finalizer(consist::SERVICE, "default", "force-deleted");
    let entry =
        json!({ "expectedFinalizers": { "Service/default/force-deleted": finalizer } }).to_string();
    let leftovers = json!({
        "finalizers": [finalizer], "annotations": { well_known::AVAILABLE_CONDITIONS: entry },
    });
    cluster.patch_pod_metadata(&pod, leftovers).await.unwrap();
    let released = async || Ok(!is_protected_by(&cluster.pods().get(&pod).await?, "force-deleted"));
    eventually(TIMEOUT * 3, released).await.unwrap();
    cluster.wait_for_event(&pod, "EmployerNotFound").await.unwrap();
}

async fn an_unavailable_backend_is_reported_and_can_be_removed(cluster: &TestCluster) {
    let unreachable = "127.0.0.2:1".parse().unwrap();
    create_service(cluster, "unreachable", &Haproxy::annotations(&[unreachable])).await;
    cluster.create("unreachable", 1, "nginx:1").await.unwrap();
    cluster.wait_for_event("unreachable", "BackendUnavailable").await.unwrap();
    let uncontrolled =
        Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    cluster
        .api::<Service>()
        .patch("unreachable", &PatchParams::default(), &uncontrolled)
        .await
        .unwrap();
    cluster.wait_for_replicas("unreachable", [1; 4]).await.unwrap();
}

/// Kuperator's known defect W14 (docs/KUPERATOR.md#known-defects).
async fn a_full_backend_does_not_block_pods_from_being_drained(cluster: &TestCluster) {
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_service(cluster, "full", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create("full", 25, "nginx:1").await.unwrap();
    let rolling = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 8 } } });
    cluster.patch("full", rolling).await.unwrap();
    let pods = async || cluster.pods_of("full").await;
    // HAProxy's backend has 20 slots.
    let full =
        async || Ok(pods().await?.iter().filter(|pod| is_protected_by(pod, "full")).count() == 20);
    eventually(TIMEOUT, full).await.unwrap();
    cluster.wait_for_event("full", "BackendRejected").await.unwrap();
    cluster.set_image("full", "nginx:2").await.unwrap();
    let updated = async || Ok(pods().await?.iter().all(|pod| image(pod) == "nginx:2"));
    eventually(TIMEOUT * 3, updated).await.unwrap();
}

async fn invalid_backends_are_rejected_at_admission(cluster: &TestCluster) {
    let service = |annotations: &Value| {
        serde_json::from_value::<Service>(json!({
            "metadata": {
                "name": "bad", "labels": { well_known::CONTROL: "true" }, "annotations": annotations,
            },
            "spec": { "selector": { "app": "bad" }, "ports": [{ "port": 80 }] },
        }))
        .unwrap()
    };
    let rejection = async |annotations: Value| {
        let services = cluster.api::<Service>();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        services.create(&dry, &service(&annotations)).await.err().map(|e| e.to_string())
    };
    let (backend, params, drain) = (consist::BACKEND, consist::BACKEND_PARAMS, consist::DRAIN);
    for (annotations, expected) in [
        (json!({ backend: "nginx" }), "unknown backend nginx"),
        (json!({ backend: "haproxy" }), "haproxy requires instances, backend, port"),
        (json!({ backend: "haproxy", params: "[1]" }), "must be a JSON object"),
        (json!({ backend: "envoy", params: "{}" }), "envoy requires port"),
        (json!({ backend: "aws-elbv2", params: r#"{"port":1}"# }), "requires targetGroup"),
        (json!({ drain: "soon" }), "drain]: must be"),
        (json!({ drain: r#"{"minutes":1}"# }), "drain]: must be"),
        (json!({ drain: r#"{"minSeconds":-1}"# }), "drain]: must be"),
        (json!({ drain: r#"{"minSeconds":200,"maxSeconds":100}"# }), "drain]: maxSeconds must not"),
        (json!({ drain: r#"{"maxSeconds":0}"# }), "drain]: maxSeconds must not"),
        (json!({ drain: r#"{"atDeadline":"Give up"}"# }), "drain]: must be"),
    ] {
        // The API server takes a moment to load the policy.
        let rejected = async || {
            let message = rejection(annotations.clone()).await.unwrap_or_default();
            Ok(message.contains(expected))
        };
        let waited = eventually(TIMEOUT, rejected).await;
        assert!(waited.is_ok(), "{annotations} is not rejected with {expected:?}");
    }
    for valid in [
        json!({}),
        json!({ drain: "{}" }),
        json!({ drain: r#"{ "minSeconds": 5, "maxSeconds": 120, "atDeadline": "Proceed" }"# }),
        json!({ backend: "envoy", params: r#"{"port":8080}"# }),
        json!({ backend: "alibaba-clb" }),
    ] {
        assert_eq!(rejection(valid.clone()).await, None, "{valid}");
    }
    // A backend that the operator programs cannot be changed; one that it only reads can.
    let services = cluster.api::<Service>();
    let envoy = json!({ backend: "envoy", params: r#"{"port":8080}"# });
    services.create(&PostParams::default(), &service(&envoy)).await.unwrap();
    let change_backend = async |name: &str| {
        let change = json!({ "metadata": { "annotations": { backend: name } } });
        let patched = services.patch("bad", &PatchParams::default(), &Patch::Merge(change)).await;
        patched.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(change_backend("endpointslice").await.contains("backend cannot be changed from envoy"));
    let uncontrolled =
        Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    services.patch("bad", &PatchParams::default(), &uncontrolled).await.unwrap();
    assert_eq!(change_backend("endpointslice").await, "");
    let controlled =
        Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: "true" } } }));
    services.patch("bad", &PatchParams::default(), &controlled).await.unwrap();
    assert_eq!(change_backend("alibaba-clb").await, "");
    a_misspelt_annotation_is_named(cluster).await;
    services.delete("bad", &DeleteParams::default()).await.unwrap();
}

/// The Service has an annotation of consist-operator, too, which is known.
async fn a_misspelt_annotation_is_named(cluster: &TestCluster) {
    let services = cluster.api::<Service>();
    let is_annotated =
        async || Ok(services.get("bad").await?.annotations().contains_key(consist::FINALIZER));
    eventually(TIMEOUT, is_annotated).await.unwrap();
    let misspelt = ["annotate", "service", "bad", "resource-consist.kusionstack.io/drian={}"];
    let as_error = misspelt.into_iter().chain(["--warnings-as-errors", "--dry-run=server"]);
    let as_error: Vec<&str> = as_error.collect();
    let warning = cluster.plane.kubectl(&as_error).await.unwrap_err().to_string();
    assert!(warning.contains("drian]: unknown annotation"), "{warning}");
}

async fn uids(cluster: &TestCluster, set: &str) -> BTreeSet<String> {
    cluster.pods_of(set).await.unwrap().iter().filter_map(ResourceExt::uid).collect()
}

async fn wait_until_rolled_out(cluster: &TestCluster, set: &str, replicas: i32) {
    cluster.wait_until_rolled_out(set, replicas, Duration::from_secs(120)).await.unwrap();
}

/// Writes of consist-operator for one operation: release and protection of the Pod, one each.
async fn a_pod_is_released_and_protected_again_in_two_writes() {
    let cluster = new_cluster().await;
    create_service(&cluster, "web", &json!({})).await;
    let web = Scenario { cluster: &cluster, set: "web", pods: 20 };
    web.create().await.unwrap();
    let cost = web.update_in_place("nginx:1").await.unwrap();
    let writes = cost.operator_requests().filter(|r| r.operator() == Some("consist-operator"));
    let writes =
        writes.filter(|r| r.is_write() && !r.is_rejected_write() && r.resource() == "pods");
    let writes = writes.count();
    eprintln!(
        "{writes} Pod writes by consist-operator; all operators: {:.2} per Pod, {} rejected",
        cost.pod_writes_per_pod(),
        cost.rejected().len()
    );
    assert!(writes <= 40, "{writes} writes");
    assert!(cost.pod_writes_per_pod() <= 8.3, "{}", cost.pod_writes_per_pod());
    let idle = Cost::of(&cluster, 20, async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(())
    });
    assert_eq!(idle.await.unwrap().writes(), 0, "idle operators must not write");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A request in flight delays the operation until it ends, and not longer.
async fn a_pod_waits_for_its_last_request_not_for_a_timeout() {
    let cluster = new_cluster().await;
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create_and_wait("web", 1, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let name = cluster.pods_of("web").await.unwrap()[0].name_any();
    let (front, began) = (haproxy.balancer.front, Instant::now());
    let mut slow_request = JoinSet::new();
    slow_request.spawn(async move { get(front, "/slow/10").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    let operate = LabelKind::Operate.key(COLLASET);
    cluster.wait_for_pod(&name, |pod| pod.labels().contains_key(&operate)).await.unwrap();
    let (waited, completed) = (began.elapsed(), slow_request.try_join_next());
    assert!(
        waited >= Duration::from_secs(10) && completed.is_some_and(|task| task.is_ok()),
        "released after {waited:?}, with the request in flight"
    );
    // The backend is polled every 5 s by then.
    assert!(waited <= Duration::from_secs(25), "released only after {waited:?}");
    wait_until_rolled_out(&cluster, "web", 1).await;
}

/// Sends one request over a connection of its own and returns the response, which must be 200.
async fn get(front: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(front).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    response
}

/// Starts a proxy in front of HAProxy's Runtime API that fails one of five exchanges, in one of
/// four ways.
async fn unreliable_proxy(runtime: SocketAddr) -> (SocketAddr, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mut task) = (listener.local_addr().unwrap(), JoinSet::new());
    task.spawn(async move {
        let (mut dice, mut exchanges) = (fastrand::Rng::with_seed(7), JoinSet::new());
        while let Ok((mut stream, _)) = listener.accept().await {
            let (outcome, mut dice) = (dice.u8(..15), dice.fork());
            exchanges.spawn(async move {
                match outcome {
                    0 => {}
                    1 => drop(stream.write_all(b"<html>no</html>\n").await),
                    2 if dice.bool() => tokio::time::sleep(Duration::from_secs(5)).await,
                    // A truncated response.
                    2 => {
                        let Ok(mut real) = TcpStream::connect(runtime).await else { return };
                        let (mut request, mut response) = (vec![0; 4096], Vec::new());
                        let Ok(length) = stream.read(&mut request).await else { return };
                        drop(real.write_all(&request[..length]).await);
                        drop(real.read_to_end(&mut response).await);
                        drop(stream.write_all(&response[..response.len() / 2]).await);
                    }
                    _ => {
                        let Ok(mut real) = TcpStream::connect(runtime).await else { return };
                        drop(tokio::io::copy_bidirectional(&mut stream, &mut real).await);
                    }
                }
            });
        }
    });
    (address, task)
}

/// IPs of the Pods that are permitted to be operated on.
async fn permitted_ips(cluster: &TestCluster) -> BTreeSet<String> {
    let key = LabelKind::Operate.key(COLLASET);
    let pods = cluster.pods_of("web").await.unwrap();
    let permitted = pods.iter().filter(|pod| pod.labels().contains_key(&key));
    permitted.filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect()
}

/// Returns whether HAProxy routes traffic to a Pod that is permitted to be operated on, both before
/// and after HAProxy's state was read.
async fn routes_to_permitted_pod(cluster: &TestCluster, runtime: SocketAddr) -> bool {
    let before = permitted_ips(cluster).await;
    let mut stream = TcpStream::connect(runtime).await.unwrap();
    stream.write_all(b"show servers state web\n").await.unwrap();
    let mut state = String::new();
    stream.read_to_string(&mut state).await.unwrap();
    let after = permitted_ips(cluster).await;
    state.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        // Operational state up, and neither drained nor in maintenance.
        let is_up = fields.len() > 6 && fields[5] == "2" && fields[6] == "4";
        is_up && before.intersection(&after).any(|ip| ip == fields[4])
    })
}

async fn a_failing_and_restarted_backend_releases_no_pod_early() {
    let cluster = new_cluster().await;
    let mut haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    let (proxy, _task) = unreliable_proxy(haproxy.runtime).await;
    let runtime = std::mem::replace(&mut haproxy.runtime, proxy);
    create_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create_and_wait("web", 6, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let complete = async || {
        let set = cluster.sets().get("web").await.unwrap();
        let current = set.status.as_ref().map(|s| s.observed_generation) == set.metadata.generation;
        current && set.status.is_some_and(|status| is_rolled_out(&status, 6))
    };
    while !complete().await {
        assert!(
            !routes_to_permitted_pod(&cluster, runtime).await,
            "a Pod with traffic was permitted to be operated on"
        );
        assert!(Instant::now() < until, "the rollout did not complete in time");
    }
    // A restart loses HAProxy's runtime configuration, and the operator gets no notification.
    haproxy.balancer.restart().await.unwrap();
    let serves_again = async || {
        let response =
            tokio::time::timeout(Duration::from_secs(5), try_get(haproxy.balancer.front)).await;
        Ok(response.is_ok_and(|text| text.is_some_and(|t| t.starts_with("HTTP/1.1 200"))))
    };
    eventually(Duration::from_secs(100), serves_again).await.unwrap();
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    let deleted = async || Ok(cluster.api::<Service>().get_opt("web").await?.is_none());
    eventually(TIMEOUT * 3, deleted).await.unwrap();
    for pod in cluster.pods_of("web").await.unwrap() {
        assert!(!is_protected_by(&pod, "web"), "Pod {} is still protected", pod.name_any());
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Sends one request and returns the response; `None` if the connection fails.
async fn try_get(front: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(front).await.ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    Some(response)
}

async fn no_request_fails_behind_haproxy() {
    let cluster = TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 3 } }]);
    cluster.create_rule("web", app("web"), budget).await.unwrap();
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let first = uids(&cluster, "web").await;
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let check = |after: &str| load.assert_no_failed_requests(after).unwrap();
    check("before any change");

    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    wait_until_rolled_out(&cluster, "web", 10).await;
    check("updated in place, with every operator killed");

    assert_eq!(uids(&cluster, "web").await, first, "Pods must be updated in place");

    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.patch("web", recreate).await.unwrap();
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    wait_until_rolled_out(&cluster, "web", 10).await;
    check("recreated");
    assert!(uids(&cluster, "web").await.is_disjoint(&first), "each Pod must be recreated");

    for replicas in [5, 10] {
        cluster.patch("web", json!({ "replicas": replicas })).await.unwrap();
        wait_until_rolled_out(&cluster, "web", replicas).await;
        check(&format!("scaled to {replicas}"));
    }

    let pods = cluster.pods_of("web").await.unwrap();
    let node = pods[0].spec.as_ref().unwrap().node_name.clone().unwrap();
    cluster.plane.kubectl(&["drain", &node, "--timeout=180s"]).await.unwrap();
    wait_until_rolled_out(&cluster, "web", 10).await;
    check("drained a node");
    load.assert_minimum_rate().unwrap();
    cluster.assert_no_forbidden_requests().unwrap();

    // Control run: the same in-place update without consist-operator fails requests.
    let failed = update_without_consist(&cluster, &load).await.unwrap();
    assert!(failed > 0, "no request failed without consist-operator either");
}
