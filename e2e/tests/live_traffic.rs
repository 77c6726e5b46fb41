//! Traffic is really off before a Pod is touched: Services, HAProxy, and load that counts what fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
use podops_e2e::{
    balancers::Haproxy,
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, eventually, image, is_rolled_out, programs},
    measure::Cost,
    scenarios::Scenario,
    server,
    traffic::{Load, has_protection_finalizer, update_without_consist, server_set},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

async fn create_managed_service(cluster: &TestCluster, name: &str, annotations: &Value) {
    cluster.create_managed_service(name, json!({ "app": name }), annotations).await.unwrap();
}

fn holds(pod: &Pod, employer: &str) -> bool {
    has_protection_finalizer(pod, consist::SERVICE, employer)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_held_while_their_services_send_them_traffic() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_service_holds_its_pods_and_lets_them_go(&cluster),
        a_service_that_makes_no_sense_is_told_and_holds_nobody_back_for_ever(&cluster),
        w4_a_new_pod_expects_all_its_services_from_the_first_moment(&cluster),
        a_pod_outlives_a_service_that_was_torn_away(&cluster),
        w14_a_backend_that_is_full_holds_back_nobody_who_leaves(&cluster),
        what_no_backend_understands_is_refused_at_admission(&cluster),
    );
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn a_service_holds_its_pods_and_lets_them_go(cluster: &TestCluster) {
    create_managed_service(cluster, "held", &json!({})).await;
    cluster.create_and_wait("held", 3, &json!({})).await.unwrap();
    for pod in cluster.pods_of("held").await.unwrap() {
        // The first Pods may come before the API server has heard of the policy that has them wait.
        cluster
            .wait_for_pod(&pod.name_any(), |pod| {
                let entries = pod.annotations().get(well_known::AVAILABLE_CONDITIONS);
                holds(pod, "held") && entries.is_some_and(|e| e.contains("Service/default/held"))
            })
            .await
            .unwrap();
    }
    cluster.set_image("held", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("held", 3, TIMEOUT).await.unwrap();
    // A Pod that is relabelled is drained and let go, and one of a Service that is gone is free.
    let stray = cluster.pods_of("held").await.unwrap()[0].name_any();
    cluster.patch_pod_metadata(&stray, json!({ "labels": { "app": "stray" } })).await.unwrap();
    cluster.wait_for_pod(&stray, |pod| !holds(pod, "held")).await.unwrap();
    cluster.api::<Service>().delete("held", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(cluster.api::<Service>().get_opt("held").await?.is_none());
    eventually(TIMEOUT, gone).await.unwrap();
    for pod in cluster.pods_of("held").await.unwrap() {
        assert!(!holds(&pod, "held"), "{} is still held", pod.name_any());
    }
}

/// The peer's weakness 4: until a Pod is told whom to expect, it may count as available without traffic.
async fn w4_a_new_pod_expects_all_its_services_from_the_first_moment(cluster: &TestCluster) {
    for name in ["first", "second"] {
        cluster.create_managed_service(name, json!({ "app": "expecting" }), &json!({})).await.unwrap();
    }
    let pod = |metadata: Value| {
        let mut pod = json!({
            "metadata": { "name": "dry", "labels": { "app": "expecting", well_known::CONTROL: "true" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let told = async |metadata: Value| {
        let made = cluster.pods().create(&dry, &pod(metadata)).await?;
        let text = made.annotations().get(well_known::AVAILABLE_CONDITIONS).cloned();
        anyhow::Ok(text.unwrap_or_default())
    };
    let finalizer = |name| consist::lifecycle_finalizer(consist::SERVICE, "default", name);
    let entries =
        ["first", "second"].map(|name| (format!("Service/default/{name}"), finalizer(name)));
    let both = AvailableConditions { expected_finalizers: entries.into() };
    let read = |text: &str| serde_json::from_str::<AvailableConditions>(text).ok();
    let all = async || Ok(read(&told(json!({})).await?).as_ref() == Some(&both));
    eventually(TIMEOUT, all).await.unwrap();
    let other = r#"{"expectedFinalizers":{"LB/x/y":"prot.podopslifecycle.kusionstack.io/z"}}"#;
    let noted = json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: other } });
    let three = read(&told(noted).await.unwrap()).unwrap();
    assert_eq!(three.expected_finalizers.len(), 3, "{three:?}");
    let stranger = json!({ "labels": { "app": "stranger", well_known::CONTROL: "true" } });
    assert_eq!(told(stranger).await.unwrap(), "");
    let foreign = json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: "{ \"own\": 1 }" } });
    assert_eq!(told(foreign).await.unwrap(), "{ \"own\": 1 }", "what cannot be read is left alone");
}

/// What is left when somebody takes a Service's finalizer off and deletes it.
async fn a_pod_outlives_a_service_that_was_torn_away(cluster: &TestCluster) {
    cluster.create_and_wait("torn", 1, &json!({})).await.unwrap();
    let pod = cluster.pods_of("torn").await.unwrap()[0].name_any();
    let finalizer = consist::lifecycle_finalizer(consist::SERVICE, "default", "torn");
    let entry = json!({ "expectedFinalizers": { "Service/default/torn": finalizer } }).to_string();
    let left = json!({
        "finalizers": [finalizer], "annotations": { well_known::AVAILABLE_CONDITIONS: entry },
    });
    cluster.patch_pod_metadata(&pod, left).await.unwrap();
    let free = async || Ok(!holds(&cluster.pods().get(&pod).await?, "torn"));
    eventually(TIMEOUT * 3, free).await.unwrap();
    cluster.wait_for_event(&pod, "EmployerNotFound").await.unwrap();
}

async fn a_service_that_makes_no_sense_is_told_and_holds_nobody_back_for_ever(
    cluster: &TestCluster,
) {
    let nobody = "127.0.0.2:1".parse().unwrap();
    create_managed_service(cluster, "odd", &Haproxy::annotations(&[nobody])).await;
    cluster.create("odd", 1, "nginx:1").await.unwrap();
    cluster.wait_for_event("odd", "BackendUnavailable").await.unwrap();
    let free = Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    cluster.api::<Service>().patch("odd", &PatchParams::default(), &free).await.unwrap();
    cluster.wait_for_replicas("odd", [1; 4]).await.unwrap();
}

/// The peer's weakness 14: what a backend is not able to do for one Pod is no matter of the others.
async fn w14_a_backend_that_is_full_holds_back_nobody_who_leaves(cluster: &TestCluster) {
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_managed_service(cluster, "full", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create("full", 25, "nginx:1").await.unwrap();
    let at_once = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 8 } } });
    cluster.patch("full", at_once).await.unwrap();
    let pods = async || cluster.pods_of("full").await;
    // There are 20 slots.
    let full = async || Ok(pods().await?.iter().filter(|pod| holds(pod, "full")).count() == 20);
    eventually(TIMEOUT, full).await.unwrap();
    cluster.wait_for_event("full", "BackendRejected").await.unwrap();
    cluster.set_image("full", "nginx:2").await.unwrap();
    let new = async || Ok(pods().await?.iter().all(|pod| image(pod) == "nginx:2"));
    eventually(TIMEOUT * 3, new).await.unwrap();
}

