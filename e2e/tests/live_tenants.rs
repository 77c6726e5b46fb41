//! A tenant with rights in one namespace, and with connections to the operators, slows no other
//! namespace and ends no operator.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use podops_api::well_known;
use podops_e2e::{
    balancers::free_address,
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, eventually, programs},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
    time::{interval, timeout},
};

const PODS: i32 = 10;
/// Number of rollouts whose times are compared.
const ROLLOUTS: usize = 5;
/// Number of connections that the tenant holds to each operator.
const CONNECTIONS: usize = 200;
/// Number of connections that the tenant opens per second to each port.
const OPENED_PER_SECOND: usize = 60;
/// Number of Pods with 1 MB of labels each: more than the smallest memory limit, which the test
/// cluster checks.
const MANY_LABELS_PODS: usize = 130;
/// Number of Pods with 250 KiB each.
const LARGE_PODS: usize = 60;
/// A time that the API server accepts, and jiff does not.
const TOO_LATE: &str = "9999-12-31T23:59:59Z";
/// Nesting that the API server accepts, and serde_json does not.
const DEPTH: usize = 140;
const TENANT: &str = "tenant";
const USER: &str = "system:serviceaccount:tenant:mallory";

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_affects_only_its_namespace() {
    let programs = programs().unwrap();
    let mut cluster = TestCluster::start_empty(&programs).await.unwrap();
    let xds = free_address().unwrap();
    // The flags of the test cluster permit it to the other namespace only.
    let haproxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flags = [format!("--xds-address={xds}"), "--xds-insecure".to_owned()];
    cluster.add_args("consist-operator", &flags);
    let cluster = cluster.with_graceful_deletion().await.unwrap();
    // All operators take part in the rollouts of the other namespace.
    cluster.create_managed_service("web", json!({ "app": "web" }), &json!({})).await.unwrap();
    cluster.create_rule("web", app("web"), at_most(PODS / 2)).await.unwrap();
    cluster.create_and_wait("web", PODS, &json!({})).await.unwrap();
    let undisturbed = rollouts(&cluster, "undisturbed").await;
    create_tenant(&cluster).await;
    too_many_replicas_are_rejected(&cluster).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    create_rules(&cluster, silent.local_addr().unwrap()).await;
    create_waiting_pods(&cluster).await;
    create_large_pods(&cluster).await;
    create_objects_that_cannot_be_decoded(&cluster).await;
    a_backend_of_others_is_not_used(&cluster, &haproxy).await;
    create_pods_with_many_labels(&cluster).await;
    approvals_are_reserved_to_the_operators(&cluster).await;
    let mut held = vec![xds];
    for operator in OPERATORS {
        held.extend(cluster.admission_address(operator));
        held.push(cluster.metrics_address(operator).unwrap());
    }
    let refused = hold_connections(xds).await;
    assert_envoys_are_served(xds, &refused).await;
    let mut flood: JoinSet<()> = held.into_iter().map(flood).collect();
    let disturbed = rollouts(&cluster, "disturbed").await;
    a_pod_is_deleted_gracefully(&cluster).await;
    rules_report_their_errors(&cluster).await;
    for operator in OPERATORS {
        assert_probe_is_answered(cluster.metrics_address(operator).unwrap()).await;
        let peak = cluster.operator(operator).unwrap().peak_mebibytes();
        eprintln!("{operator}: peak {peak:.0} MiB");
        // One that lost its Lease would have ended, too.
        let exits = cluster.operator(operator).unwrap().exits();
        assert_eq!(exits.len(), 1, "{operator} ended once, when it was killed: {exits:?}");
    }
    assert!(flood.try_join_next().is_none(), "the connections have lasted");
    drop(flood);
    assert!(disturbed < undisturbed.mul_f64(1.5), "{disturbed:?} instead of {undisturbed:?}");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Updates the CollaSet of another namespace, and returns how long it took.
async fn rollout(cluster: &TestCluster, image: &str) -> Duration {
    let started = Instant::now();
    cluster.set_image("web", image).await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
    started.elapsed()
}

/// Updates the CollaSet several times, and returns the median of how long it took.
async fn rollouts(cluster: &TestCluster, tag: &str) -> Duration {
    let mut times = Vec::new();
    for n in 0..ROLLOUTS {
        times.push(rollout(cluster, &format!("nginx:{tag}-{n}")).await);
    }
    eprintln!("{tag}: {times:.1?}");
    times.sort_unstable();
    times[ROLLOUTS / 2]
}

/// Creates a namespace, and an account with rights in it only.
async fn create_tenant(cluster: &TestCluster) {
    let plane = &cluster.plane;
    plane.kubectl(&["create", "namespace", TENANT]).await.unwrap();
    plane.kubectl(&["create", "serviceaccount", "mallory", "-n", TENANT]).await.unwrap();
    let role = [
        "create",
        "role",
        "tenant",
        "-n",
        TENANT,
        "--verb=*",
        "--resource=pods,pods/status,services,persistentvolumeclaims,collasets.apps.kusionstack.io,\
         podtransitionrules.apps.kusionstack.io,poddecorations.apps.kusionstack.io,\
         operationjobs.apps.kusionstack.io,resourcecontexts.apps.kusionstack.io,\
         controllerrevisions.apps,statefulsets.apps,poddisruptionbudgets.policy,\
         endpointslices.discovery.k8s.io",
    ];
    plane.kubectl(&role).await.unwrap();
    let binding = [
        "create",
        "rolebinding",
        "tenant",
        "-n",
        TENANT,
        "--role=tenant",
        "--serviceaccount=tenant:mallory",
    ];
    plane.kubectl(&binding).await.unwrap();
    let exists = async || {
        let account = ["get", "serviceaccount", "default", "-n", TENANT];
        Ok(plane.kubectl(&account).await.is_ok())
    };
    eventually(TIMEOUT, exists).await.unwrap();
}

/// Runs kubectl as the tenant.
async fn as_tenant(cluster: &TestCluster, arguments: &[&str]) -> anyhow::Result<String> {
    let account = ["--as", USER, "-n", TENANT];
    let arguments: Vec<&str> = account.into_iter().chain(arguments.iter().copied()).collect();
    cluster.plane.kubectl(&arguments).await
}

async fn create(cluster: &TestCluster, name: &str, object: &Value) -> anyhow::Result<String> {
    let path = cluster.plane.dir.path().join(format!("{name}.json"));
    std::fs::write(&path, object.to_string())?;
    as_tenant(cluster, &["create", "-f", path.to_str().unwrap()]).await
}

async fn too_many_replicas_are_rejected(cluster: &TestCluster) {
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "typo" },
        "spec": {
            "replicas": 2_000_000, "selector": { "matchLabels": { "app": "typo" } },
            "template": {
                "metadata": { "labels": { "app": "typo" } },
                "spec": { "containers": [{ "name": "a", "image": "a" }] },
            },
        },
    });
    let error = create(cluster, "typo", &set).await.unwrap_err().to_string();
    assert!(error.contains("replicas should not be greater than 10000"), "{error}");
}

