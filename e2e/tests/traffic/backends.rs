//! Every backend under load: two Envoys, an adapter, several HAProxies, emulated cloud APIs, and
//! employers of a kind of their own.

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, PodCondition, Service};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    consist,
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use podops_test_cluster::{
    balancers::{Haproxy, Xds, envoy, free_address},
    cluster::{TIMEOUT, TestCluster, eventually, image, is_true, programs},
    server,
    suite::{Lane, Suite, new_cluster},
    tenant::Tenant,
    traffic::{Load, has_protection_finalizer, server_set, update_recreate_and_scale},
    updates::{BESIDE_ANOTHER, Updates},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};

const CONSIST: &str = "consist-operator";

async fn create_service(cluster: &TestCluster, annotations: &Value) {
    cluster.create_managed_service("web", json!({ "app": "web" }), annotations).await.unwrap();
}

fn annotations(backend: &str, params: &Value) -> Value {
    json!({ consist::BACKEND: backend, consist::BACKEND_PARAMS: params.to_string() })
}

async fn wait_until_rolled_out(cluster: &TestCluster, replicas: i32) {
    cluster.wait_until_rolled_out("web", replicas, Duration::from_secs(180)).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Long, no_request_fails_through_two_envoys)
        .scenario(Lane::Long, no_request_fails_when_draining_takes_ten_seconds)
        .scenario(Lane::Long, pods_behind_two_haproxies_wait_for_both_and_move_to_a_third)
        .scenario(Lane::Waiting, aws_targets_are_released_when_deregistration_completes)
        .scenario(Lane::Waiting, alibaba_clb_is_observed_as_configured_for_kuperator)
        .scenario(Lane::Waiting, employers_of_any_kind_protect_and_release_pods)
}

async fn no_request_fails_through_two_envoys() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let dir = cluster.plane.dir.path().to_owned();
    let xds = Xds::new(&dir, &["default", "other"]).unwrap();
    let tls = format!("--xds-tls={}", xds.certificates.display());
    cluster.add_args(CONSIST, &[format!("--xds-address={}", xds.address), tls]);
    cluster.start_operators().await.unwrap();
    let params = json!({ "port": server::PORT, "proxies": 2, "connectSeconds": 1 });
    create_service(&cluster, &annotations("envoy", &params)).await;
    // The component that a platform deploys for this is accepted by the API server.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").canonicalize().unwrap();
    let up = "../".repeat(dir.components().count());
    let at = |part: &str| format!("{up}{}/{part}", root.strip_prefix("/").unwrap().display());
    let overlay = json!({
        "resources": [at("overlays/all")], "components": [at("components/envoy-endpoints")],
    });
    let here = dir.join("overlay");
    std::fs::create_dir(&here).unwrap();
    std::fs::write(here.join("kustomization.yaml"), overlay.to_string()).unwrap();
    let here = here.display().to_string();
    cluster
        .plane
        .kubectl(&["apply", "--server-side", "--force-conflicts", "-k", &here])
        .await
        .unwrap();
    let (first, second) = tokio::join!(envoy(&xds, "default", false), envoy(&xds, "default", true));
    let (first, mut second) = (first.unwrap(), second.unwrap());
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    // This Envoy neither receives the endpoints nor is waited for.
    let _stranger = envoy(&xds, "other", false).await.unwrap();
    let denied = async || {
        let log = std::fs::read_to_string(cluster.log(CONSIST))?;
        Ok(log.contains("The certificate of an Envoy does not permit these endpoints"))
    };
    eventually(TIMEOUT, denied).await.unwrap();
    let load = Load::start(first.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    update_recreate_and_scale(&cluster, &load).await.unwrap();

    // The operator is killed during the update, and restarts without its state of the Envoys.
    cluster.set_image("web", &format!("{}:4", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.kill_and_restart(CONSIST).await.unwrap();
    wait_until_rolled_out(&cluster, 10).await;
    load.assert_no_failed_requests("updated, with the operator killed").unwrap();

    // A disconnected Envoy may still route traffic: no Pod is changed until it reconnects.
    let before = cluster.pods_of("web").await.unwrap();
    second.stop().await.unwrap();
    cluster.set_image("web", &format!("{}:5", server::IMAGE)).await.unwrap();
    let reported = async || {
        let pods = cluster.pods_of("web").await?;
        let all = pods.iter().flat_map(conditions).filter_map(|c| c.message.as_deref());
        Ok(all
            .into_iter()
            .any(|message| message.contains("disconnected") || message.contains("of 2 Envoys")))
    };
    eventually(TIMEOUT * 2, reported).await.unwrap();
    for pod in cluster.pods_of("web").await.unwrap() {
        assert!(before.iter().any(|b| image(b) == image(&pod)), "a Pod was changed");
    }
    second.restart().await.unwrap();
    wait_until_rolled_out(&cluster, 10).await;
    load.assert_no_failed_requests("updated, with an Envoy disconnected").unwrap();
}

/// Starts the reference adapter for HAProxy, which applies changes ten seconds late.
fn adapter(at: SocketAddr) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/adapter.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(format!("--listen={at}")).arg("--delay=10").kill_on_drop(true);
    python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn no_request_fails_when_draining_takes_ten_seconds() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let at = free_address().unwrap();
    let _adapter = adapter(at);
    eventually(TIMEOUT, async || Ok(TcpStream::connect(at).await.is_ok())).await.unwrap();
    cluster.add_args(CONSIST, &[format!("--adapters=default/slow=http://{at}")]);
    cluster.start_operators().await.unwrap();
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    let haproxy_params = json!({
        "runtime": haproxy.runtime.to_string(), "backend": "web", "port": server::PORT,
    });
    create_service(
        &cluster,
        &annotations("external", &json!({ "adapter": "slow", "params": haproxy_params })),
    )
    .await;
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 5)).await.unwrap();
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    update_recreate_and_scale(&cluster, &load).await.unwrap();
    // Five at a time: twice updated in place, twice recreated, and once scaled in.
    assert!(
        began.elapsed() >= Duration::from_secs(50),
        "a Pod was changed or deleted while it received traffic"
    );
}

