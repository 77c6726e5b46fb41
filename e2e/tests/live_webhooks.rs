//! Rules that ask services: real ones, in Python and Go, and some that nobody should have to ask.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::api::{DeleteParams, Patch, PatchParams};
use podops_api::condition;
use podops_e2e::{
    cluster::{TIMEOUT, TestCluster, app, eventually, programs},
    process::Signal,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinSet,
};

/// What a service in a test does with a request: it is told method, path and body.
type Answer = fn(&str, &str) -> Reply;

/// What it sends back.
enum Reply {
    /// A JSON answer.
    Json(Value),
    /// Bytes as they are.
    Raw(&'static [u8]),
    /// So many bytes of nothing.
    Endless(usize),
    /// Nothing, ever.
    Nothing,
}

/// A service of a test; it ends with this.
struct Service {
    address: String,
    /// How often it was asked, by anything but a poll.
    asked: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Service {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let (asked, mut task) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
        let counted = asked.clone();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, answer, counted.clone()));
            }
        });
        Self { address, asked, _task: task }
    }
}

async fn serve(mut stream: TcpStream, answer: Answer, asked: Arc<AtomicUsize>) {
    let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
    let (head, length) = loop {
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
        asked.fetch_add(1, Ordering::Relaxed);
    }
    let bytes = match answer(&head, &length) {
        Reply::Json(value) => {
            let body = value.to_string();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
        }
        Reply::Raw(bytes) => bytes.to_vec(),
        Reply::Endless(length) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            // Whoever asked may hang up when it has had enough.
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
        Reply::Nothing => std::future::pending().await,
    };
    drop(stream.write_all(&bytes).await);
}

/// A program of `docs/examples/webhooks`, once it answers.
async fn example(program: &str, args: &[&str], at: &Path) -> (Child, String) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/webhooks");
    let source = source.canonicalize().unwrap();
    let mut command = Command::new(program);
    let last = args.len() - 1;
    command.args(&args[..last]).arg(source.join(args[last])).arg(free.to_string());
    command.current_dir(at).kill_on_drop(true).stdin(Stdio::null()).process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.unwrap_or_else(|error| unreachable!("{program} does not start: {error}"));
    let answers = async || Ok(TcpStream::connect(free).await.is_ok());
    // It may have to be built.
    eventually(Duration::from_secs(600), answers).await.unwrap();
    (child, format!("http://{free}/"))
}

fn webhook(url: &str, more: &Value) -> Value {
    let mut webhook = json!({ "clientConfig": { "url": url }, "failurePolicy": "Fail" });
    for (key, value) in more.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    json!([{ "name": "ask", "webhook": webhook }])
}

/// Waits until a rule says this of a Pod that waits.
async fn until_told(cluster: &TestCluster, rule: &str, reason: &str) {
    let told = cluster.wait_for_rule(rule, |status| {
        let infos = status.details.iter().flat_map(|detail| &detail.reject_info);
        infos.into_iter().any(|info| info.reason.contains(reason))
    });
    told.await.unwrap();
}