/// Creates Pods, one with a large annotation and one with many, and starts an operation on each once
/// the rules apply to it.
async fn create_waiting_pods(cluster: &TestCluster) {
    let many: serde_json::Map<_, _> = (0..1400).map(|n| (format!("n{n}"), json!(""))).collect();
    let pods = [
        ("large", json!({ "x": "x".repeat(250 << 10) })),
        ("many", Value::Object(many)),
        ("frozen", json!({})),
        ("silent", json!({ "x": "x".repeat(250 << 10) })),
    ];
    for (name, annotations) in pods {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "annotations": annotations,
                "labels": { "app": name, well_known::CONTROL: "true" },
            },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        create(cluster, name, &pod).await.unwrap();
        let is_gated = async || {
            let labels = as_tenant(cluster, &["get", "pod", name, "--show-labels"]).await?;
            Ok(labels.contains("pre-check-gate.podopslifecycle.kusionstack.io/transition-rule"))
        };
        eventually(TIMEOUT, is_gated).await.unwrap();
        let operation = [
            "operating.podopslifecycle.kusionstack.io/t=1",
            "operation-type.podopslifecycle.kusionstack.io/t=update",
        ];
        as_tenant(cluster, &["label", "pod", name, operation[0], operation[1]]).await.unwrap();
    }
}

/// Creates more Pods than fit into memory, each with a large annotation, which wait for a rule that
/// reads all of them.
async fn create_large_pods(cluster: &TestCluster) {
    let pods = (0..LARGE_PODS).map(|n| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("whole-{n}"), "annotations": { "x": "x".repeat(250 << 10) },
                "labels": { "app": "whole", well_known::CONTROL: "true" },
            },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        })
    });
    let pods: Vec<Value> = pods.collect();
    create(cluster, "whole", &json!({ "apiVersion": "v1", "kind": "List", "items": pods }))
        .await
        .unwrap();
    let gate = "pre-check-gate.podopslifecycle.kusionstack.io/transition-rule";
    let gated = async || {
        let names = ["get", "pods", "-l", gate, "-l", "app=whole", "-o", "name"];
        Ok(as_tenant(cluster, &names).await?.lines().count() == LARGE_PODS)
    };
    eventually(TIMEOUT, gated).await.unwrap();
    let operation = [
        "operating.podopslifecycle.kusionstack.io/t=1",
        "operation-type.podopslifecycle.kusionstack.io/t=update",
    ];
    let label = ["label", "pods", "-l", "app=whole", operation[0], operation[1]];
    as_tenant(cluster, &label).await.unwrap();
}

