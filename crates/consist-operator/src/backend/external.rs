//! Adapters: programs in any language that stand for what sends the traffic.

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
    Answer, Backend, BackendError, ChangeNotifier, CircuitBreaker, Coming, Employer, SyncResult,
    TrafficByPod, Wanted, allows,
};
use crate::{plan::Want, view::Traffic};

/// How long an adapter may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long is waited until an adapter is asked once more to tell of changes.
const WATCH_AGAIN: Duration = Duration::from_secs(5);
/// How long nothing may come of what was sent before it is sent as something new.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the operator calls itself.
const OPERATOR: &str = concat!("podops consist-operator ", env!("CARGO_PKG_VERSION"));

/// The annotation's content.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    /// The adapter's name.
    adapter: String,
    /// What it is told; its own affair.
    #[serde(default)]
    params: Value,
}

/// An adapter, and who may name it.
struct Adapter {
    /// `<namespace>/<name>`, as [`allows`] has it.
    pattern: String,
    client: Client,
    /// Whether it is known to speak our version.
    agreed: AtomicBool,
    circuit_breaker: CircuitBreaker,
}

/// What an adapter is told of one employer: what its user says, and what is wanted.
type Content = (String, Vec<v1::Wanted>);

/// What was last sent to an adapter for one employer.
#[derive(Debug, Default)]
struct Applied {
    generation: u64,
    /// What has that number, and since when.
    sent: Option<(Content, Instant)>,
    /// Whether the adapter has answered to it. Who did not may have done as it was told all the same.
    taken: bool,
}

/// Speaks to adapters.
pub struct External {
    adapters: Vec<Arc<Adapter>>,
    applied: Mutex<BTreeMap<String, Applied>>,
    _watches: JoinSet<()>,
}

impl External {
    /// Speaks to these, each given as `<namespace>/<adapter>=<address>`.
    ///
    /// # Errors
    ///
    /// If one is given otherwise.
    pub fn new(told: &[String], notifier: &ChangeNotifier) -> anyhow::Result<Self> {
        let read = |told: &String| {
            let (pattern, address) = told.split_once('=').context("there is no address")?;
            anyhow::ensure!(pattern.contains('/'), "there is no namespace");
            let client = Client::at(address, DEADLINE).map_err(anyhow::Error::msg)?;
            let pattern = pattern.to_owned();
            let (agreed, circuit_breaker) = (AtomicBool::new(false), CircuitBreaker::default());
            Ok(Arc::new(Adapter { pattern, client, agreed, circuit_breaker }))
        };
        let adapters = told.iter().map(|told| read(told).with_context(|| told.clone()));
        let adapters = adapters.collect::<anyhow::Result<Vec<Arc<Adapter>>>>()?;
        let mut watches = JoinSet::new();
        for adapter in &adapters {
            watches.spawn(watch(adapter.clone(), notifier.clone()));
        }
        Ok(Self { adapters, applied: Mutex::default(), _watches: watches })
    }

    fn adapter(&self, namespace: &str, name: &str) -> Result<&Adapter, BackendError> {
        let fits = |adapter: &&Arc<Adapter>| {
            allows(std::slice::from_ref(&adapter.pattern), namespace, name)
        };
        self.adapters.iter().find(fits).map(|adapter| &**adapter).ok_or_else(|| {
            BackendError::Params(format!(
                "backend-params: the operator knows no adapter {name} for this namespace"
            ))
        })
    }

    fn applied<T>(&self, employer: &Employer, with: impl FnOnce(&mut Applied) -> T) -> T {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        with(applied.entry(employer.uid.clone()).or_default())
    }

    /// The number of what is sent: a greater one if it is something else than the last time, also from one
    /// process to the next. Where clocks differ that may be too small a number, and is ignored: so it grows
    /// too when nothing comes of it for long.
    fn generation(&self, employer: &Employer, content: &Content) -> u64 {
        let now = u64::try_from(clock::now().as_millisecond()).unwrap_or_default();
        self.applied(employer, |applied| {
            let same = applied
                .sent
                .as_ref()
                .is_some_and(|(sent, at)| sent == content && at.elapsed() < PATIENCE);
            if !same {
                applied.generation = now.max(applied.generation + 1);
                applied.sent = Some((content.clone(), Instant::now()));
                applied.taken = false;
            }
            applied.generation
        })
    }