async fn pods_behind_two_haproxies_wait_for_both_and_move_to_a_third() {
    let cluster = new_cluster().await;
    let dir = cluster.plane.dir.path();
    let (one, other) = tokio::join!(Haproxy::start(dir), Haproxy::start(dir));
    let (one, mut other) = (one.unwrap(), other.unwrap());
    create_service(&cluster, &Haproxy::annotations(&[one.runtime, other.runtime])).await;
    cluster.create_and_wait("web", 10, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let loads = [&one, &other].map(|haproxy| Load::start(haproxy.balancer.front));
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    wait_until_rolled_out(&cluster, 10).await;
    for load in &loads {
        load.assert_no_failed_requests("updated in place behind two").unwrap();
    }
    // A Service cannot claim a backend that another one uses, also after the operator restarted.
    let annotations = Haproxy::annotations(&[one.runtime]);
    cluster.create_managed_service("copy", json!({ "app": "copy" }), &annotations).await.unwrap();
    cluster.wait_for_event("copy", "BackendUnavailable").await.unwrap();
    cluster.kill_and_restart(CONSIST).await.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    for load in &loads {
        load.assert_no_failed_requests("with a second claim, and the operator killed").unwrap();
    }
    cluster.api::<Service>().delete("copy", &DeleteParams::default()).await.unwrap();
    drop(loads);
    // While one instance is unreachable, no Pod is changed, and the Pods' conditions report it.
    other.balancer.stop().await.unwrap();
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    let finalizer = consist::lifecycle_finalizer(consist::SERVICE, "default", "web");
    let messages = async || {
        let pods = cluster.pods_of("web").await?;
        let all = pods.iter().flat_map(conditions).filter(|c| c.type_ == finalizer);
        anyhow::Ok(all.map(|c| c.message.clone().unwrap_or_default()).collect::<Vec<_>>())
    };
    let reported = async || {
        let instance = other.runtime.to_string();
        Ok(messages().await?.iter().any(|message| message.contains(&instance)))
    };
    eventually(TIMEOUT * 2, reported).await.unwrap();
    for pod in cluster.pods_of("web").await.unwrap() {
        assert!(image(&pod).ends_with(":2"), "a Pod was changed");
    }
    other.balancer.restart().await.unwrap();
    wait_until_rolled_out(&cluster, 10).await;
    let no_messages = async || Ok(messages().await?.is_empty());
    eventually(TIMEOUT, no_messages).await.unwrap();

    // Move to another HAProxy: a second Service selects the Pods, and the first one is deleted. Its
    // deletion completes after the last request through it.
    let next = Haproxy::start(dir).await.unwrap();
    let annotations = Haproxy::annotations(&[next.runtime]);
    cluster.create_managed_service("next", json!({ "app": "web" }), &annotations).await.unwrap();
    let both = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(pods.iter().all(|pod| has_protection_finalizer(pod, consist::SERVICE, "next")))
    };
    eventually(TIMEOUT, both).await.unwrap();
    let load = Load::start(next.balancer.front);
    let mut slow_request = TcpStream::connect(one.balancer.front).await.unwrap();
    let request = b"GET /slow/8 HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    slow_request.write_all(request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let service = cluster.api::<Service>().get_opt("web").await.unwrap();
    assert!(service.is_some(), "the Service was deleted with a request in flight");
    let mut response = String::new();
    slow_request.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    wait_until_service_deleted(&cluster, "web").await;
    cluster.set_image("web", &format!("{}:4", server::IMAGE)).await.unwrap();
    wait_until_rolled_out(&cluster, 10).await;
    load.assert_no_failed_requests("moved, and updated").unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}