/// Creates an object of each kind that operators read, with a time in its managed fields that jiff
/// cannot hold, a Pod with such a condition, and a CollaSet with a value that is nested too deep.
async fn create_objects_that_cannot_be_decoded(cluster: &TestCluster) {
    let labels = json!({ "app": "late", well_known::CONTROL: "true" });
    let selector = json!({ "matchLabels": { "app": "late" } });
    let gated = json!({
        "schedulingGates": [{ "name": "podops.test/never" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": gated });
    let set = json!({ "replicas": 0, "selector": selector, "template": template });
    let stateful =
        json!({ "replicas": 0, "selector": selector, "template": template, "serviceName": "late" });
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
    let sidecar = json!({ "containers": [{ "name": "sidecar", "image": "sidecar:1" }] });
    let apps = "apps.kusionstack.io/v1alpha1";
    let kinds = [
        (apps, "CollaSet", json!({ "spec": set })),
        (apps, "PodTransitionRule", json!({ "spec": { "selector": selector, "rules": budget } })),
        (apps, "PodDecoration", json!({ "spec": { "selector": selector, "template": sidecar } })),
        (
            apps,
            "OperationJob",
            json!({ "spec": { "action": "Restart", "targets": [{ "name": "none" }] } }),
        ),
        (apps, "ResourceContext", json!({ "spec": { "contexts": [{ "id": 0 }] } })),
        ("apps/v1", "ControllerRevision", json!({ "revision": 1, "data": {} })),
        ("apps/v1", "StatefulSet", json!({ "spec": stateful })),
        (
            "policy/v1",
            "PodDisruptionBudget",
            json!({ "spec": { "maxUnavailable": 1, "selector": selector } }),
        ),
        ("discovery.k8s.io/v1", "EndpointSlice", json!({ "addressType": "IPv4", "endpoints": [] })),
        ("v1", "PersistentVolumeClaim", json!({ "spec": claim })),
        (
            "v1",
            "Service",
            json!({ "spec": { "selector": { "app": "late" }, "ports": [{ "port": 80 }] } }),
        ),
        ("v1", "Pod", json!({ "spec": gated })),
    ];
    let patch = json!([
        { "op": "replace", "path": "/metadata/managedFields/0/time", "value": TOO_LATE },
        { "op": "add", "path": "/metadata/annotations/late", "value": "true" },
    ]);
    let patch = patch.to_string();
    for (version, kind, mut object) in kinds {
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"] =
            json!({ "name": "late", "labels": labels, "annotations": { "a": "b" } });
        create(cluster, &format!("late-{kind}"), &object).await.unwrap();
        let arguments = ["patch", kind, "late", "--type=json", "--patch", &patch];
        as_tenant(cluster, &arguments).await.unwrap();
    }
    let condition = json!([{ "op": "add", "path": "/status/conditions/-", "value": {
        "type": "Late", "status": "True", "lastTransitionTime": TOO_LATE,
    } }]);
    let condition = condition.to_string();
    let arguments =
        ["patch", "pod", "late", "--subresource=status", "--type=json", "--patch", &condition];
    as_tenant(cluster, &arguments).await.unwrap();
    create_deep_set(cluster, &set).await;
}

/// Creates a CollaSet with a value that is nested too deep.
async fn create_deep_set(cluster: &TestCluster, spec: &Value) {
    let mut deep = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "deep" }, "spec": spec,
    });
    deep["spec"]["template"]["spec"]["x"] =
        (0..DEPTH).fold(json!(1), |inner, _| json!({ "a": inner }));
    let file = cluster.plane.dir.path().join("deep.json");
    std::fs::write(&file, deep.to_string()).unwrap();
    let arguments = ["create", "--validate=false", "-f", file.to_str().unwrap()];
    as_tenant(cluster, &arguments).await.unwrap();
}

/// A Service of the tenant does not change a HAProxy that the flags permit to another namespace.
async fn a_backend_of_others_is_not_used(cluster: &TestCluster, haproxy: &TcpListener) {
    let instance = format!("tcp://{}", haproxy.local_addr().unwrap());
    let annotations = json!({
        "resource-consist.kusionstack.io/backend": "haproxy",
        "resource-consist.kusionstack.io/backend-params":
            json!({ "instances": [instance], "backend": "web", "port": 80 }).to_string(),
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "stolen", "annotations": annotations, "labels": { well_known::CONTROL: "true" },
        },
        "spec": { "selector": { "app": "stolen" }, "ports": [{ "port": 80 }] },
    });
    create(cluster, "stolen", &service).await.unwrap();
    let is_reported = async || {
        let events = cluster.plane.kubectl(&["get", "events", "-n", TENANT, "-o", "json"]).await?;
        Ok(events.contains("is not allowed for namespace tenant"))
    };
    eventually(TIMEOUT, is_reported).await.unwrap();
    let connected = timeout(Duration::from_secs(1), haproxy.accept()).await;
    assert!(connected.is_err(), "the operator connected to it");
}

