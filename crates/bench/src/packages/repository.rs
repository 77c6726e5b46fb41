//! A repository of packages, over HTTP.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use http::StatusCode;
use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, task::JoinSet};

use super::package::PackageFolder;

/// Archives by path, and the entries of the index by operator.
#[derive(Default)]
struct Content {
    archives: BTreeMap<String, Vec<u8>>,
    entries: BTreeMap<String, Vec<Value>>,
}

/// The repository; it ends when it is dropped.
pub(super) struct Repository {
    pub(super) url: String,
    content: Arc<Mutex<Content>>,
    _server: JoinSet<()>,
}

impl Repository {
    /// Starts an empty repository.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let content = Arc::new(Mutex::new(Content::default()));
        let mut server = JoinSet::new();
        server.spawn(serve(listener, content.clone()));
        Ok(Self { url, content, _server: server })
    }

    /// Adds an archive.
    pub(super) fn add(&self, package: &PackageFolder, archive: Vec<u8>) {
        let path = format!("/{}-{}.tgz", package.title(), package.operator_version);
        let entry = json!({
            "name": package.operator, "operatorVersion": package.operator_version,
            "appVersion": package.app_version, "urls": [format!("{}{path}", self.url)],
            "digest": hex::encode(Sha256::digest(&archive)),
        });
        let mut content = self.content.lock();
        content.archives.insert(path, archive);
        content.entries.entry(package.operator.clone()).or_default().push(entry);
    }
}

async fn serve(listener: TcpListener, content: Arc<Mutex<Content>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let content = content.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let response = response(request.uri().path(), &content.lock());
                async move { Ok::<_, Infallible>(response) }
            });
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                tracing::debug!(%error, "Connection failed");
            }
        });
    }
}

fn response(path: &str, content: &Content) -> Response<Full<Bytes>> {
    let found = match path {
        // JSON is YAML.
        "/index.yaml" => {
            Some(json!({ "apiVersion": "v1", "entries": content.entries }).to_string().into_bytes())
        }
        path => content.archives.get(path).cloned(),
    };
    let is_found = found.is_some();
    let mut response = Response::new(Full::new(Bytes::from(found.unwrap_or_default())));
    if !is_found {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}