fn conditions(pod: &Pod) -> impl Iterator<Item = &PodCondition> {
    pod.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

/// IP of a Pod that is permitted to be operated on; `None` for other Pods.
fn permitted_ip(pod: &Pod) -> Option<String> {
    let ip = pod.status.as_ref()?.pod_ip.clone()?;
    pod.labels().contains_key(&LabelKind::Operate.key(COLLASET)).then_some(ip)
}

async fn aws_targets_are_released_when_deregistration_completes() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let at = free_address().unwrap();
    let python = podops_test_programs::python().unwrap().join("bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/elb.py");
    let mut emulator = Command::new(python);
    emulator.arg(script).arg(at.port().to_string()).arg("4").kill_on_drop(true);
    emulator.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut emulator = emulator.spawn().unwrap();
    let mut lines = BufReader::new(emulator.stdout.take().unwrap()).lines();
    let group = lines.next_line().await.unwrap().unwrap();
    cluster.add_args(CONSIST, &["--aws-target-groups=default/*,other/*".to_owned()]);
    let aws = [
        ("AWS_ENDPOINT_URL", format!("http://{at}")),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ];
    cluster.add_env(CONSIST, &aws);
    cluster.start_operators().await.unwrap();
    let params = json!({ "targetGroup": group, "port": 8080 });
    create_service(&cluster, &annotations("aws-elbv2", &params)).await;
    cluster.create_and_wait("web", 6, &json!({})).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    assert!(pods.iter().all(is_protected), "all Pods must be targets");
    let undisturbed = Updates::measure(&cluster, "web", 6, "undisturbed", 3).await.unwrap();
    create_services_with_missing_groups(&cluster, &group).await;
    let began = Instant::now();
    cluster.set_image("web", "nginx:2").await.unwrap();
    let mut waited = None;
    loop {
        let pods = cluster.pods_of("web").await.unwrap();
        let is_new = |pod: &Pod| image(pod) == "nginx:2";
        if pods.iter().any(|pod| permitted_ip(pod).is_some() || is_new(pod)) {
            waited.get_or_insert(began.elapsed());
        }
        if pods.iter().all(is_new) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the update did not complete in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let waited = waited.unwrap();
    assert!(waited >= Duration::from_secs(4), "a Pod was released after {waited:?}");
    wait_until_rolled_out(&cluster, 6).await;
    let disturbed = Updates::measure(&cluster, "web", 6, "disturbed", 3).await.unwrap();
    disturbed.ensure_not_slowed(&undisturbed, BESIDE_ANOTHER).unwrap();
    for kind in ["pods", "events"] {
        let own = cluster.plane.kubectl(&["get", kind, "-o", "json"]).await.unwrap();
        assert!(
            !own.contains(GROUP_NOT_FOUND),
            "{kind} have the error of another namespace: {own}"
        );
    }
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    wait_until_service_deleted(&cluster, "web").await;
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Error code of AWS.
const GROUP_NOT_FOUND: &str = "TargetGroupNotFound";

/// A tenant of another namespace has 20 Services with target groups of the same region, which do
/// not exist; each call for one takes 1.2 seconds.
async fn create_services_with_missing_groups(cluster: &TestCluster, group: &str) {
    let tenant = Tenant::new(cluster, "other").await.unwrap();
    let services: kube::Api<Service> = tenant.api();
    for n in 0..20 {
        let params = json!({ "targetGroup": format!("{group}-missing-{n}"), "port": 8080 });
        let service = json!({
            "metadata": {
                "name": format!("missing-{n}"), "annotations": annotations("aws-elbv2", &params),
                "labels": { well_known::CONTROL: well_known::CONTROL_ON },
            },
            "spec": { "selector": { "app": "missing" }, "ports": [{ "port": 80 }] },
        });
        let service = serde_json::from_value(service).unwrap();
        services.create(&PostParams::default(), &service).await.unwrap();
    }
    let is_reported = async || {
        let events = cluster.plane.kubectl(&["get", "events", "-n", "other", "-o", "json"]).await?;
        Ok(events.contains(GROUP_NOT_FOUND))
    };
    eventually(TIMEOUT, is_reported).await.unwrap();
}

fn is_protected(pod: &Pod) -> bool {
    has_protection_finalizer(pod, consist::SERVICE, "web")
}

async fn wait_until_service_deleted(cluster: &TestCluster, service: &str) {
    let deleted = async || Ok(cluster.api::<Service>().get_opt(service).await?.is_none());
    eventually(TIMEOUT * 2, deleted).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    assert!(!pods.iter().any(is_protected), "a Pod is still protected");
}

/// Fake API of Alibaba Cloud with the servers of one load balancer; records its requests.
#[derive(Clone, Default)]
struct Cloud {
    /// IPs of the registered servers.
    servers: Arc<Mutex<BTreeSet<String>>>,
    /// Headers of each request, and its URI under the key `uri`.
    requests: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
}

impl Cloud {
    async fn start(&self) -> (SocketAddr, JoinSet<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, mut task, cloud) =
            (listener.local_addr().unwrap(), JoinSet::new(), self.clone());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let cloud = cloud.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                        let response = cloud.respond(&request);
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let io = TokioIo::new(stream);
                    drop(http1::Builder::new().serve_connection(io, service).await);
                });
            }
        });
        (address, task)
    }

    fn respond(&self, request: &Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
        let headers = request.headers().iter();
        let mut record: BTreeMap<String, String> = headers
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        record.insert("uri".to_owned(), request.uri().to_string());
        let mut requests = self.requests.lock().unwrap();
        requests.push(record);
        // One of five calls is throttled.
        if requests.len().is_multiple_of(5) {
            let throttled = Response::builder().status(503);
            return throttled.body(Full::from(r#"{"Code":"Throttling"}"#)).unwrap();
        }
        let servers = self.servers.lock().unwrap();
        let server = |ip: &String| json!({ "ServerIp": ip, "ListenerPort": 80, "ServerHealthStatus": "normal" });
        let list: Vec<Value> = servers.iter().map(server).collect();
        let body = json!({ "RequestId": "1", "BackendServers": { "BackendServer": list } });
        Response::new(Full::from(body.to_string()))
    }
}

/// Acts as the cloud's own controller: registers ready Pods and deregisters others, 3 s late.
async fn cloud_controller(pods: kube::Api<Pod>, cloud: Cloud) {
    let mut pending: Vec<(Instant, BTreeSet<String>)> = Vec::new();
    loop {
        let Ok(all) = pods.list(&kube::api::ListParams::default()).await else { continue };
        let all = all.items;
        let ready = all.iter().filter(|pod| is_true(pod, "Ready"));
        let ready = ready.filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
        pending.push((Instant::now(), ready));
        let delay = Duration::from_secs(3);
        let due: Vec<_> = pending.extract_if(.., |(at, _)| at.elapsed() > delay).collect();
        if let Some((_, ready)) = due.into_iter().next_back() {
            *cloud.servers.lock().unwrap() = ready;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Kuperator's known defect W13 (docs/KUPERATOR.md#known-defects).
async fn alibaba_clb_is_observed_as_configured_for_kuperator() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let cloud = Cloud::default();
    let (at, _api) = cloud.start().await;
    let aliyun = [
        ("ALIYUN_SLB_AK_KEY", "key".to_owned()),
        ("ALIYUN_SLB_AK_SECRET", "secret".to_owned()),
        ("ALIYUN_SLB_ENDPOINT", format!("http://{at}")),
    ];
    cluster.add_env(CONSIST, &aliyun);
    cluster.start_operators().await.unwrap();
    create_service(&cluster, &json!({ consist::BACKEND: "alibaba-clb" })).await;
    let load_balancer_id = Patch::Merge(json!({ "metadata": { "labels": {
        "service.k8s.alibaba/loadbalancer-id": "lb-1",
    } } }));
    cluster
        .api::<Service>()
        .patch("web", &PatchParams::default(), &load_balancer_id)
        .await
        .unwrap();
    let mut controller = JoinSet::new();
    controller.spawn(cloud_controller(cluster.pods(), cloud.clone()));
    cluster.create_and_wait("web", 4, &json!({})).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let pods = cluster.pods_of("web").await.unwrap();
        let permitted: Vec<String> = pods.iter().filter_map(permitted_ip).collect();
        let servers = cloud.servers.lock().unwrap().clone();
        assert!(
            !permitted.iter().any(|ip| servers.contains(ip)),
            "{permitted:?}: permitted, with traffic"
        );
        if pods.iter().all(|pod| image(pod) == "nginx:2") {
            break;
        }
        assert!(Instant::now() < end, "the update did not complete in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_until_rolled_out(&cluster, 4).await;
    let requests = cloud.requests.lock().unwrap().clone();
    let last = requests.last().unwrap();
    assert!(last["uri"].ends_with("/?LoadBalancerId=lb-1"), "{last:?}");
    assert_eq!(last["x-acs-action"], "DescribeHealthStatus");
    assert_eq!(last["x-acs-version"], "2014-05-15");
    assert!(last["authorization"].starts_with("ACS3-HMAC-SHA256 Credential=key,"), "{last:?}");
    // Stable backends are not polled.
    let before = cloud.requests.lock().unwrap().len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(cloud.requests.lock().unwrap().len(), before, "polled although no Pod waits");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// CRD of an employer kind of this test, and the role that permits consist-operator to use it.
const GATEWAYS: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: podops-consist-operator-gateways }
rules:
- { apiGroups: [lab.podops.test], resources: [gateways], verbs: [get, list, watch, patch] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: podops-consist-operator-gateways }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: podops-consist-operator-gateways }
subjects: [{ kind: ServiceAccount, name: consist-operator, namespace: podops-system }]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: gateways.lab.podops.test }
spec:
  group: lab.podops.test
  names: { kind: Gateway, plural: gateways }
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } }
";