    async fn at(&self, employer: &Employer, wanted: &[Wanted]) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let adapter = self.adapter(&employer.namespace, &params.adapter)?;
        let told = as_told(employer, &params);
        let observed = async {
            adapter.agree().await?;
            adapter.observe(&told, wanted).await
        };
        let observed = adapter.circuit_breaker.ask(&adapter.pattern, observed).await?;
        let all: Vec<v1::Wanted> = wanted.iter().map(as_wanted).collect();
        let content = (told.params.clone(), all);
        let taken = self.applied(employer, |applied| {
            applied.taken && applied.sent.as_ref().is_some_and(|(sent, _)| *sent == content)
        });
        if taken && wanted.iter().all(|w| is_so(w, observed.get(&w.uid).copied())) {
            return Ok(SyncResult::of(observed));
        }
        let generation = self.generation(employer, &content);
        let (employer_told, members) = (Some(told.clone()), content.1);
        let said = v1::ApplyRequest { employer: employer_told, generation, members };
        let unfulfilled = match adapter.checked(adapter.client.apply(said).await) {
            Ok(answer) => {
                self.applied(employer, |applied| applied.taken = true);
                let mut outcomes = answer.outcomes.into_iter();
                let invalid = outcomes.find(|outcome| outcome.outcome == INVALID);
                invalid.map(|outcome| BackendError::Params(outcome.message))
            }
            Err(refusal @ BackendError::Params(_)) => Some(refusal),
            Err(fault) => return Ok(SyncResult::blind(wanted, fault)),
        };
        let observed = adapter.observe(&told, wanted).await;
        Ok(observed.map_or_else(
            |fault| SyncResult::blind(wanted, fault),
            |observed| SyncResult { unfulfilled, ..SyncResult::of(observed) },
        ))
    }
}

impl Backend for External {
    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a> {
        Box::pin(async move { self.at(employer, wanted).await.into() })
    }

    fn forget<'a>(&'a self, employer: &'a Employer) -> Coming<'a, ()> {
        Box::pin(async move {
            self.applied.lock().unwrap_or_else(PoisonError::into_inner).remove(&employer.uid);
            let Ok(params) = employer.params::<Params>() else { return };
            let Ok(adapter) = self.adapter(&employer.namespace, &params.adapter) else { return };
            let told = v1::ForgetRequest { employer: Some(as_told(employer, &params)) };
            // It sends them no traffic by now; what it keeps costs nobody anything.
            if let Err(error) = adapter.client.forget(told).await {
                tracing::info!(%error, adapter = params.adapter, "An adapter does not forget");
            }
        })
    }
}