/// Creates Pods with a megabyte of labels each.
async fn create_pods_with_many_labels(cluster: &TestCluster) {
    let labels = (0..7000).map(|n| (format!("{n:063}"), json!("x".repeat(63))));
    let mut labels: serde_json::Map<_, _> = labels.collect();
    labels.insert(well_known::CONTROL.to_owned(), json!("true"));
    let spec = json!({
        "schedulingGates": [{ "name": "podops.test/never" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let pods: Api<Pod> = Api::namespaced(cluster.plane.client_as(USER).await.unwrap(), TENANT);
    let (params, pods, labels, spec) = (&PostParams::default(), &pods, &labels, &spec);
    let created = stream::iter(0..MANY_LABELS_PODS).map(async |n| {
        let metadata = json!({ "name": format!("labels-{n}"), "labels": labels });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        pods.create(params, &serde_json::from_value(pod).unwrap()).await.unwrap();
    });
    created.buffer_unordered(2).collect::<Vec<()>>().await;
    // Also when the operators list them.
    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await.unwrap();
    }
    rollout(cluster, "nginx:restarted").await;
}

/// A rule with this maxUnavailable.
fn at_most(pods: i32) -> Value {
    json!([{ "name": "most", "availablePolicy": { "maxUnavailableValue": pods } }])
}

/// The admission webhook reviews a delete although the tenant holds connections to it.
async fn a_pod_is_deleted_gracefully(cluster: &TestCluster) {
    let pod = cluster.pods_of("web").await.unwrap().remove(0);
    let rejection = cluster.pods().delete(&pod.name_any(), &DeleteParams::default()).await;
    let rejection = rejection.unwrap_err().to_string();
    assert!(rejection.contains("PodOpsLifecycle"), "{rejection}");
    let recreated = async || {
        let pods = cluster.pods_of("web").await?;
        Ok(pods.len() == PODS as usize && pods.iter().all(|p| p.uid() != pod.uid()))
    };
    eventually(TIMEOUT, recreated).await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
}

/// Creates rules that are too expensive, and webhook rules whose service, at `silent`, never answers.
async fn create_rules(cluster: &TestCluster, silent: SocketAddr) {
    let sum = ["pod.metadata.annotations.x"; 55].join(" + ");
    let ones = ["1"; 64].join(",");
    let memory = json!([{
        "name": "memory", "cel": { "expression": format!("[{ones}].map(i, {sum}).size() > 0") },
    }]);
    let nested = "pod.metadata.annotations.all(x, pod.metadata.annotations.all(y, x != y || true))";
    let many = (0..32).map(|n| json!({ "name": format!("n{n}"), "cel": { "expression": nested } }));
    let freeze = json!({ "from": "2020-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z" });
    let frozen = json!([{ "name": "freeze", "schedule": { "freezes": [freeze] } }]);
    let whole = json!([{
        "name": "whole", "cel": { "expression": "[pod].exists(p, p.spec.nodeName == 'never')" },
    }]);
    let many = json!(many.collect::<Vec<_>>());
    // Each parameter of each webhook is all annotations of the Pod.
    let parameters = (0..64).map(|n| {
        let field = json!({ "fieldRef": { "fieldPath": "metadata.annotations" } });
        json!({ "key": format!("p{n}"), "valueFrom": field })
    });
    let parameters = json!(parameters.collect::<Vec<_>>());
    let webhooks = (0..32).map(|n| {
        let client = json!({ "url": format!("http://{silent}/{n}") });
        let webhook = json!({
            "clientConfig": client, "failurePolicy": "Fail", "timeoutSeconds": 30,
            "parameters": parameters,
        });
        json!({ "name": format!("n{n}"), "webhook": webhook })
    });
    let webhooks = json!(webhooks.collect::<Vec<_>>());
    let rules = [
        ("large", memory),
        ("many", many),
        ("frozen", frozen),
        ("whole", whole),
        ("silent", webhooks),
    ];
    for (name, rules) in rules {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": { "app": name } }, "rules": rules },
        });
        create(cluster, &format!("rule-{name}"), &rule).await.unwrap();
    }
}

async fn rules_report_their_errors(cluster: &TestCluster) {
    let expected = [
        ("large", "may take more than"),
        ("many", "may take more than"),
        ("frozen", "frozen until 9999"),
        ("whole", "waiting Pods exceed 8 MiB"),
    ];
    for (rule, reason) in expected {
        let is_reported = async || {
            let status =
                as_tenant(cluster, &["get", "podtransitionrule", rule, "-o", "json"]).await?;
            Ok(status.contains(reason))
        };
        let reported = eventually(TIMEOUT, is_reported).await;
        if reported.is_err() {
            let rule = as_tenant(cluster, &["get", "podtransitionrule", rule, "-o", "yaml"]).await;
            panic!("{rule:?}");
        }
    }
}

/// With the component `reserved-labels`.
async fn approvals_are_reserved_to_the_operators(cluster: &TestCluster) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let policy = root.join("deploy/components/reserved-labels/reserved-labels.yaml");
    cluster.plane.kubectl(&["apply", "-f", policy.to_str().unwrap()]).await.unwrap();
    let approve = "operation-permission.podopslifecycle.kusionstack.io/update=1";
    let arguments = ["label", "pod", "frozen", approve, "--overwrite", "--dry-run=server"];
    let is_rejected = async || {
        let error = as_tenant(cluster, &arguments).await.err().map(|error| error.to_string());
        Ok(error.unwrap_or_default().contains("only the operators may write the label"))
    };
    // The API server takes a moment to enforce a new policy.
    eventually(TIMEOUT, is_rejected).await.unwrap();
    let remove_gate = "pre-check-gate.podopslifecycle.kusionstack.io/transition-rule-";
    let error = as_tenant(cluster, &["label", "pod", "frozen", remove_gate]).await.unwrap_err();
    assert!(error.to_string().contains("only the operators may write the label"), "{error}");
}

