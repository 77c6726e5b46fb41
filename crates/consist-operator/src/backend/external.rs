//! Backend `external`: calls adapters, programs in any language that implement the adapter protocol
//! for a proxy or load balancer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use podops_adapter::{
    ABSENT, DRAINING, INVALID, OFF, SERVE, SERVING, UNHEALTHY,
    client::{Client, Error},
    v1,
};
use podops_api::consist::employer_key;
use podops_runtime::shell::clock;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Backend, BackendError, BoxFuture, ChangeNotifier, CircuitBreaker, DesiredMember, Employer,
    SyncFuture, SyncResult, TrafficByPod, is_allowed,
};
use crate::{plan::DesiredTraffic, view::Traffic};

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum delay before an adapter is watched again.
const WATCH_RETRY: Duration = Duration::from_secs(5);
/// Time after which content without effect is sent again as a new generation.
const RENEW_GENERATION_AFTER: Duration = Duration::from_secs(60);
/// Name and version of the operator, sent in the handshake.
const OPERATOR_NAME: &str = concat!("podops consist-operator ", env!("CARGO_PKG_VERSION"));

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// Name of the adapter.
    adapter: String,
    /// Parameters that are passed to the adapter unchanged.
    #[serde(default)]
    params: Value,
}

/// An adapter, with the namespaces that may use it.
struct Adapter {
    /// `<namespace>/<name>`, a pattern for [`is_allowed`].
    pattern: String,
    client: Client,
    /// True once the adapter has confirmed the protocol version.
    handshake_done: AtomicBool,
    circuit_breaker: CircuitBreaker,
}

/// Content of an apply request: the user's parameters and the desired members.
type Content = (String, Vec<v1::Wanted>);

/// Last apply request to an adapter for one employer.
#[derive(Debug, Default)]
struct Applied {
    generation: u64,
    /// Content of that generation, and when the generation was first sent.
    sent: Option<(Content, Instant)>,
    /// True if the adapter has acknowledged it. An unacknowledged request may have taken effect
    /// too.
    acknowledged: bool,
}

/// The backend `external`.
pub struct External {
    adapters: Vec<Arc<Adapter>>,
    /// Last apply requests, by UID of the employer.
    applied: Mutex<BTreeMap<String, Applied>>,
    _watches: JoinSet<()>,
}

impl External {
    /// Creates the backend for these adapters, each as `<namespace>/<adapter>=<address>`, and
    /// starts to watch them.
    ///
    /// # Errors
    ///
    /// If one does not have this form.
    pub fn new(adapters: &[String], notifier: &ChangeNotifier) -> anyhow::Result<Self> {
        let parse = |adapter: &String| {
            let (pattern, address) = adapter.split_once('=').context("address is missing")?;
            anyhow::ensure!(pattern.contains('/'), "namespace is missing");
            let client = Client::at(address, CALL_TIMEOUT).map_err(anyhow::Error::msg)?;
            let pattern = pattern.to_owned();
            let (handshake_done, circuit_breaker) =
                (AtomicBool::new(false), CircuitBreaker::default());
            Ok(Arc::new(Adapter { pattern, client, handshake_done, circuit_breaker }))
        };
        let adapters =
            adapters.iter().map(|adapter| parse(adapter).with_context(|| adapter.clone()));
        let adapters = adapters.collect::<anyhow::Result<Vec<Arc<Adapter>>>>()?;
        let mut watches = JoinSet::new();
        for adapter in &adapters {
            watches.spawn(watch(adapter.clone(), notifier.clone()));
        }
        Ok(Self { adapters, applied: Mutex::default(), _watches: watches })
    }

    fn adapter(&self, namespace: &str, name: &str) -> Result<&Adapter, BackendError> {
        let matches = |adapter: &&Arc<Adapter>| {
            is_allowed(std::slice::from_ref(&adapter.pattern), namespace, name)
        };
        self.adapters.iter().find(matches).map(|adapter| &**adapter).ok_or_else(|| {
            BackendError::InvalidParams(format!(
                "backend-params.adapter: no adapter {name} is configured for namespace {namespace}"
            ))
        })
    }

