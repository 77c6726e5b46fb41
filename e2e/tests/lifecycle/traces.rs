//! Traces of operations: each operation has one trace, to which all operators add their spans, sent
//! to a receiver of OTLP.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{OPERATORS, TIMEOUT, TestCluster, app, eventually, programs},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

const PODS: i32 = 4;
/// A trace of which an operation becomes a part.
const PIPELINE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const STEP: &str = "00f067aa0ba902b7";

/// Span, as it was received.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    trace: String,
    id: String,
    parent: String,
    name: String,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
}

/// Collector of OpenTelemetry, as far as OTLP over HTTP with JSON.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    async fn serve(&self, tasks: &mut JoinSet<()>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let collector = self.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let collector = collector.clone();
                let service = service_fn(move |request| collector.clone().receive(request));
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        address
    }

    async fn receive(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        assert_eq!(request.uri().path(), "/v1/traces");
        assert_eq!(request.headers()["content-type"], "application/json");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        for resource in items(&body["resourceSpans"]) {
            let service = attributes(&resource["resource"])["service.name"].clone();
            for span in items(&resource["scopeSpans"][0]["spans"]) {
                self.spans.lock().push(read(service.clone(), span));
            }
        }
        Ok(Response::new(Full::new(Bytes::from("{}"))))
    }

    /// Spans of the operations that took a Pod out of service, by Pod.
    fn of_pods(&self) -> BTreeMap<String, Vec<Span>> {
        let mut by_pod: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        for span in self.spans.lock().iter() {
            by_pod.entry(span.attributes["k8s.pod.name"].clone()).or_default().push(span.clone());
        }
        by_pod
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().unwrap().iter()
}

fn attributes(object: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items(&object["attributes"])
        .map(|attribute| (text(&attribute["key"]), text(&attribute["value"]["stringValue"])))
        .collect()
}

fn read(service: String, span: &Value) -> Span {
    let text = |field: &str| span[field].as_str().unwrap().to_owned();
    Span {
        service,
        trace: text("traceId"),
        id: text("spanId"),
        parent: text("parentSpanId"),
        name: text("name"),
        start: text("startTimeUnixNano").parse().unwrap(),
        end: text("endTimeUnixNano").parse().unwrap(),
        attributes: attributes(span),
    }
}

/// Asserts that the spans of a Pod are one operation; returns its root.
fn assert_one_trace(pod: &str, spans: &[Span]) -> Span {
    let roots: Vec<&Span> = spans.iter().filter(|span| span.name == "update").collect();
    let [root] = roots[..] else { panic!("{pod}: {} roots in {spans:#?}", roots.len()) };
    assert_eq!(root.attributes["podops.operation.result"], "completed");
    let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::from([&root.id]));
    for span in spans.iter().filter(|span| span.id != root.id) {
        assert_eq!((&span.trace, &span.parent), (&root.trace, &root.id), "{span:#?}");
        assert_eq!(span.attributes["podops.operation.id"], "collaset");
        // A write is observed by others before its response arrives.
        assert!(span.start <= span.end && span.start <= root.end, "{span:#?} {root:#?}");
        assert!(ids.insert(&span.id), "{pod}: two spans have the ID {}", span.id);
        names.insert((span.service.as_str(), span.name.as_str()));
    }
    // With the component fast-operate, the API server writes the end of Preparing.
    let expected = [
        ("consist-operator", "drain"),
        ("consist-operator", "enable"),
        ("lifecycle-operator", "completing"),
        ("lifecycle-operator", "operate"),
        ("lifecycle-operator", "post_check"),
        ("lifecycle-operator", "pre_check"),
        ("lifecycle-operator", "preparing"),
        ("transition-rule-operator", "rules"),
    ];
    assert_eq!(names, BTreeSet::from(expected), "{pod}");
    root.clone()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, an_operation_is_one_trace_across_operators)
}

async fn an_operation_is_one_trace_across_operators() {
    let (collector, mut tasks) = (Collector::default(), JoinSet::new());
    let address = collector.serve(&mut tasks).await;
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    for operator in OPERATORS {
        cluster.add_args(operator, &[format!("--otlp-endpoint=http://{address}")]);
    }
    cluster.start_operators().await.unwrap();
    let budget = json!([{ "name": "half", "availablePolicy": { "maxUnavailableValue": "50%" } }]);
    cluster.create_rule("web", app("web"), budget).await.unwrap();
    for service in ["web", "other"] {
        cluster.create_managed_service(service, json!({ "app": "web" }), &json!({})).await.unwrap();
    }
    cluster.create_and_wait("web", PODS, &json!({})).await.unwrap();
    // The requester of one of the operations has a trace of its own.
    let part = cluster.pods_of("web").await.unwrap()[0].name_any();
    let key = format!("{}/collaset", well_known::TRACE);
    let annotation = json!({ key: format!("00-{PIPELINE}-{STEP}-01") });
    cluster.patch_pod_metadata(&part, json!({ "annotations": annotation })).await.unwrap();

    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    let all_received = async || {
        let received = collector.of_pods();
        let has_root = |spans: &Vec<Span>| spans.iter().any(|span| span.name == "update");
        Ok(received.len() == pods.len() && received.values().all(has_root))
    };
    eventually(TIMEOUT, all_received).await.unwrap();
    // Operators send their spans independently of each other.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    let mut traces = BTreeSet::new();
    for (pod, spans) in collector.of_pods() {
        let root = assert_one_trace(&pod, &spans);
        let expected = if pod == part { (PIPELINE, STEP) } else { (root.trace.as_str(), "") };
        assert_eq!((root.trace.as_str(), root.parent.as_str()), expected, "{pod}");
        traces.insert(root.trace);
    }
    assert_eq!(traces.len(), pods.len());
    // The annotations end with the operations.
    let is_removed = async || {
        let pods = cluster.pods_of("web").await?;
        let mut annotations = pods.iter().flat_map(|pod| pod.annotations().keys());
        Ok(!annotations.any(|key| key.starts_with(well_known::TRACE)))
    };
    eventually(TIMEOUT, is_removed).await.unwrap();
    cluster.assert_no_forbidden_requests().unwrap();
}