async fn clear(cluster: &TestCluster, name: &str) {
    cluster.rules().delete(name, &DeleteParams::default()).await.unwrap();
    cluster.sets().delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_in_python_and_go_decide() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
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
    until_told(&cluster, "py", "rejected by the webhook: critical Pods wait for the file").await;
    std::fs::write(at.path().join("open"), "").unwrap();
    cluster.wait_until_rolled_out("py", 2, TIMEOUT).await.unwrap();

    let (go, url) = example("go", &["run", "webhook.go"], at.path()).await;
    let poll =
        json!({ "clientConfig": { "url": url, "poll": { "url": url, "intervalSeconds": 1 } } });
    cluster.create_and_wait("go", 3, &json!({})).await.unwrap();
    cluster.create_rule("go", app("go"), webhook(&url, &poll)).await.unwrap();
    cluster.set_image("go", "nginx:2").await.unwrap();
    until_told(&cluster, "go", "webhook task in progress").await;
    // Whoever comes next finds the task in the status, and asks about that one.
    cluster.kill_and_restart("transition-rule-operator").await.unwrap();
    cluster.wait_until_rolled_out("go", 3, TIMEOUT).await.unwrap();
    // `go run` runs a program of its own, which is not to outlive it.
    let group = rustix::process::Pid::from_raw(i32::try_from(go.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A service whose task ends when it is asked about for the seventh time.
fn seventh_time(head: &str, _: &str) -> Reply {
    static POLLS: AtomicUsize = AtomicUsize::new(0);
    if head.starts_with("POST") {
        return Reply::Json(json!({ "success": true, "poll": true, "taskId": "a task&more" }));
    }
    // Kuperator puts the name into the address as it is.
    assert!(head.starts_with("GET /?task-id=a+task%26more "), "{head}");
    let finished = POLLS.fetch_add(1, Ordering::Relaxed) >= 6;
    Reply::Json(json!({ "success": true, "finished": finished }))
}

#[tokio::test(flavor = "multi_thread")]
async fn weakness_4_a_task_is_polled_on_after_a_restart_and_asked_about_once() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    let service = Service::start(seventh_time).await;
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
    assert_eq!(service.asked.load(Ordering::Relaxed), 1, "the service was asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn weakness_3_services_that_fail_stop_nobody_else_and_are_told_of() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    let slow = Service::start(|_, _| Reply::Nothing).await;
    let huge = Service::start(|_, _| Reply::Endless(100 << 20)).await;
    let wrong = Service::start(|_, _| {
        Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n<secret>token</secret")
    })
    .await;
    let moved = Service::start(|_, _| {
        Reply::Raw(
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        )
    })
    .await;
    let nobody = "http://127.0.0.1:1/".to_owned();
    let cases = [
        ("nobody", &nobody, "webhook cannot be reached"),
        ("slow", &slow.address, "webhook timed out after 2s"),
        ("huge", &huge.address, "webhook response is larger than 64 KiB"),
        ("wrong", &wrong.address, "webhook response is invalid"),
        ("moved", &moved.address, "webhook returned HTTP status 302"),
    ];
    for (name, url, _) in &cases {
        cluster.create_and_wait(name, 1, &json!({})).await.unwrap();
        cluster
            .create_rule(name, app(name), webhook(url, &json!({ "timeoutSeconds": 2 })))
            .await
            .unwrap();
    }
    cluster.create_and_wait("well", 3, &json!({})).await.unwrap();
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    cluster.create_rule("well", app("well"), budget).await.unwrap();
    for (name, ..) in &cases {
        cluster.set_image(name, "nginx:2").await.unwrap();
    }
    for (name, _, reason) in &cases {
        until_told(&cluster, name, reason).await;
        let degraded = |s: &podops_api::transition_rule::PodTransitionRuleStatus| {
            condition::find(&s.conditions, "Degraded").is_some_and(|c| {
                c.status == "True" && c.message.as_ref().is_some_and(|m| m.contains(reason))
            })
        };
        cluster.wait_for_rule(name, degraded).await.unwrap();
        cluster.wait_for_event(name, "RuleEvaluationFailed").await.unwrap();
        let text = serde_json::to_string(&cluster.rules().get(name).await.unwrap().status).unwrap();
        assert!(!text.contains("secret"), "what is no answer is repeated: {text}");
    }
    cluster.set_image("well", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("well", 3, TIMEOUT).await.unwrap();

    // Weakness 24: a rule whose service is dead can be edited, and deleted.
    let ignore = json!([{ "op": "replace", "path": "/spec/rules/0/webhook/failurePolicy", "value": "Ignore" }]);
    let ignore: json_patch::Patch = serde_json::from_value(ignore).unwrap();
    for (name, ..) in &cases[..1] {
        let edit = Patch::Json::<()>(ignore.clone());
        cluster.rules().patch(name, &PatchParams::default(), &edit).await.unwrap();
        cluster.wait_until_rolled_out(name, 1, TIMEOUT).await.unwrap();
    }
    for (name, ..) in &cases {
        clear(&cluster, name).await;
        let gone = async || Ok(cluster.rules().get_opt(name).await?.is_none());
        eventually(TIMEOUT, gone).await.unwrap();
    }
    let exits = cluster.operator("transition-rule-operator").unwrap().exits();
    assert!(exits.is_empty(), "the operator went down: {exits:?}");
    assert!(slow.asked.load(Ordering::Relaxed) < 20, "a service that hangs is asked without pause");
    cluster.assert_no_forbidden_requests().unwrap();
}