/// Opens connections from another address than that of the probes, each with an unfinished request.
async fn hold_connections(address: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // It fails if the operator has closed the connection already.
        drop(stream.write_all(b"GET /livez HTTP/1.1\r\n").await);
        held.push(stream);
    }
    held
}

/// Holds as many connections as it can until it is dropped, from several addresses, and opens others in place
/// of those that are closed, at most [`OPENED_PER_SECOND`].
async fn flood(address: SocketAddr) {
    let mut held: Vec<TcpStream> = Vec::new();
    let mut second = interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        held.retain(is_open);
        let missing = CONNECTIONS - held.len();
        for n in 0..missing.min(OPENED_PER_SECOND) {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.0.{}:0", 2 + n % 4).parse().unwrap()).unwrap();
            held.extend(socket.connect(address).await.ok());
        }
    }
}

/// Returns whether a connection on which nothing was sent is open.
fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0; 64]);
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Most connections to the xDS port that one client may have.
const XDS_CONNECTIONS: usize = 32;

/// The connections of a client beyond the limit are closed, and another client is served.
async fn assert_envoys_are_served(address: SocketAddr, held: &[TcpStream]) {
    // Nothing is sent without a greeting of HTTP/2.
    let closed = held.iter().filter(|stream| !is_open(stream)).count();
    assert!(closed >= CONNECTIONS - XDS_CONNECTIONS, "{closed} of {CONNECTIONS} are closed");
    let greeting = async || {
        let mut stream = TcpStream::connect(address).await?;
        // The preface of HTTP/2 with empty settings.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        let mut settings = [0; 9];
        stream.read_exact(&mut settings).await?;
        std::io::Result::Ok(settings)
    };
    let settings = timeout(Duration::from_secs(5), greeting()).await.unwrap().unwrap();
    assert_eq!(settings[3], 4, "a frame with the settings of the server");
}

/// Failed probes after which the kubelet restarts an operator.
const PROBE_FAILURES: usize = 3;

/// As the kubelet probes: from its own address, with a timeout of one second.
async fn assert_probe_is_answered(address: SocketAddr) {
    let probe = async || {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        std::io::Result::Ok(response)
    };
    let mut results = Vec::new();
    for _ in 0..PROBE_FAILURES {
        match timeout(Duration::from_secs(1), probe()).await {
            Ok(Ok(response)) if response.starts_with("HTTP/1.1 200") => return,
            result => results.push(result),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("the operator would be restarted: {results:?}");
}