    /// Calls `with` with the last apply request for an employer.
    fn applied<T>(&self, employer: &Employer, with: impl FnOnce(&mut Applied) -> T) -> T {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        with(applied.entry(employer.uid.clone()).or_default())
    }

    /// Returns the generation for this content. Generations increase when the content changes, also
    /// across restarts, because they are derived from the clock. An adapter ignores a generation
    /// that is too small because of clock skew, so the generation also increases when the content
    /// has had no effect for [`RENEW_GENERATION_AFTER`].
    fn generation(&self, employer: &Employer, content: &Content) -> u64 {
        let now = u64::try_from(clock::now().as_millisecond()).unwrap_or_default();
        self.applied(employer, |applied| {
            let is_current = applied
                .sent
                .as_ref()
                .is_some_and(|(sent, at)| sent == content && at.elapsed() < RENEW_GENERATION_AFTER);
            if !is_current {
                applied.generation = now.max(applied.generation + 1);
                applied.sent = Some((content.clone(), Instant::now()));
                applied.acknowledged = false;
            }
            applied.generation
        })
    }

    async fn sync_members(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let adapter = self.adapter(&employer.namespace, &params.adapter)?;
        let wire_employer = to_wire_employer(employer, &params);
        let observed = async {
            adapter.handshake().await?;
            adapter.observe(&wire_employer, members).await
        };
        let observed = adapter.circuit_breaker.call(&adapter.pattern, observed).await?;
        let desired: Vec<v1::Wanted> = members.iter().map(to_wire_desired).collect();
        let content = (wire_employer.params.clone(), desired);
        let acknowledged = self.applied(employer, |applied| {
            applied.acknowledged && applied.sent.as_ref().is_some_and(|(sent, _)| *sent == content)
        });
        let is_desired =
            |member: &DesiredMember| is_desired(member, observed.get(&member.uid).copied());
        if acknowledged && members.iter().all(is_desired) {
            return Ok(SyncResult::complete(observed));
        }
        let generation = self.generation(employer, &content);
        let request = v1::ApplyRequest {
            employer: Some(wire_employer.clone()),
            generation,
            members: content.1,
        };
        let unfulfilled = match adapter.check(adapter.client.apply(request).await) {
            Ok(response) => {
                self.applied(employer, |applied| applied.acknowledged = true);
                let mut outcomes = response.outcomes.into_iter();
                let invalid = outcomes.find(|outcome| outcome.outcome == INVALID);
                invalid.map(|outcome| BackendError::InvalidParams(outcome.message))
            }
            Err(rejection @ BackendError::InvalidParams(_)) => Some(rejection),
            Err(error) => return Ok(SyncResult::unobserved(members, error)),
        };
        let observed = adapter.observe(&wire_employer, members).await;
        Ok(observed.map_or_else(
            |error| SyncResult::unobserved(members, error),
            |observed| SyncResult { unfulfilled, ..SyncResult::complete(observed) },
        ))
    }
}

impl Backend for External {
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.sync_members(employer, members).await.into() })
    }

    fn forget<'a>(&'a self, employer: &'a Employer) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.applied.lock().unwrap_or_else(PoisonError::into_inner).remove(&employer.uid);
            let Ok(params) = employer.params::<Params>() else { return };
            let Ok(adapter) = self.adapter(&employer.namespace, &params.adapter) else { return };
            let request = v1::ForgetRequest { employer: Some(to_wire_employer(employer, &params)) };
            // Not retried: the Pods get no traffic any more, so only state in the adapter remains.
            if let Err(error) = adapter.client.forget(request).await {
                tracing::info!(%error, adapter = params.adapter, "Adapter call forget failed");
            }
        })
    }
}

