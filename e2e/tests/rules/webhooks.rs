//! Webhook rules: the examples in Python and Go, tasks that are polled, and webhooks that fail.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use podops_api::{condition, lifecycle::LabelKind, transition_rule::PodTransitionRule, well_known};
use podops_test_cluster::{
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, eventually, image, programs},
    process::Signal,
    suite::{Lane, Suite, new_cluster},
    tenant::Tenant,
    updates::{BESIDE_ANOTHER, Updates},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket},
    process::{Child, Command},
    task::JoinSet,
};

/// Handler of a test webhook: request head and body in, reply out.
type Handler = fn(&str, &str) -> Reply;

/// Reply of a test webhook.
enum Reply {
    /// 200 with a JSON body.
    Json(Value),
    /// Raw bytes of a response.
    Raw(&'static [u8]),
    /// 200 with a body of this many spaces.
    Large(usize),
    /// No response; the connection stays open.
    Never,
}

/// HTTP server of a test; stops when dropped.
struct Service {
    address: String,
    /// Number of POST requests, thus without polls.
    calls: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Service {
    async fn start(handler: Handler) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let (calls, mut task) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        let counter = calls.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, handler, counter.clone()));
            }
        });
        Self { address, calls, _task: task }
    }
}

async fn serve(mut stream: TcpStream, handler: Handler, calls: Arc<AtomicUsize>) {
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    let (head, body) = loop {
        let Ok(read @ 1..) = stream.read(&mut chunk).await else { return };
        request.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or_default() {
            break (head.to_owned(), body.to_owned());
        }
    };
    let method = head.split(' ').next().unwrap_or_default().to_owned();
    if method == "POST" {
        calls.fetch_add(1, Ordering::Relaxed);
    }
    let bytes = match handler(&head, &body) {
        Reply::Json(value) => {
            let body = value.to_string();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
        }
        Reply::Raw(bytes) => bytes.to_vec(),
        Reply::Large(length) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            // The client may close the connection before the end.
            if stream.write_all(head.as_bytes()).await.is_ok() {
                let megabyte = vec![b' '; 1 << 20];
                for _ in 0..length >> 20 {
                    if stream.write_all(&megabyte).await.is_err() {
                        return;
                    }
                }
            }
            return;
        }
        Reply::Never => std::future::pending().await,
    };
    drop(stream.write_all(&bytes).await);
}

/// Starts a program of `docs/examples/webhooks` and returns its URL once it accepts connections.
async fn example(program: &str, args: &[&str], at: &Path) -> (Child, String) {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/webhooks");
    let source = source.canonicalize().unwrap();
    let mut command = Command::new(program);
    let last = args.len() - 1;
    command.args(&args[..last]).arg(source.join(args[last])).arg(address.to_string());
    command.current_dir(at).kill_on_drop(true).stdin(Stdio::null()).process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.unwrap_or_else(|error| unreachable!("{program} does not start: {error}"));
    let listens = async || Ok(TcpStream::connect(address).await.is_ok());
    // The Go example may have to be compiled first.
    eventually(Duration::from_secs(600), listens).await.unwrap();
    (child, format!("http://{address}/"))
}

fn webhook(url: &str, more: &Value) -> Value {
    let mut webhook = json!({ "clientConfig": { "url": url }, "failurePolicy": "Fail" });
    for (key, value) in more.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    json!([{ "name": "webhook", "webhook": webhook }])
}

async fn clear(cluster: &TestCluster, name: &str) {
    cluster.rules().delete(name, &DeleteParams::default()).await.unwrap();
    cluster.sets().delete(name, &DeleteParams::default()).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, the_python_and_go_examples_decide)
        .scenario(Lane::Waiting, a_task_is_polled_after_a_restart_without_another_call)
        .scenario(Lane::Beside, rules_reach_no_loopback_and_metadata_service)
        .scenario(Lane::Waiting, failing_webhooks_are_reported_and_block_no_other_rule)
        .scenario(Lane::Beside, names_that_never_resolve_let_no_other_pod_pass)
}