impl Adapter {
    /// Agrees on a version, unless that is done.
    async fn agree(&self) -> Result<(), BackendError> {
        if !self.agreed.load(Ordering::Relaxed) {
            let agreed = self.checked(self.client.handshake(OPERATOR).await)?;
            tracing::info!(adapter = self.pattern, name = agreed.name, "An adapter answers");
            self.agreed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What came of asking. Who cannot be reached may come back as another version.
    fn checked<T>(&self, answer: Result<T, Error>) -> Result<T, BackendError> {
        answer.map_err(|error| {
            let told = format!("adapter {}: {error}", self.pattern);
            match error {
                Error::Refused(_) => BackendError::Params(told),
                Error::Garbage(_) => BackendError::Garbage(told),
                Error::Unreachable(_) => {
                    self.agreed.store(false, Ordering::Relaxed);
                    BackendError::Unreachable(told)
                }
            }
        })
    }

    async fn observe(
        &self,
        told: &v1::Employer,
        wanted: &[Wanted],
    ) -> Result<TrafficByPod, BackendError> {
        let members = wanted.iter().map(as_member).collect();
        let asked = v1::ObserveRequest { employer: Some(told.clone()), members };
        let answer = self.checked(self.client.observe(asked).await)?;
        let known: BTreeSet<&str> = wanted.iter().map(|w| w.uid.as_str()).collect();
        let about =
            answer.members.into_iter().filter(|observed| known.contains(observed.uid.as_str()));
        about
            .map(|observed| {
                let traffic = traffic(&observed).ok_or_else(|| {
                    let pattern = &self.pattern;
                    BackendError::Garbage(format!(
                        "adapter {pattern}: {:?} is no state",
                        observed.state
                    ))
                })?;
                Ok((observed.uid, traffic))
            })
            .collect()
    }
}

/// Tells of employers whose adapter says that something changed.
async fn watch(adapter: Arc<Adapter>, notifier: ChangeNotifier) {
    loop {
        match adapter.client.watch().await {
            Ok(None) => return,
            Ok(Some(mut changes)) => {
                while let Ok(Some(changed)) = changes.message().await {
                    let employer = changed.employer.unwrap_or_default();
                    notifier.tell(employer_key(
                        &employer.kind,
                        &employer.namespace,
                        &employer.name,
                    ));
                }
            }
            Err(error) => tracing::debug!(%error, adapter = adapter.pattern, "Watching an adapter"),
        }
        sleep(WATCH_AGAIN.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

/// Whether what is seen needs nobody to say what is wanted.
fn is_so(wanted: &Wanted, observed: Option<Traffic>) -> bool {
    match wanted.want {
        Want::Serve => matches!(observed, Some(Traffic::Serving | Traffic::Unhealthy)),
        Want::Off => matches!(observed, Some(Traffic::Draining(_) | Traffic::Absent)),
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

fn as_told(employer: &Employer, params: &Params) -> v1::Employer {
    let said = if params.params.is_null() { "{}".to_owned() } else { params.params.to_string() };
    v1::Employer {
        kind: employer.kind.clone(),
        namespace: employer.namespace.clone(),
        name: employer.name.clone(),
        uid: employer.uid.clone(),
        params: said,
    }
}

fn as_member(wanted: &Wanted) -> v1::Member {
    v1::Member {
        uid: wanted.uid.clone(),
        name: wanted.name.clone(),
        addresses: wanted.addresses.iter().map(ToString::to_string).collect(),
    }
}

fn as_wanted(wanted: &Wanted) -> v1::Wanted {
    let want = if wanted.want == Want::Serve { SERVE } else { OFF };
    v1::Wanted { member: Some(as_member(wanted)), want: want.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt as _, stream};
    use serde_json::json;
    use tokio::sync::mpsc;
    use tonic::{Request, Response, Status};

    fn external(told: &[&str]) -> anyhow::Result<External> {
        let told: Vec<String> = told.iter().map(|told| (*told).to_owned()).collect();
        External::new(&told, &ChangeNotifier(mpsc::unbounded_channel().0))
    }

    #[tokio::test]
    async fn only_an_adapter_that_the_namespace_may_name_is_asked() {
        let external =
            external(&["shop/f5=http://127.0.0.1:1", "*/all=grpc://127.0.0.1:1"]).unwrap();
        let fault = async |namespace: &str, params: Value| {
            let namespace = namespace.to_owned();
            let employer = Employer { namespace, params, ..Employer::default() };
            external.sync(&employer, &[]).await.fault.map(|fault| fault.class())
        };
        assert_eq!(fault("shop", json!({ "adapter": "f5" })).await, Some("unreachable"));
        assert_eq!(fault("other", json!({ "adapter": "all" })).await, Some("unreachable"));
        assert_eq!(fault("other", json!({ "adapter": "f5" })).await, Some("params"));
        assert_eq!(fault("shop", json!({})).await, Some("params"));
    }

    #[tokio::test]
    async fn adapters_that_cannot_be_told_apart_are_refused_at_the_start() {
        assert!(external(&["f5=http://127.0.0.1:1"]).is_err());
        assert!(external(&["shop/f5"]).is_err());
        assert!(external(&["shop/f5=ftp://127.0.0.1"]).is_err());
    }

    #[tokio::test]
    async fn what_is_sent_has_a_greater_number_if_it_is_something_else_or_nothing_comes_of_it() {
        tokio::time::pause();
        let external = external(&[]).unwrap();
        let employer = Employer { uid: "1".to_owned(), ..Employer::default() };
        let number =
            |params: &str| external.generation(&employer, &(params.to_owned(), Vec::new()));
        let first = number("{}");
        assert_eq!(number("{}"), first);
        let second = number("{ }");
        assert!(second > first && number("{}") > second);
        let third = number("{}");
        tokio::time::advance(PATIENCE).await;
        assert!(number("{}") > third);
        // What was sent and not answered may have been done: what stood before is to be said again.
        external.applied(&employer, |applied| applied.taken = true);
        number("{ }");
        assert!(!external.applied(&employer, |applied| applied.taken));
    }

    /// An adapter that has one Pod draining, says so, and tells of changes.
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
            let one = stream::iter([Ok(v1::Changed { employer: Some(employer) })]);
            Ok(Response::new(one.chain(stream::pending()).boxed()))
        }
    }

    #[tokio::test]
    async fn an_adapter_over_grpc_is_asked_and_tells_of_changes() {
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
        let (nudges, mut news) = mpsc::unbounded_channel();
        let told = format!("shop/test=unix://{}", socket.display());
        let external = External::new(&[told], &ChangeNotifier(nudges)).unwrap();
        assert_eq!(news.recv().await.as_deref(), Some("Service/shop/web"));
        let (namespace, params) = ("shop".to_owned(), json!({ "adapter": "test" }));
        let employer = Employer { namespace, params, ..Employer::default() };
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        let name = String::new();
        let wanted = Wanted { name, uid: "1".to_owned(), addresses, want: Want::Off };
        let sync = external.sync(&employer, std::slice::from_ref(&wanted)).await;
        assert_eq!(sync.observed.get("1"), Some(&Traffic::Draining(Some(2))));
        assert_eq!(
            (sync.fault, sync.unfulfilled),
            (None, Some(BackendError::Params("full".to_owned())))
        );
        // What is so already is not said again.
        assert_eq!(external.sync(&employer, &[wanted]).await.unfulfilled, None);
        std::fs::remove_file(socket).unwrap();
    }
}
