//! Tests of the conformance checks: a conforming adapter passes all of them, and each violation is
//! detected. The example adapter in Python is checked in front of a real HAProxy.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    sync::Mutex,
    time::{Duration, Instant},
};

use futures::{Stream, future::join_all, stream};
use podops_adapter::{
    ABSENT, SERVE, SERVING, VERSION,
    client::Client,
    conformance::{Check, Setup, Verdict, run},
    v1::{
        ApplyRequest, ApplyResponse, Changed, ForgetRequest, ForgetResponse, HandshakeRequest,
        HandshakeResponse, Member, ObserveRequest, ObserveResponse, Observed, WatchRequest,
        adapter_server::{Adapter, AdapterServer},
    },
};
use tokio::{process::Command, task::JoinSet};
use tonic::{Request, Response, Status, transport::Server};

/// Violations of the protocol, each with the check that detects it.
const VIOLATIONS: [(&str, &str); 16] = [
    ("version v2", "the protocol version is supported"),
    ("unknown members serve", "unknown members are Absent"),
    ("never serves", "enabled members become Serving"),
    ("toggles", "repeated apply changes nothing"),
    ("observe disables", "observe changes nothing"),
    ("never drains", "disabled members are drained and stay disabled"),
    ("restarts drains", "repeated apply does not postpone a drain"),
    ("delays drains", "outdated applies have no delayed effect"),
    ("drains all", "draining a member does not affect others"),
    ("only adds", "members missing from apply are drained"),
    ("ignores generations", "smaller generations are ignored"),
    ("drains addresses", "members may share an address"),
    ("ignores repeats", "repeated apply restores the state after a restart"),
    ("requires addresses", "members may have no address or only IPv6"),
    ("observes 100", "1,000 members are observed in one call"),
    ("accepts any params", "invalid parameters are rejected"),
];
/// Violations that affect entire employers.
const EMPLOYER_VIOLATIONS: [(&str, &str); 2] = [
    ("never forgets", "members of a deleted employer are drained"),
    ("one pool", "employers are isolated from each other"),
];

/// Adapter without a load balancer that violates the protocol in one way.
struct FakeAdapter {
    violation: &'static str,
    /// Generation and serving members by pool.
    serving: Mutex<BTreeMap<String, (u64, BTreeSet<String>)>>,
    /// Members that serve from a later time on.
    later: Mutex<Option<(Instant, BTreeSet<String>)>>,
    /// File whose existence stands for a restart.
    restarted: PathBuf,
}

impl FakeAdapter {
    fn violates(&self, violation: &str) -> bool {
        self.violation == violation
    }

    /// Loses the state if a restart was requested.
    fn restart_if_requested(&self) {
        if std::fs::remove_file(&self.restarted).is_ok() {
            self.serving.lock().unwrap().values_mut().for_each(|(_, serving)| serving.clear());
        }
    }

    /// Returns the pool of an employer.
    fn pool(&self, employer: Option<podops_adapter::v1::Employer>) -> Result<String, Status> {
        let employer = employer.unwrap_or_default();
        if serde_json::from_str::<serde_json::Value>(&employer.params).is_err()
            && !self.violates("accepts any params")
        {
            return Err(Status::invalid_argument("params"));
        }
        Ok(if self.violates("one pool") { String::new() } else { employer.uid })
    }
}

#[tonic::async_trait]
impl Adapter for FakeAdapter {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Changed, Status>> + Send>>;

