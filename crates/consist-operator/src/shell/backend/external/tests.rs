//! An adapter over gRPC, and the flags that configure adapters.

use futures::{StreamExt as _, stream};
use podops_adapter::{DRAINING, INVALID};
use podops_api::ids::PodName;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::*;
use crate::traffic::{DesiredTraffic, InFlight, Traffic};

fn external(adapters: &[&str]) -> Result<External, ConfigError> {
    let adapters: Vec<String> = adapters.iter().map(|adapter| (*adapter).to_owned()).collect();
    External::new(&adapters, &ChangeNotifier(mpsc::unbounded_channel().0))
}

#[tokio::test]
async fn only_adapters_allowed_for_the_namespace_are_called() {
    let external = external(&["shop/f5=http://127.0.0.1:1", "*/all=grpc://127.0.0.1:1"]).unwrap();
    let error_class = async |namespace: &str, params: Value| {
        let namespace = namespace.to_owned();
        let employer = Employer { namespace, params, ..Employer::default() };
        external.sync(&employer, &[]).await.error.map(|error| error.class())
    };
    assert_eq!(error_class("shop", json!({ "adapter": "f5" })).await, Some("unreachable"));
    assert_eq!(error_class("other", json!({ "adapter": "all" })).await, Some("unreachable"));
    assert_eq!(error_class("other", json!({ "adapter": "f5" })).await, Some("invalid_params"));
    assert_eq!(error_class("shop", json!({})).await, Some("invalid_params"));
}

#[tokio::test]
async fn malformed_adapter_flags_are_rejected_at_startup() {
    assert!(external(&["f5=http://127.0.0.1:1"]).is_err());
    assert!(external(&["shop/f5"]).is_err());
    assert!(external(&["shop/f5=ftp://127.0.0.1"]).is_err());
}

/// An adapter that reports one Pod as draining, and one change.
struct Draining;

#[tonic::async_trait]
impl v1::adapter_server::Adapter for Draining {
    type WatchStream = futures::stream::BoxStream<'static, Result<v1::Changed, Status>>;

    async fn handshake(
        &self,
        _: Request<v1::HandshakeRequest>,
    ) -> Result<Response<v1::HandshakeResponse>, Status> {
        let version = podops_adapter::VERSION.to_owned();
        Ok(Response::new(v1::HandshakeResponse { version, name: "test".to_owned() }))
    }

    async fn observe(
        &self,
        _: Request<v1::ObserveRequest>,
    ) -> Result<Response<v1::ObserveResponse>, Status> {
        let uid = "1".to_owned();
        let state = DRAINING.to_owned();
        let observed = v1::Observed { uid, state, in_flight: Some(2) };
        Ok(Response::new(v1::ObserveResponse { members: vec![observed] }))
    }

    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        let member = request.into_inner().members.remove(0).member.unwrap_or_default();
        let outcome = INVALID.to_owned();
        let message = "full".to_owned();
        let outcome = v1::Outcome { uid: member.uid, outcome, message };
        Ok(Response::new(v1::ApplyResponse { outcomes: vec![outcome] }))
    }

    async fn forget(
        &self,
        _: Request<v1::ForgetRequest>,
    ) -> Result<Response<v1::ForgetResponse>, Status> {
        Ok(Response::new(v1::ForgetResponse {}))
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let kind = "Service".into();
        let namespace = "shop".into();
        let name = "web".into();
        let employer = v1::Employer { kind, namespace, name, ..v1::Employer::default() };
        let change = stream::iter([Ok(v1::Changed { employer: Some(employer) })]);
        Ok(Response::new(change.chain(stream::pending()).boxed()))
    }
}

#[tokio::test]
async fn an_adapter_over_grpc_is_called_and_reports_changes() {
    let socket = std::env::temp_dir().join(format!("podops-{}.sock", std::process::id()));
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let connections = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let mut server = JoinSet::new();
    let adapter = v1::adapter_server::AdapterServer::new(Draining);
    server.spawn(
        tonic::transport::Server::builder().add_service(adapter).serve_with_incoming(connections),
    );
    let (sender, mut changes) = mpsc::unbounded_channel();
    let adapter = format!("shop/test=unix://{}", socket.display());
    let external = External::new(&[adapter], &ChangeNotifier(sender)).unwrap();
    assert_eq!(changes.recv().await.as_deref(), Some("Service/shop/web"));
    let namespace = "shop".to_owned();
    let params = json!({ "adapter": "test" });
    let employer = Employer { namespace, params, ..Employer::default() };
    let addresses = vec!["10.0.0.1".parse().unwrap()];
    let name = PodName::default();
    let uid = Uid::from("1");
    let member = DesiredMember { name, uid: uid.clone(), addresses, traffic: DesiredTraffic::Off };
    let sync = external.sync(&employer, std::slice::from_ref(&member)).await;
    assert_eq!(sync.observed.get(&uid), Some(&Traffic::Draining(InFlight::Count(2))));
    assert_eq!(
        (sync.error, sync.unfulfilled),
        (None, Some(BackendError::InvalidParams("full".to_owned())))
    );
    // A state that is already as desired is not applied again.
    assert_eq!(external.sync(&employer, &[member]).await.unfulfilled, None);
    std::fs::remove_file(socket).unwrap();
}
