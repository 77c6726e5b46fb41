//! The conformance checks themselves: an adapter that keeps the protocol passes all of them, and each way
//! to break it is found. And the reference adapter in Python, in front of a real HAProxy.

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

/// A way to break the protocol, and the check that finds it.
const BROKEN: [(&str, &str); 16] = [
    ("speaks v2", "it speaks this version"),
    ("strangers serve", "whom it never heard of is absent"),
    ("never serves", "whoever is to serve is seen to serve"),
    ("takes turns", "saying it again changes nothing"),
    ("observing is asking", "to observe changes nothing"),
    ("never drains", "who is off is drained, and does not serve again"),
    ("starts over", "saying it again does not put it off"),
    ("remembers too long", "what was said before has no late effect"),
    ("drains all", "one that is off does not touch the others"),
    ("only adds", "who is named no more gets no traffic"),
    ("follows the late", "what comes late is ignored"),
    ("has one member an address", "two members may have one address"),
    ("resumes", "a restart is made good by saying it again"),
    ("needs addresses", "members may have no address, or only one of IPv6"),
    ("answers for few", "a thousand members are one question"),
    ("takes anything", "parameters that make no sense are refused"),
];
/// Those of which a whole employer is the subject.
const BROKEN_EMPLOYERS: [(&str, &str); 2] = [
    ("remembers the gone", "an employer that is gone sends no traffic"),
    ("has one pool", "employers do not touch each other's members"),
];

/// Sends traffic in its imagination, and breaks the protocol in one way.
struct Imagined {
    broken: &'static str,
    serving: Mutex<BTreeMap<String, (u64, BTreeSet<String>)>>,
    /// Who serves from some time on.
    later: Mutex<Option<(Instant, BTreeSet<String>)>>,
    /// A file that is there when it was restarted.
    restarted: PathBuf,
}

impl Imagined {
    fn is(&self, broken: &str) -> bool {
        self.broken == broken
    }

    fn restarts(&self) {
        if std::fs::remove_file(&self.restarted).is_ok() {
            self.serving.lock().unwrap().values_mut().for_each(|(_, serving)| serving.clear());
        }
    }

    fn pool(&self, employer: Option<podops_adapter::v1::Employer>) -> Result<String, Status> {
        let employer = employer.unwrap_or_default();
        if serde_json::from_str::<serde_json::Value>(&employer.params).is_err()
            && !self.is("takes anything")
        {
            return Err(Status::invalid_argument("params"));
        }
        Ok(if self.is("has one pool") { String::new() } else { employer.uid })
    }
}

#[tonic::async_trait]
impl Adapter for Imagined {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Changed, Status>> + Send>>;