    async fn handshake(
        &self,
        _: Request<HandshakeRequest>,
    ) -> Result<Response<HandshakeResponse>, Status> {
        let version = if self.violates("version v2") { "v2" } else { VERSION };
        Ok(Response::new(HandshakeResponse { version: version.into(), name: "fake".into() }))
    }

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<ObserveResponse>, Status> {
        self.restart_if_requested();
        let request = request.into_inner();
        let pool = self.pool(request.employer)?;
        let mut all = self.serving.lock().unwrap();
        let serving = &mut all.entry(pool).or_default().1;
        if let Some((_, later)) = self.later.lock().unwrap().take_if(|(at, _)| *at < Instant::now())
        {
            *serving = later;
        }
        let requested: BTreeSet<String> = request.members.iter().map(|m| m.uid.clone()).collect();
        if self.violates("observe disables") {
            serving.retain(|uid| requested.contains(uid));
        }
        let limit = if self.violates("observes 100") { 100 } else { usize::MAX };
        let serves = |uid: &String| {
            serving.contains(uid) && !self.violates("never serves")
                || self.violates("unknown members serve")
        };
        let state = |uid: &String| if serves(uid) { SERVING } else { ABSENT }.to_owned();
        let observed =
            |uid: &String| Observed { uid: uid.clone(), state: state(uid), in_flight: None };
        let members = requested.iter().take(limit).map(observed).collect();
        Ok(Response::new(ObserveResponse { members }))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        self.restart_if_requested();
        let request = request.into_inner();
        let pool = self.pool(request.employer)?;
        let mut all = self.serving.lock().unwrap();
        let (generation, serving) = all.entry(pool).or_default();
        if request.generation < *generation && !self.violates("ignores generations") {
            return Ok(Response::new(ApplyResponse::default()));
        }
        let repeated = request.generation == *generation;
        if repeated && self.violates("ignores repeats") {
            return Ok(Response::new(ApplyResponse::default()));
        }
        *generation = request.generation;
        let members = |serve: bool| {
            let members = request.members.iter().filter(move |m| (m.want == SERVE) == serve);
            members.filter_map(|m| m.member.clone()).collect::<Vec<_>>()
        };
        let (serve, off) = (members(true), members(false));
        if serve.iter().any(|m| m.addresses.is_empty()) && self.violates("requires addresses") {
            return Err(Status::internal("index out of bounds"));
        }
        let drained: Vec<&String> = off.iter().flat_map(|m| &m.addresses).collect();
        let shares = |m: &Member| m.addresses.iter().any(|address| drained.contains(&address));
        let serve = serve.iter().filter(|m| !self.violates("drains addresses") || !shares(m));
        let with_address = serve.filter(|m| !m.addresses.is_empty());
        let wanted: BTreeSet<String> = with_address.map(|m| m.uid.clone()).collect();
        if self.violates("delays drains") && !off.is_empty() {
            let later = Instant::now() + Duration::from_millis(300);
            *self.later.lock().unwrap() = Some((later, BTreeSet::new()));
        }
        if self.violates("restarts drains") && !off.is_empty() {
            let later = Instant::now() + Duration::from_millis(600);
            *self.later.lock().unwrap() = Some((later, wanted));
        } else if self.violates("only adds") {
            serving.extend(wanted);
            serving.retain(|uid| !off.iter().any(|m| m.uid == *uid));
        } else if self.violates("never drains") {
            serving.retain(|uid| wanted.contains(uid) || off.iter().any(|m| m.uid == *uid));
            serving.extend(wanted);
        } else if self.violates("drains all") && !off.is_empty()
            || self.violates("toggles") && repeated
        {
            serving.clear();
        } else {
            *serving = wanted;
        }
        Ok(Response::new(ApplyResponse::default()))
    }

    async fn forget(
        &self,
        request: Request<ForgetRequest>,
    ) -> Result<Response<ForgetResponse>, Status> {
        let pool = self.pool(request.into_inner().employer)?;
        if !self.violates("never forgets") {
            self.serving.lock().unwrap().entry(pool).or_default().1.clear();
        }
        Ok(Response::new(ForgetResponse {}))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(stream::pending())))
    }
}

fn setup(restart: String) -> Setup {
    Setup {
        params: "{}".to_owned(),
        other_params: Some("{}".to_owned()),
        addresses: ["127.9.0.1", "127.9.0.2", "127.9.0.3"].map(ToOwned::to_owned),
        within: Duration::from_secs(1),
        restart: Some(restart),
    }
}