async fn the_python_and_go_examples_decide() {
    let cluster = new_cluster().await;
    let at = tempfile::tempdir().unwrap();
    let (_python, url) = example("python3", &["webhook.py"], at.path()).await;
    let tier = json!({ "parameters": [{ "key": "tier", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['tier']" } } }] });
    let template = json!({ "template": {
        "metadata": { "labels": { "app": "py", "tier": "critical" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
    } });
    cluster.create_and_wait("py", 2, &template).await.unwrap();
    cluster.create_rule("py", app("py"), webhook(&url, &tier)).await.unwrap();
    cluster.set_image("py", "nginx:2").await.unwrap();
    let rejection = "rejected by the webhook: critical Pods wait for the file";
    cluster.wait_until_rejected("py", "webhook", rejection).await.unwrap();
    std::fs::write(at.path().join("open"), "").unwrap();
    cluster.wait_until_rolled_out("py", 2, TIMEOUT).await.unwrap();

    let (go, url) = example("go", &["run", "webhook.go"], at.path()).await;
    let poll =
        json!({ "clientConfig": { "url": url, "poll": { "url": url, "intervalSeconds": 1 } } });
    cluster.create_and_wait("go", 3, &json!({})).await.unwrap();
    cluster.create_rule("go", app("go"), webhook(&url, &poll)).await.unwrap();
    cluster.set_image("go", "nginx:2").await.unwrap();
    cluster.wait_until_rejected("go", "webhook", "webhook task in progress").await.unwrap();
    // The restarted operator finds the task in the status and polls it.
    cluster.kill_and_restart("transition-rule-operator").await.unwrap();
    cluster.wait_until_rolled_out("go", 3, TIMEOUT).await.unwrap();
    // `go run` starts a child process, which would outlive it.
    let group = rustix::process::Pid::from_raw(i32::try_from(go.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Handler whose task finishes at the seventh poll.
fn finishes_at_seventh_poll(head: &str, _: &str) -> Reply {
    static POLLS: AtomicUsize = AtomicUsize::new(0);
    if head.starts_with("POST") {
        return Reply::Json(json!({ "success": true, "poll": true, "taskId": "a task&more" }));
    }
    // The task ID is URL-encoded; Kuperator inserts it unchanged.
    assert!(head.starts_with("GET /?task-id=a+task%26more "), "{head}");
    let finished = POLLS.fetch_add(1, Ordering::Relaxed) >= 6;
    Reply::Json(json!({ "success": true, "finished": finished }))
}

/// Kuperator's known defect 4 (docs/KUPERATOR.md#known-defects).
async fn a_task_is_polled_after_a_restart_without_another_call() {
    let cluster = new_cluster().await;
    let service = Service::start(finishes_at_seventh_poll).await;
    let url = &service.address;
    let poll =
        json!({ "clientConfig": { "url": url, "poll": { "url": url, "intervalSeconds": 1 } } });
    cluster.create_and_wait("web", 1, &json!({})).await.unwrap();
    cluster.create_rule("web", app("web"), webhook(url, &poll)).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    let working = cluster.wait_for_rule("web", |status| {
        let tasks = status.rule_states.iter().filter_map(|s| s.webhook_status.as_ref());
        tasks.into_iter().any(|w| w.task_states.iter().any(|t| t.processing.len() == 1))
    });
    working.await.unwrap();
    cluster.kill_and_restart("transition-rule-operator").await.unwrap();
    cluster.wait_until_rolled_out("web", 1, TIMEOUT).await.unwrap();
    assert_eq!(service.calls.load(Ordering::Relaxed), 1, "the webhook was called again");
}

/// The operator's network may reach more than that of the namespace; with the shipped flags,
/// neither loopback addresses nor the metadata services of clouds are called.
async fn rules_reach_no_loopback_and_metadata_service() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    cluster.restrict_webhooks();
    cluster.start_operators().await.unwrap();
    // Would permit all updates.
    let service = Service::start(|_, _| Reply::Json(json!({ "success": true }))).await;
    let by_name = service.address.replace("127.0.0.1", "localhost");
    let cases = [
        ("loopback", service.address.as_str()),
        ("localhost", by_name.as_str()),
        ("mapped", "http://[::ffff:169.254.169.254]/"),
        ("metadata", "http://169.254.169.254/"),
        ("azure", "http://168.63.129.16/"),
    ];
    cluster.create_and_wait("web", 2, &json!({})).await.unwrap();
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    cluster.create_rule("web", app("web"), budget).await.unwrap();
    let undisturbed = Updates::measure(&cluster, "web", 2, "undisturbed", 5).await.unwrap();
    let tenant = Tenant::new(&cluster, "tenant").await.unwrap();
    for (name, url) in cases {
        tenant.create_rule(name, name, &webhook(url, &json!({}))).await.unwrap();
        create_waiting_pod(&tenant, name).await;
    }
    let disturbed = Updates::measure(&cluster, "web", 2, "disturbed", 5).await.unwrap();
    disturbed.ensure_not_slowed(&undisturbed, BESIDE_ANOTHER).unwrap();
    let rules: Api<PodTransitionRule> = tenant.api();
    let pods: Api<Pod> = tenant.api();
    for (name, _) in cases {
        let is_rejected = async || {
            let status = rules.get(name).await?.status.unwrap_or_default();
            let mut infos = status.details.iter().flat_map(|detail| &detail.reject_info);
            let reason = "webhook address is not allowed";
            Ok(infos.any(|info| info.rule_name == "webhook" && info.reason.contains(reason)))
        };
        eventually(TIMEOUT, is_rejected).await.unwrap();
        let pod = pods.get(name).await.unwrap();
        let granted = LabelKind::PreChecked.key("t");
        assert!(!pod.labels().contains_key(&granted), "{name}: the Pod may be updated");
    }
    assert_eq!(service.calls.load(Ordering::Relaxed), 0, "the service was called");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Kuperator's known defects 3 and 24 (docs/KUPERATOR.md#known-defects).
async fn failing_webhooks_are_reported_and_block_no_other_rule() {
    let cluster = new_cluster().await;
    let slow = Service::start(|_, _| Reply::Never).await;
    let huge = Service::start(|_, _| Reply::Large(100 << 20)).await;
    let invalid = Service::start(|_, _| {
        Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n<secret>token</secret")
    })
    .await;
    let redirecting = Service::start(|_, _| {
        Reply::Raw(
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        )
    })
    .await;
    let unreachable = "http://127.0.0.1:1/".to_owned();
    let cases = [
        ("unreachable", &unreachable, "webhook cannot be reached"),
        ("slow", &slow.address, "webhook timed out after 2s"),
        ("huge", &huge.address, "webhook response is larger than 64 KiB"),
        ("invalid", &invalid.address, "webhook response is invalid"),
        ("redirecting", &redirecting.address, "webhook returned HTTP status 302"),
    ];
    for (name, url, _) in &cases {
        cluster.create_and_wait(name, 1, &json!({})).await.unwrap();
        cluster
            .create_rule(name, app(name), webhook(url, &json!({ "timeoutSeconds": 2 })))
            .await
            .unwrap();
    }
    cluster.create_and_wait("healthy", 3, &json!({})).await.unwrap();
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    cluster.create_rule("healthy", app("healthy"), budget).await.unwrap();
    for (name, ..) in &cases {
        cluster.set_image(name, "nginx:2").await.unwrap();
    }
    for (name, _, reason) in &cases {
        cluster.wait_until_rejected(name, "webhook", reason).await.unwrap();
        let degraded = |s: &podops_api::transition_rule::PodTransitionRuleStatus| {
            condition::find(&s.conditions, "Degraded").is_some_and(|c| {
                c.status == "True" && c.message.as_ref().is_some_and(|m| m.contains(reason))
            })
        };
        cluster.wait_for_rule(name, degraded).await.unwrap();
        cluster.wait_for_event(name, "RuleEvaluationFailed").await.unwrap();
        let text = serde_json::to_string(&cluster.rules().get(name).await.unwrap().status).unwrap();
        assert!(!text.contains("secret"), "the status repeats an invalid response: {text}");
    }
    cluster.set_image("healthy", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("healthy", 3, TIMEOUT).await.unwrap();

    // A rule with an unreachable webhook can be edited and deleted.
    let ignore = json!([{ "op": "replace", "path": "/spec/rules/0/webhook/failurePolicy", "value": "Ignore" }]);
    let ignore: json_patch::Patch = serde_json::from_value(ignore).unwrap();
    for (name, ..) in &cases[..1] {
        let edit = Patch::Json::<()>(ignore.clone());
        cluster.rules().patch(name, &PatchParams::default(), &edit).await.unwrap();
        cluster.wait_until_rolled_out(name, 1, TIMEOUT).await.unwrap();
    }
    for (name, ..) in &cases {
        clear(&cluster, name).await;
        let deleted = async || Ok(cluster.rules().get_opt(name).await?.is_none());
        eventually(TIMEOUT, deleted).await.unwrap();
    }
    let crashes = cluster.operator("transition-rule-operator").unwrap().crashes();
    assert!(crashes.is_empty(), "the operator crashed: {crashes:?}");
    assert!(slow.calls.load(Ordering::Relaxed) < 20, "calls of a slow webhook need backoff");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Creates a Pod as the tenant, and starts an operation on it once the rules for its label `app`
/// apply.
async fn create_waiting_pod(tenant: &Tenant<'_>, app: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": app, "labels": { well_known::CONTROL: "true", "app": app } },
        "spec": {
            "serviceAccountName": "default", "automountServiceAccountToken": false,
            "containers": [{ "name": "web", "image": "nginx:1" }],
        },
    });
    tenant.create(&pod).await.unwrap();
    tenant.start_operations(app, 1).await.unwrap();
}

/// Address of a DNS server that never answers.
const SILENT_DNS: &str = "127.0.0.99";
/// Namespaces whose webhooks have names that never resolve, and rules in each: as many as tokio has
/// threads for work that blocks.
const NAMESPACES: usize = 8;
const RULES: usize = 64;

/// Writes a script that starts transition-rule-operator with [`SILENT_DNS`], and with one known
/// host, into a directory of programs.
fn with_silent_dns(programs: &Path) -> tempfile::TempDir {
    let at = tempfile::tempdir().unwrap();
    // The first name would be resolved for an hour.
    let options = "options timeout:30 attempts:5";
    let files = [
        ("resolv.conf", format!("nameserver {SILENT_DNS}\nsearch a b c d e f\n{options}\n")),
        ("hosts", "127.0.0.1 gate.test\n".to_owned()),
    ];
    let mounts = files.map(|(name, text)| {
        std::fs::write(at.path().join(name), text).unwrap();
        format!("mount --bind {0}/{name} /etc/{name} && ", at.path().display())
    });
    let mounts = mounts.concat();
    let operator = programs.join("transition-rule-operator");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c '{mounts}exec {} \"$@\"' sh \"$@\"\n",
        operator.display()
    );
    let path = at.path().join("transition-rule-operator");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    for operator in OPERATORS.into_iter().filter(|name| *name != "transition-rule-operator") {
        std::os::unix::fs::symlink(programs.join(operator), at.path().join(operator)).unwrap();
    }
    at
}

/// Creates a tenant with [`RULES`] webhook rules whose names never resolve, and a Pod that waits
/// for them.
async fn create_unresolvable_rules(cluster: &TestCluster, namespace: &str) {
    let tenant = Tenant::new(cluster, namespace).await.unwrap();
    let rule = |n: usize| {
        let webhook = json!({
            "clientConfig": { "url": format!("http://x{n}.{namespace}.slow/") }, "timeoutSeconds": 1,
        });
        json!({ "name": format!("n{n}"), "webhook": webhook })
    };
    let rules: Vec<Value> = (0..RULES).map(rule).collect();
    for (n, rules) in rules.chunks(32).enumerate() {
        tenant.create_rule(&format!("slow-{n}"), "slow", &json!(rules)).await.unwrap();
    }
    create_waiting_pod(&tenant, "slow").await;
}

/// A thread that resolves a name cannot be ended. If all did, the webhooks of others would time
/// out, and with the default `failurePolicy`, their Pods would pass.
async fn names_that_never_resolve_let_no_other_pod_pass() {
    let programs = programs().unwrap();
    let _silent = UdpSocket::bind(format!("{SILENT_DNS}:53")).await.unwrap();
    let mut cluster = TestCluster::start_without_operators(&programs).await.unwrap();
    let wrapped = with_silent_dns(&programs);
    cluster.use_programs(wrapped.path());
    cluster.start_operators().await.unwrap();
    cluster.create_and_wait("web", 1, &json!({})).await.unwrap();
    cluster.create_and_wait("other", 10, &json!({})).await.unwrap();
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 5 } }]);
    cluster.create_rule("other", app("other"), budget).await.unwrap();
    let undisturbed = Updates::measure(&cluster, "other", 10, "undisturbed", 5).await.unwrap();
    for n in 0..NAMESPACES {
        create_unresolvable_rules(&cluster, &format!("slow-{n}")).await;
    }
    // Without a limit, each namespace would take four threads a second.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let disturbed = Updates::measure(&cluster, "other", 10, "disturbed", 5).await.unwrap();
    let rejection =
        |_: &str, _: &str| Reply::Json(json!({ "success": false, "message": "not today" }));
    let service = Service::start(rejection).await;
    let url = service.address.replace("127.0.0.1", "gate.test");
    let ignore = json!({ "failurePolicy": "Ignore", "timeoutSeconds": 2 });
    cluster.create_rule("web", app("web"), webhook(&url, &ignore)).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rejected("web", "webhook", "not today").await.unwrap();
    assert!(cluster.pods_of("web").await.unwrap().iter().all(|pod| image(pod) == "nginx:1"));
    let pid = cluster.operator("transition-rule-operator").unwrap().pid().unwrap();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    eprintln!("{threads} threads");
    assert!(threads > NAMESPACES * 4, "names are being resolved");
    assert!(threads < NAMESPACES * 4 + 64, "{threads} threads");
    disturbed.ensure_not_slowed(&undisturbed, BESIDE_ANOTHER).unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}
