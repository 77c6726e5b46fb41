//! The server of the fake nodes' kubelets: runs commands in containers, for `kubectl exec` and its
//! like.
//!
//! `cat` is the only command, and each file's content is made up. The file's name selects the
//! content and faults: `env` has a variable, `binary` every byte, `empty` none, `missing` does not
//! exist, `large` has more than 1 MiB, the first connection that reads `broken` ends before the
//! command does, and a command that reads `hangs` never ends.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Context as _;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::Empty;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::generate_simple_self_signed;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

/// Subprotocol of the WebSocket, and its channels.
const PROTOCOL: &str = "v5.channel.k8s.io";
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// Largest message of one channel, as a kubelet sends it.
const CHUNK: usize = 32 << 10;

/// Kubelets of all nodes.
pub(super) struct Kubelets {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    files: Arc<Files>,
}

/// Files of all containers.
#[derive(Default)]
struct Files {
    reads: AtomicUsize,
    /// Files whose first connection has ended too early.
    broken: Mutex<BTreeSet<String>>,
}

/// Output of a command; without a status, its connection ends before it does.
struct Output {
    stdout: Vec<u8>,
    stderr: String,
    status: Option<Value>,
    /// True if the command never ends, and so has no status.
    hangs: bool,
}

impl Kubelets {
    /// Binds a port for the kubelets, with a certificate of its own: the API server does not verify
    /// it.
    pub(super) async fn bind() -> anyhow::Result<Self> {
        let certified = generate_simple_self_signed(["kubelet".to_owned()])?;
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der());
        let key = key.map_err(|error| anyhow::anyhow!("the key of the kubelets: {error}"))?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { listener, acceptor, files: Arc::default() })
    }

    /// Addresses and features of a node, as its status has them.
    pub(super) fn node_status(&self) -> anyhow::Result<Value> {
        Ok(json!({
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": self.listener.local_addr()?.port() } },
            // Without it, the API server translates to SPDY.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        }))
    }

    /// Serves until the task is aborted.
    pub(super) async fn serve(self) -> anyhow::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let connection = serve(accepted?.0, self.acceptor.clone(), self.files.clone());
                    connections.spawn(connection);
                }
                Some(served) = connections.join_next() => {
                    if let Ok(Err(error)) = served {
                        tracing::debug!(%error, "Connection to a kubelet failed");
                    }
                }
            }
        }
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, files: Arc<Files>) -> anyhow::Result<()> {
    let stream = acceptor.accept(stream).await.context("TLS handshake")?;
    let (sender, mut upgraded) = tokio::sync::mpsc::channel(1);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let output = output(&request, &files);
        let sender = sender.clone();
        let accepted = accept(request.headers());
        let upgrade = hyper::upgrade::on(&mut request);
        async move {
            if accepted.status() == StatusCode::SWITCHING_PROTOCOLS {
                // The receiver lives as long as the connection.
                let _ = sender.send((upgrade, output)).await;
            }
            Ok::<_, Infallible>(accepted)
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connection.with_upgrades().await?;
    match upgraded.recv().await {
        Some((upgrade, output)) => send(upgrade, output).await,
        None => Ok(()),
    }
}

/// Response to a request for a WebSocket.
fn accept(headers: &HeaderMap) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY) else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accepted = derive_accept_key(key.as_bytes());
    let fields = [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL)),
    ];
    response.headers_mut().extend(fields);
    if let Ok(accepted) = HeaderValue::from_str(&accepted) {
        response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    }
    response
}

/// Runs the command of a request.
fn output(request: &Request<Incoming>, files: &Files) -> Output {
    let query = request.uri().query().unwrap_or_default();
    let command: Vec<String> = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(key, _)| key == "command")
        .map(|(_, value)| value.into_owned())
        .collect();
    match command.as_slice() {
        [cat, path] if cat == "cat" => files.read(request.uri().path(), path),
        _ => failed(127, format!("{}: not found", command.join(" "))),
    }
}

fn failed(exit_code: u8, stderr: String) -> Output {
    let status = json!({
        "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {exit_code}"),
        "details": { "causes": [{ "reason": "ExitCode", "message": exit_code.to_string() }] },
    });
    Output { stdout: Vec::new(), stderr, status: Some(status), hangs: false }
}

impl Files {
    /// Reads a file of a container. Its content is another one with each read.
    fn read(&self, container: &str, path: &str) -> Output {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let name = path.rsplit('/').next().unwrap_or_default();
        let stdout = match name {
            "missing" => return failed(1, format!("cat: can't open '{path}': No such file")),
            "empty" => Vec::new(),
            "large" => vec![b'x'; (1 << 20) + 1],
            "binary" => (0..=255).collect(),
            "env" => format!("# made up\nREAD={read}\n").into_bytes(),
            _ => format!("{path}, read {read}\n").into_bytes(),
        };
        let is_broken = name == "broken" && self.broken.lock().insert(container.to_owned());
        let status = (!is_broken).then(|| json!({ "status": "Success" }));
        Output { stdout, stderr: String::new(), status, hangs: name == "hangs" }
    }
}

/// Sends the output of a command.
async fn send(upgrade: OnUpgrade, output: Output) -> anyhow::Result<()> {
    let upgraded = TokioIo::new(upgrade.await?);
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
    let Output { stdout, stderr, status, hangs } = output;
    if hangs {
        while socket.next().await.is_some() {}
        return Ok(());
    }
    let status = status.map(|status| status.to_string().into_bytes());
    let messages = stdout.chunks(CHUNK).map(|chunk| (STDOUT, chunk.to_vec()));
    let messages = messages.chain([(STDERR, stderr.into_bytes())]);
    for (channel, content) in messages.chain(status.map(|status| (STATUS, status))) {
        let message: Vec<u8> = [vec![channel], content].concat();
        socket.send(Message::binary(message)).await?;
    }
    Ok(socket.close(None).await?)
}