/// Runs the checks on an adapter with this violation.
async fn checks(violation: &'static str) -> Vec<Check> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("adapter.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let connections = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let (restarted, serving, later) =
        (dir.path().join("restarted"), Mutex::default(), Mutex::default());
    let restart = format!("touch {}", restarted.display());
    let adapter = AdapterServer::new(FakeAdapter { violation, serving, later, restarted });
    let mut server = JoinSet::new();
    server.spawn(Server::builder().add_service(adapter).serve_with_incoming(connections));
    let address = format!("unix://{}", socket.display());
    let client = Client::at(&address, Duration::from_secs(5)).unwrap();
    run(&client, &setup(restart)).await
}

#[tokio::test]
async fn each_violation_of_the_protocol_is_detected() {
    let each = VIOLATIONS.into_iter().chain(EMPLOYER_VIOLATIONS);
    for check in checks("none").await {
        assert_eq!(check.verdict, Verdict::Passed, "{}", check.name);
        assert!(each.clone().any(|(_, name)| name == check.name), "no violation of {}", check.name);
    }
    join_all(each.map(|(violation, name)| async move {
        let checks = checks(violation).await;
        let failed = |check: &Check| matches!(check.verdict, Verdict::Failed(_));
        let detected = checks.iter().any(|check| check.name == name && failed(check));
        assert!(detected, "{violation}: {checks:?}");
    }))
    .await;
}

#[tokio::test]
async fn unreachable_and_invalid_addresses_are_errors() {
    let client = Client::at("grpc://127.0.0.1:1", Duration::from_secs(1)).unwrap();
    assert!(client.handshake("test").await.is_err());
    assert!(Client::at("ftp://127.0.0.1", Duration::from_secs(1)).is_err());
}

/// Returns a free local address.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn without_output(command: &mut Command) -> &mut Command {
    command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Returns the checks that the example adapter with these arguments, in front of its own HAProxy,
/// does not pass.
async fn failures_of_the_example_adapter(arguments: &'static [&str]) -> Vec<Check> {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, adapter) = (free_address(), free_address());
    let backend =
        |name: &str| format!("backend {name}\n  server-template s 1-10 127.0.0.1:8080 disabled\n");
    let config = format!(
        "global\n  stats socket ipv4@{runtime} level admin\n\
         defaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\n\
         {}{}frontend web\n  bind {}\n  default_backend web\n",
        backend("web"),
        backend("other"),
        free_address()
    );
    let path = dir.path().join("haproxy.cfg");
    std::fs::write(&path, config).unwrap();
    let _haproxy =
        without_output(Command::new("haproxy").args(["-db", "-f"]).arg(&path)).spawn().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/adapter.py");
    let pid = dir.path().join("pid");
    // The restart command kills the adapter; this task starts it again until the test ends.
    let mut supervisor = JoinSet::new();
    let (listen, pid_file) = (adapter.clone(), pid.clone());
    supervisor.spawn(async move {
        loop {
            let mut python = Command::new("python3");
            let python =
                without_output(python.arg(&script).args(["--listen", &listen]).args(arguments));
            let mut python = python.spawn().unwrap();
            std::fs::write(&pid_file, python.id().unwrap().to_string()).unwrap();
            python.wait().await.unwrap();
        }
    });
    let client = Client::at(&format!("http://{adapter}"), Duration::from_secs(5)).unwrap();
    let mut attempts = 0;
    let listens = async || tokio::net::TcpStream::connect(&runtime).await.is_ok();
    while client.handshake("test").await.is_err() || !listens().await {
        attempts += 1;
        assert!(attempts < 100, "the adapter does not start");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let params =
        |backend: &str| format!(r#"{{"runtime":"{runtime}","backend":"{backend}","port":8080}}"#);
    let setup = Setup {
        params: params("web"),
        other_params: Some(params("other")),
        within: Duration::from_secs(10),
        ..setup(format!("kill -9 $(cat {})", pid.display()))
    };
    let checks = run(&client, &setup).await;
    checks.into_iter().filter(|check| check.verdict != Verdict::Passed).collect()
}

#[tokio::test]
async fn the_example_adapter_conforms() {
    assert_eq!(failures_of_the_example_adapter(&[]).await, []);
}

#[tokio::test]
async fn the_example_adapter_conforms_with_slow_drains() {
    assert_eq!(failures_of_the_example_adapter(&["--delay", "1"]).await, []);
}