    async fn handshake(
        &self,
        _: Request<HandshakeRequest>,
    ) -> Result<Response<HandshakeResponse>, Status> {
        let version = if self.is("speaks v2") { "v2" } else { VERSION };
        Ok(Response::new(HandshakeResponse { version: version.into(), name: "imagined".into() }))
    }

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<ObserveResponse>, Status> {
        self.restarts();
        let request = request.into_inner();
        let pool = self.pool(request.employer)?;
        let mut all = self.serving.lock().unwrap();
        let serving = &mut all.entry(pool).or_default().1;
        if let Some((_, later)) = self.later.lock().unwrap().take_if(|(at, _)| *at < Instant::now())
        {
            *serving = later;
        }
        let asked: BTreeSet<String> = request.members.iter().map(|m| m.uid.clone()).collect();
        if self.is("observing is asking") {
            serving.retain(|uid| asked.contains(uid));
        }
        let few = if self.is("answers for few") { 100 } else { usize::MAX };
        let serves = |uid: &String| {
            serving.contains(uid) && !self.is("never serves") || self.is("strangers serve")
        };
        let state = |uid: &String| if serves(uid) { SERVING } else { ABSENT }.to_owned();
        let seen = |uid: &String| Observed { uid: uid.clone(), state: state(uid), in_flight: None };
        Ok(Response::new(ObserveResponse { members: asked.iter().take(few).map(seen).collect() }))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        self.restarts();
        let request = request.into_inner();
        let pool = self.pool(request.employer)?;
        let mut all = self.serving.lock().unwrap();
        let (generation, serving) = all.entry(pool).or_default();
        if request.generation < *generation && !self.is("follows the late") {
            return Ok(Response::new(ApplyResponse::default()));
        }
        let again = request.generation == *generation;
        if again && self.is("resumes") {
            return Ok(Response::new(ApplyResponse::default()));
        }
        *generation = request.generation;
        let of = |want: bool| {
            let members = request.members.iter().filter(move |m| (m.want == SERVE) == want);
            members.filter_map(|m| m.member.clone()).collect::<Vec<_>>()
        };
        let (serve, off) = (of(true), of(false));
        if serve.iter().any(|m| m.addresses.is_empty()) && self.is("needs addresses") {
            return Err(Status::internal("index out of bounds"));
        }
        let gone: Vec<&String> = off.iter().flat_map(|m| &m.addresses).collect();
        let shares = |m: &Member| m.addresses.iter().any(|address| gone.contains(&address));
        let serve = serve.iter().filter(|m| !self.is("has one member an address") || !shares(m));
        let homed = serve.filter(|m| !m.addresses.is_empty());
        let wanted: BTreeSet<String> = homed.map(|m| m.uid.clone()).collect();
        if self.is("remembers too long") && !off.is_empty() {
            let later = Instant::now() + Duration::from_millis(300);
            *self.later.lock().unwrap() = Some((later, BTreeSet::new()));
        }
        if self.is("starts over") && !off.is_empty() {
            let later = Instant::now() + Duration::from_millis(600);
            *self.later.lock().unwrap() = Some((later, wanted));
        } else if self.is("only adds") {
            serving.extend(wanted);
            serving.retain(|uid| !off.iter().any(|m| m.uid == *uid));
        } else if self.is("never drains") {
            serving.retain(|uid| wanted.contains(uid) || off.iter().any(|m| m.uid == *uid));
            serving.extend(wanted);
        } else if self.is("drains all") && !off.is_empty() || self.is("takes turns") && again {
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
        if !self.is("remembers the gone") {
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

/// What comes of an adapter which is broken in this way.
async fn checks(broken: &'static str) -> Vec<Check> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("adapter.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let connections = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let (restarted, serving, later) =
        (dir.path().join("restarted"), Mutex::default(), Mutex::default());
    let restart = format!("touch {}", restarted.display());
    let adapter = AdapterServer::new(Imagined { broken, serving, later, restarted });
    let mut server = JoinSet::new();
    server.spawn(Server::builder().add_service(adapter).serve_with_incoming(connections));
    let address = format!("unix://{}", socket.display());
    let client = Client::at(&address, Duration::from_secs(5)).unwrap();
    run(&client, &setup(restart)).await
}

#[tokio::test]
async fn each_way_to_break_the_protocol_is_found() {
    let each = BROKEN.into_iter().chain(BROKEN_EMPLOYERS);
    for check in checks("in no way").await {
        assert_eq!(check.verdict, Verdict::Kept, "{}", check.what);
        assert!(each.clone().any(|(_, what)| what == check.what), "nobody breaks {}", check.what);
    }
    join_all(each.map(|(broken, what)| async move {
        let checks = checks(broken).await;
        let is_broken = |check: &Check| matches!(check.verdict, Verdict::Broken(_));
        let found = checks.iter().any(|check| check.what == what && is_broken(check));
        assert!(found, "{broken}: {checks:?}");
    }))
    .await;
}

#[tokio::test]
async fn who_does_not_answer_is_told_of() {
    let client = Client::at("grpc://127.0.0.1:1", Duration::from_secs(1)).unwrap();
    assert!(client.handshake("test").await.is_err());
    assert!(Client::at("ftp://127.0.0.1", Duration::from_secs(1)).is_err());
}

fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn quiet(command: &mut Command) -> &mut Command {
    command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// What is not kept by the reference adapter, told this, in front of a HAProxy of its own.
async fn not_kept_by_the_reference(arguments: &'static [&str]) -> Vec<Check> {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, adapter) = (free(), free());
    let backend =
        |name: &str| format!("backend {name}\n  server-template s 1-10 127.0.0.1:8080 disabled\n");
    let config = format!(
        "global\n  stats socket ipv4@{runtime} level admin\n\
         defaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\n\
         {}{}frontend web\n  bind {}\n  default_backend web\n",
        backend("web"),
        backend("other"),
        free()
    );
    let path = dir.path().join("haproxy.cfg");
    std::fs::write(&path, config).unwrap();
    let _haproxy = quiet(Command::new("haproxy").args(["-db", "-f"]).arg(&path)).spawn().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/adapter.py");
    let pid = dir.path().join("pid");
    // A restart is a kill; this brings it back for as long as the test lives.
    let mut forever = JoinSet::new();
    let (listen, noted) = (adapter.clone(), pid.clone());
    forever.spawn(async move {
        loop {
            let mut python = Command::new("python3");
            let python = quiet(python.arg(&script).args(["--listen", &listen]).args(arguments));
            let mut python = python.spawn().unwrap();
            std::fs::write(&noted, python.id().unwrap().to_string()).unwrap();
            python.wait().await.unwrap();
        }
    });
    let client = Client::at(&format!("http://{adapter}"), Duration::from_secs(5)).unwrap();
    let mut tries = 0;
    let listens = async || tokio::net::TcpStream::connect(&runtime).await.is_ok();
    while client.handshake("test").await.is_err() || !listens().await {
        tries += 1;
        assert!(tries < 100, "the adapter does not start");
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
    checks.into_iter().filter(|check| check.verdict != Verdict::Kept).collect()
}

#[tokio::test]
async fn the_reference_adapter_keeps_the_protocol_in_front_of_a_real_haproxy() {
    assert_eq!(not_kept_by_the_reference(&[]).await, []);
}

#[tokio::test]
async fn so_it_does_where_taking_off_takes_long() {
    assert_eq!(not_kept_by_the_reference(&["--delay", "1"]).await, []);
}