/// Creates a Gateway in front of the Pods of `web`, as soon as its kind is served.
async fn create_gateway(cluster: &TestCluster, haproxy: &Haproxy) {
    let gateway = json!({
        "apiVersion": "lab.podops.test/v1", "kind": "Gateway",
        "metadata": {
            "name": "web", "namespace": "default", "labels": { well_known::CONTROL: "true" },
            "annotations": Haproxy::annotations(&[haproxy.runtime]),
        },
        "spec": { "pools": [{ "pods": { "matchLabels": { "app": "web" } } }] },
    });
    let manifest = cluster.plane.dir.path().join("gateway.json");
    std::fs::write(&manifest, gateway.to_string()).unwrap();
    let manifest = manifest.display().to_string();
    let applied = async || {
        Ok(cluster.plane.kubectl(&["apply", "--server-side", "-f", &manifest]).await.is_ok())
    };
    eventually(TIMEOUT, applied).await.unwrap();
}

async fn employers_of_any_kind_protect_and_release_pods() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let dir = cluster.plane.dir.path().to_owned();
    let (kinds, definition) = (dir.join("kinds.yaml"), dir.join("gateways.yaml"));
    let config =
        "- apiVersion: lab.podops.test/v1\n  kind: Gateway\n  podSelector: .spec.pools[0].pods\n";
    std::fs::write(&kinds, config).unwrap();
    std::fs::write(&definition, GATEWAYS).unwrap();
    let definition = definition.display().to_string();
    cluster.add_args(CONSIST, &[format!("--employer-kinds={}", kinds.display())]);
    cluster.start_operators().await.unwrap();
    // The CRD is created after the operator that is configured for it has started.
    cluster.plane.kubectl(&["apply", "--server-side", "-f", &definition]).await.unwrap();
    let haproxy = Haproxy::start(&dir).await.unwrap();
    create_gateway(&cluster, &haproxy).await;
    let protected_by_gateway = |pod: &Pod| has_protection_finalizer(pod, "Gateway", "web");
    cluster.create_and_wait("web", 3, &server_set("web", "InPlaceIfPossible", 3)).await.unwrap();
    let all_protected = async || Ok(cluster.pods_of("web").await?.iter().all(protected_by_gateway));
    eventually(TIMEOUT * 2, all_protected).await.unwrap();
    let load = Load::start(haproxy.balancer.front);
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster
        .patch("web", json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } }))
        .await
        .unwrap();
    cluster.set_image("web", &format!("{}:2", server::IMAGE)).await.unwrap();
    wait_until_rolled_out(&cluster, 3).await;
    load.assert_no_failed_requests("updated behind a Gateway").unwrap();
    drop(load);
    // Without the control label, the Gateway releases its Pods at once, also during a drain.
    let mut busy = TcpStream::connect(haproxy.balancer.front).await.unwrap();
    busy.write_all(b"GET /slow/15 HTTP/1.1\r\nHost: web\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster
        .patch("web", json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 3 } } }))
        .await
        .unwrap();
    cluster.set_image("web", &format!("{}:3", server::IMAGE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(
        cluster.pods_of("web").await.unwrap().iter().any(protected_by_gateway),
        "one Pod must still be draining"
    );
    let remove_label = ["label", "gateways.lab.podops.test", "web", "kusionstack.io/control-"];
    cluster.plane.kubectl(&remove_label).await.unwrap();
    let all_released = async || Ok(!cluster.pods_of("web").await?.iter().any(protected_by_gateway));
    eventually(Duration::from_secs(9), all_released).await.unwrap();
    wait_until_rolled_out(&cluster, 3).await;
    for pod in cluster.pods_of("web").await.unwrap() {
        let entries = pod.annotations().get(well_known::AVAILABLE_CONDITIONS).cloned();
        assert!(
            !entries.unwrap_or_default().contains("Gateway"),
            "{} has an entry",
            pod.name_any()
        );
    }
    cluster.plane.kubectl(&["delete", "gateways.lab.podops.test", "web"]).await.unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}