impl Adapter {
    /// Negotiates the protocol version, unless that is done.
    async fn handshake(&self) -> Result<(), BackendError> {
        if !self.handshake_done.load(Ordering::Relaxed) {
            let response = self.check(self.client.handshake(OPERATOR_NAME).await)?;
            tracing::info!(adapter = self.pattern, name = response.name, "Adapter connected");
            self.handshake_done.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Classifies the error of a call. An unreachable adapter may return with another version, so
    /// the handshake is repeated.
    fn check<T>(&self, response: Result<T, Error>) -> Result<T, BackendError> {
        response.map_err(|error| {
            let message = format!("adapter {}: {error}", self.pattern);
            match error {
                Error::Refused(_) => BackendError::InvalidParams(message),
                Error::Garbage(_) => BackendError::InvalidResponse(message),
                Error::Unreachable(_) => {
                    self.handshake_done.store(false, Ordering::Relaxed);
                    BackendError::Unreachable(message)
                }
            }
        })
    }

    async fn observe(
        &self,
        employer: &v1::Employer,
        desired: &[DesiredMember],
    ) -> Result<TrafficByPod, BackendError> {
        let members = desired.iter().map(to_wire_member).collect();
        let request = v1::ObserveRequest { employer: Some(employer.clone()), members };
        let response = self.check(self.client.observe(request).await)?;
        let requested: BTreeSet<&str> = desired.iter().map(|member| member.uid.as_str()).collect();
        let observed = response
            .members
            .into_iter()
            .filter(|observed| requested.contains(observed.uid.as_str()));
        observed
            .map(|observed| {
                let traffic = traffic(&observed).ok_or_else(|| {
                    let pattern = &self.pattern;
                    BackendError::InvalidResponse(format!(
                        "adapter {pattern}: unknown state {:?}",
                        observed.state
                    ))
                })?;
                Ok((observed.uid, traffic))
            })
            .collect()
    }
}

/// Watches an adapter and triggers reconciles of the employers that it reports as changed.
async fn watch(adapter: Arc<Adapter>, notifier: ChangeNotifier) {
    loop {
        match adapter.client.watch().await {
            Ok(None) => return,
            Ok(Some(mut changes)) => {
                while let Ok(Some(changed)) = changes.message().await {
                    let employer = changed.employer.unwrap_or_default();
                    notifier.notify(employer_key(
                        &employer.kind,
                        &employer.namespace,
                        &employer.name,
                    ));
                }
            }
            Err(error) => {
                tracing::debug!(%error, adapter = adapter.pattern, "Adapter call watch failed")
            }
        }
        sleep(WATCH_RETRY.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

/// Returns whether the observed traffic is the desired one, so that nothing needs to be applied.
fn is_desired(member: &DesiredMember, observed: Option<Traffic>) -> bool {
    match member.traffic {
        DesiredTraffic::Serve => matches!(observed, Some(Traffic::Serving | Traffic::Unhealthy)),
        DesiredTraffic::Off => matches!(observed, Some(Traffic::Draining(_) | Traffic::Absent)),
    }
}

fn traffic(observed: &v1::Observed) -> Option<Traffic> {
    match observed.state.as_str() {
        SERVING => Some(Traffic::Serving),
        UNHEALTHY => Some(Traffic::Unhealthy),
        DRAINING => Some(Traffic::Draining(observed.in_flight.map(u64::from))),
        ABSENT => Some(Traffic::Absent),
        _ => None,
    }
}

fn to_wire_employer(employer: &Employer, params: &Params) -> v1::Employer {
    let params = if params.params.is_null() { "{}".to_owned() } else { params.params.to_string() };
    v1::Employer {
        kind: employer.kind.clone(),
        namespace: employer.namespace.clone(),
        name: employer.name.clone(),
        uid: employer.uid.clone(),
        params,
    }
}

fn to_wire_member(member: &DesiredMember) -> v1::Member {
    v1::Member {
        uid: member.uid.clone(),
        name: member.name.clone(),
        addresses: member.addresses.iter().map(ToString::to_string).collect(),
    }
}

fn to_wire_desired(member: &DesiredMember) -> v1::Wanted {
    let want = if member.traffic == DesiredTraffic::Serve { SERVE } else { OFF };
    v1::Wanted { member: Some(to_wire_member(member)), want: want.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt as _, stream};
    use serde_json::json;
    use tokio::sync::mpsc;
    use tonic::{Request, Response, Status};

    fn external(adapters: &[&str]) -> anyhow::Result<External> {
        let adapters: Vec<String> = adapters.iter().map(|adapter| (*adapter).to_owned()).collect();
        External::new(&adapters, &ChangeNotifier(mpsc::unbounded_channel().0))
    }

    #[tokio::test]
    async fn only_adapters_allowed_for_the_namespace_are_called() {
        let external =
            external(&["shop/f5=http://127.0.0.1:1", "*/all=grpc://127.0.0.1:1"]).unwrap();
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

    #[tokio::test]
    async fn generation_increases_on_change_or_after_no_effect() {
        tokio::time::pause();
        let external = external(&[]).unwrap();
        let employer = Employer { uid: "1".to_owned(), ..Employer::default() };
        let generation =
            |params: &str| external.generation(&employer, &(params.to_owned(), Vec::new()));
        let first = generation("{}");
        assert_eq!(generation("{}"), first);
        let second = generation("{ }");
        assert!(second > first && generation("{}") > second);
        let third = generation("{}");
        tokio::time::advance(RENEW_GENERATION_AFTER).await;
        assert!(generation("{}") > third);
        // An unacknowledged request may have taken effect: the previous content must be sent again.
        external.applied(&employer, |applied| applied.acknowledged = true);
        generation("{ }");
        assert!(!external.applied(&employer, |applied| applied.acknowledged));
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
            let (uid, state) = ("1".to_owned(), DRAINING.to_owned());
            let observed = v1::Observed { uid, state, in_flight: Some(2) };
            Ok(Response::new(v1::ObserveResponse { members: vec![observed] }))
        }

        async fn apply(
            &self,
            request: Request<v1::ApplyRequest>,
        ) -> Result<Response<v1::ApplyResponse>, Status> {
            let member = request.into_inner().members.remove(0).member.unwrap_or_default();
            let (outcome, message) = (INVALID.to_owned(), "full".to_owned());
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
            let (kind, namespace, name) = ("Service".into(), "shop".into(), "web".into());
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
            tonic::transport::Server::builder()
                .add_service(adapter)
                .serve_with_incoming(connections),
        );
        let (sender, mut changes) = mpsc::unbounded_channel();
        let adapter = format!("shop/test=unix://{}", socket.display());
        let external = External::new(&[adapter], &ChangeNotifier(sender)).unwrap();
        assert_eq!(changes.recv().await.as_deref(), Some("Service/shop/web"));
        let (namespace, params) = ("shop".to_owned(), json!({ "adapter": "test" }));
        let employer = Employer { namespace, params, ..Employer::default() };
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        let name = String::new();
        let member =
            DesiredMember { name, uid: "1".to_owned(), addresses, traffic: DesiredTraffic::Off };
        let sync = external.sync(&employer, std::slice::from_ref(&member)).await;
        assert_eq!(sync.observed.get("1"), Some(&Traffic::Draining(Some(2))));
        assert_eq!(
            (sync.error, sync.unfulfilled),
            (None, Some(BackendError::InvalidParams("full".to_owned())))
        );
        // A state that is already as desired is not applied again.
        assert_eq!(external.sync(&employer, &[member]).await.unfulfilled, None);
        std::fs::remove_file(socket).unwrap();
    }
}