async fn what_no_backend_understands_is_refused_at_admission(cluster: &TestCluster) {
    let service = |annotations: &Value| {
        serde_json::from_value::<Service>(json!({
            "metadata": {
                "name": "bad", "labels": { well_known::CONTROL: "true" }, "annotations": annotations,
            },
            "spec": { "selector": { "app": "bad" }, "ports": [{ "port": 80 }] },
        }))
        .unwrap()
    };
    let refusal = async |annotations: Value| {
        let services = cluster.api::<Service>();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        services.create(&dry, &service(&annotations)).await.err().map(|e| e.to_string())
    };
    let (backend, params, drain) = (consist::BACKEND, consist::BACKEND_PARAMS, consist::DRAIN);
    for (annotations, told) in [
        (json!({ backend: "nginx" }), "unknown backend nginx"),
        (json!({ backend: "haproxy" }), "haproxy requires instances, backend, port"),
        (json!({ backend: "haproxy", params: "[1]" }), "must be a JSON object"),
        (json!({ backend: "envoy", params: "{}" }), "envoy requires port"),
        (json!({ backend: "aws-elbv2", params: r#"{"port":1}"# }), "requires targetGroup"),
        (json!({ drain: "soon" }), "drain]: must be"),
        (json!({ drain: r#"{"minutes":1}"# }), "drain]: must be"),
        (json!({ drain: r#"{"minSeconds":-1}"# }), "drain]: must be"),
        (json!({ drain: r#"{"atDeadline":"Give up"}"# }), "drain]: must be"),
    ] {
        // The policy takes a moment to be there.
        let refused = async || {
            let told_now = refusal(annotations.clone()).await.unwrap_or_default();
            Ok(told_now.contains(told))
        };
        eventually(TIMEOUT, refused).await.unwrap_or_else(|_| panic!("{annotations} is taken"));
    }
    for fine in [
        json!({}),
        json!({ drain: "{}" }),
        json!({ drain: r#"{ "minSeconds": 5, "maxSeconds": 120, "atDeadline": "Proceed" }"# }),
        json!({ backend: "envoy", params: r#"{"port":8080}"# }),
        json!({ backend: "alibaba-clb" }),
    ] {
        assert_eq!(refusal(fine.clone()).await, None, "{fine}");
    }
    // Who serves is not forgotten over another backend; who only looks may be.
    let services = cluster.api::<Service>();
    let serves = json!({ backend: "envoy", params: r#"{"port":8080}"# });
    services.create(&PostParams::default(), &service(&serves)).await.unwrap();
    let names = async |name: &str| {
        let now = json!({ "metadata": { "annotations": { backend: name } } });
        let patched = services.patch("bad", &PatchParams::default(), &Patch::Merge(now)).await;
        patched.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(names("endpointslice").await.contains("backend cannot be changed from envoy"));
    let free = Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: null } } }));
    services.patch("bad", &PatchParams::default(), &free).await.unwrap();
    assert_eq!(names("endpointslice").await, "");
    let again = Patch::Merge(json!({ "metadata": { "labels": { well_known::CONTROL: "true" } } }));
    services.patch("bad", &PatchParams::default(), &again).await.unwrap();
    assert_eq!(names("alibaba-clb").await, "");
    services.delete("bad", &DeleteParams::default()).await.unwrap();
}

async fn uids(cluster: &TestCluster, set: &str) -> BTreeSet<String> {
    cluster.pods_of(set).await.unwrap().iter().filter_map(ResourceExt::uid).collect()
}

async fn until_all_serve(cluster: &TestCluster, set: &str, replicas: i32) {
    cluster.wait_until_rolled_out(set, replicas, Duration::from_secs(120)).await.unwrap();
}

/// What an operation costs where a Service has to let go of the Pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_let_go_and_held_again_in_two_writes() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    create_managed_service(&cluster, "web", &json!({})).await;
    let web = Scenario { cluster: &cluster, set: "web", pods: 20 };
    web.create().await.unwrap();
    let cost = web.update_in_place("nginx:1").await.unwrap();
    let own = cost.operator_requests().filter(|r| r.operator() == Some("consist-operator"));
    let own = own.filter(|r| r.is_write() && !r.is_rejected_write() && r.resource() == "pods");
    let own = own.count();
    eprintln!(
        "{own} Pod writes by consist-operator for 20 Pods, {:.2} by all for each, {} refused",
        cost.pod_writes_per_pod(),
        cost.rejected().len()
    );
    assert!(own <= 40, "{own} writes");
    assert!(cost.pod_writes_per_pod() <= 8.0, "{}", cost.pod_writes_per_pod());
    let still = Cost::of(&cluster, 20, async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(())
    });
    assert_eq!(still.await.unwrap().writes(), 0, "at rest nobody writes");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A request that takes long holds its Pod for as long, and not longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_its_last_request_and_not_for_a_clock() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_managed_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create_and_wait("web", 1, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let name = cluster.pods_of("web").await.unwrap()[0].name_any();
    let (front, began) = (haproxy.balancer.front, Instant::now());
    let mut asked = JoinSet::new();
    asked.spawn(async move { get(front, "/slow/10").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    let may_go = LabelKind::Operate.key(COLLASET);
    cluster.wait_for_pod(&name, |pod| pod.labels().contains_key(&may_go)).await.unwrap();
    let (waited, answered) = (began.elapsed(), asked.try_join_next().is_some());
    assert!(waited >= Duration::from_secs(10) && answered, "it was let go after {waited:?}");
    // It is asked every 5 s by then.
    assert!(waited <= Duration::from_secs(25), "it was let go only after {waited:?}");
    until_all_serve(&cluster, "web", 1).await;
}

/// One request on its own; what comes back.
async fn get(front: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(front).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Between the operator and HAProxy: of five exchanges one fails, in one of four ways.
async fn unreliable(runtime: SocketAddr) -> (SocketAddr, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mut task) = (listener.local_addr().unwrap(), JoinSet::new());
    task.spawn(async move {
        let (mut dice, mut exchanges) = (fastrand::Rng::with_seed(7), JoinSet::new());
        while let Ok((mut stream, _)) = listener.accept().await {
            let (fate, mut dice) = (dice.u8(..15), dice.fork());
            exchanges.spawn(async move {
                match fate {
                    0 => {}
                    1 => drop(stream.write_all(b"<html>no</html>\n").await),
                    2 if dice.bool() => tokio::time::sleep(Duration::from_secs(5)).await,
                    // Some of an answer, as if that were all.
                    2 => {
                        let Ok(mut real) = TcpStream::connect(runtime).await else { return };
                        let (mut asked, mut answer) = (vec![0; 4096], Vec::new());
                        let Ok(length) = stream.read(&mut asked).await else { return };
                        drop(real.write_all(&asked[..length]).await);
                        drop(real.read_to_end(&mut answer).await);
                        drop(stream.write_all(&answer[..answer.len() / 2]).await);
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

/// The addresses of Pods that may be operated on.
async fn may_go(cluster: &TestCluster) -> BTreeSet<String> {
    let key = LabelKind::Operate.key(COLLASET);
    let pods = cluster.pods_of("web").await.unwrap();
    let go = pods.iter().filter(|pod| pod.labels().contains_key(&key));
    go.filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect()
}

/// Whether HAProxy itself sends traffic to a Pod that may be operated on, before it looks and after.
async fn is_touched_in_traffic(cluster: &TestCluster, runtime: SocketAddr) -> bool {
    let before = may_go(cluster).await;
    let mut stream = TcpStream::connect(runtime).await.unwrap();
    stream.write_all(b"show servers state web\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let after = may_go(cluster).await;
    answer.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        // Up, and neither drained nor in maintenance.
        let serves = fields.len() > 6 && fields[5] == "2" && fields[6] == "4";
        serves && before.intersection(&after).any(|ip| ip == fields[4])
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_fails_and_forgets_delays_and_harms_nothing() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    let mut haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    let (between, _task) = unreliable(haproxy.runtime).await;
    let runtime = std::mem::replace(&mut haproxy.runtime, between);
    create_managed_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    cluster.create_and_wait("web", 6, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let settled = async || {
        let set = cluster.sets().get("web").await.unwrap();
        let current = set.status.as_ref().map(|s| s.observed_generation) == set.metadata.generation;
        current && set.status.is_some_and(|status| is_rolled_out(&status, 6))
    };
    while !settled().await {
        assert!(!is_touched_in_traffic(&cluster, runtime).await, "a Pod was touched in traffic");
        assert!(Instant::now() < until, "it does not come to an end");
    }
    // Restarted, it has forgotten everybody, and nobody tells the operator.
    haproxy.balancer.restart().await.unwrap();
    let again = async || {
        let answer =
            tokio::time::timeout(Duration::from_secs(5), try_get(haproxy.balancer.front)).await;
        Ok(answer.is_ok_and(|answer| answer.is_some_and(|a| a.starts_with("HTTP/1.1 200"))))
    };
    eventually(Duration::from_secs(100), again).await.unwrap();
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok(cluster.api::<Service>().get_opt("web").await?.is_none());
    eventually(TIMEOUT * 3, gone).await.unwrap();
    for pod in cluster.pods_of("web").await.unwrap() {
        assert!(!holds(&pod, "web"), "{} is still held", pod.name_any());
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

/// One request that may fail.
async fn try_get(front: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(front).await.ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails() {
    let cluster = TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    create_managed_service(&cluster, "web", &Haproxy::annotations(&[haproxy.runtime])).await;
    let pace = json!([{ "name": "pace", "availablePolicy": { "maxUnavailableValue": 3 } }]);
    cluster.create_rule("web", app("web"), pace).await.unwrap();
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let first = uids(&cluster, "web").await;
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let fine = |what: &str| load.assert_no_failed_requests(what).unwrap();
    fine("at rest");

    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    until_all_serve(&cluster, "web", 10).await;
    fine("updated in place, with every operator killed");

    assert_eq!(uids(&cluster, "web").await, first, "in place");

    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.patch("web", recreate).await.unwrap();
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    until_all_serve(&cluster, "web", 10).await;
    fine("recreated");
    assert!(uids(&cluster, "web").await.is_disjoint(&first), "each Pod is another");

    for replicas in [5, 10] {
        cluster.patch("web", json!({ "replicas": replicas })).await.unwrap();
        until_all_serve(&cluster, "web", replicas).await;
        fine(&format!("scaled to {replicas}"));
    }

    let pods = cluster.pods_of("web").await.unwrap();
    let node = pods[0].spec.as_ref().unwrap().node_name.clone().unwrap();
    cluster.plane.kubectl(&["drain", &node, "--timeout=180s"]).await.unwrap();
    until_all_serve(&cluster, "web", 10).await;
    fine("drained a node");
    assert!(load.rate() >= 2000.0, "only {:.0} requests a second", load.rate());
    cluster.assert_no_forbidden_requests().unwrap();

    // The same without anybody who looks at traffic: what fails is counted.
    let failed = update_without_consist(&cluster, &load).await.unwrap();
    assert!(failed > 0, "nothing failed without consist-operator either");
}
