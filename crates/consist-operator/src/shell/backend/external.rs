//! Backend `external`: calls adapters over gRPC or HTTP.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use podops_adapter::{
    client::{Client, Error},
    v1,
};
use podops_api::{consist::employer_key, ids::Uid};
use podops_client::shell::clock;
use tokio::{task::JoinSet, time::sleep};

use super::{Backend, BoxFuture, ChangeNotifier, SyncFuture, call_endpoint};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult, TrafficByPod,
    circuit_breaker::CircuitBreaker,
    external::{AdapterFlag, Applied, Content, Params, is_desired, messages, unknown_adapter},
};
use crate::config_error::ConfigError;

/// Timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum delay before an adapter is watched again.
const WATCH_RETRY: Duration = Duration::from_secs(5);
/// Name and version of the operator, sent in the handshake.
const OPERATOR_NAME: &str = concat!("podops consist-operator ", env!("CARGO_PKG_VERSION"));

/// A client of an adapter.
struct Adapter {
    flag: AdapterFlag,
    client: Client,
    /// True once the adapter has confirmed the protocol version.
    handshake_done: AtomicBool,
    circuit_breaker: Mutex<CircuitBreaker>,
}

/// The backend `external`.
pub struct External {
    adapters: Vec<Arc<Adapter>>,
    /// Last apply requests, by UID of the employer.
    applied: Mutex<BTreeMap<Uid, Applied>>,
    _watches: JoinSet<()>,
}

impl External {
    /// Creates the backend for these adapters, each as `<namespace>/<adapter>=<address>`, and
    /// starts to watch them.
    ///
    /// # Errors
    ///
    /// If one does not have this form.
    pub fn new(flags: &[String], notifier: &ChangeNotifier) -> Result<Self, ConfigError> {
        let mut adapters = Vec::new();
        for flag in flags {
            adapters.push(Arc::new(Adapter::new(flag)?));
        }
        let mut watches = JoinSet::new();
        for adapter in &adapters {
            watches.spawn(watch(adapter.clone(), notifier.clone()));
        }
        Ok(Self { adapters, applied: Mutex::default(), _watches: watches })
    }

    fn adapter(&self, namespace: &str, name: &str) -> Result<&Adapter, BackendError> {
        let mut adapters = self.adapters.iter();
        let found = adapters.find(|adapter| adapter.flag.is_allowed(namespace, name));
        found.map(|adapter| &**adapter).ok_or_else(|| unknown_adapter(namespace, name))
    }

    /// Calls `with` with the last apply request for an employer.
    fn applied<T>(&self, employer: &Employer, with: impl FnOnce(&mut Applied) -> T) -> T {
        let mut applied = self.applied.lock();
        with(applied.entry(employer.uid.clone()).or_default())
    }

    async fn sync_members(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params: Params = employer.params()?;
        let adapter = self.adapter(&employer.namespace, &params.adapter)?;
        let content = Content { params: params.to_json(), members: members.to_vec() };
        let target = messages::employer(employer, content.params.clone());
        let first = async {
            adapter.handshake().await?;
            adapter.observe(&target, members).await
        };
        let observed =
            call_endpoint(&adapter.circuit_breaker, &adapter.flag.pattern, first).await?;
        let acknowledged = self.applied(employer, |applied| applied.is_acknowledged(&content));
        if acknowledged && is_desired(members, &observed) {
            return Ok(SyncResult::complete(observed));
        }
        let generation = self.applied(employer, |applied| {
            applied.generation(&content, clock::now(), Instant::now())
        });
        let request = messages::apply_request(&target, members, generation);
        let unfulfilled = match adapter.check(adapter.client.apply(request).await) {
            Ok(response) => {
                self.applied(employer, Applied::acknowledge);
                messages::rejection(response)
            }
            Err(rejection @ BackendError::InvalidParams(_)) => Some(rejection),
            Err(error) => return Ok(SyncResult::unobserved(members, error)),
        };
        Ok(match adapter.observe(&target, members).await {
            Ok(observed) => SyncResult { unfulfilled, ..SyncResult::complete(observed) },
            Err(error) => SyncResult::unobserved(members, error),
        })
    }
}

impl Backend for External {
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.sync_members(employer, members).await.into() })
    }

    fn forget<'a>(&'a self, employer: &'a Employer) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.applied.lock().remove(&employer.uid);
            let Ok(params) = employer.params::<Params>() else { return };
            let Ok(adapter) = self.adapter(&employer.namespace, &params.adapter) else { return };
            let target = messages::employer(employer, params.to_json());
            let request = v1::ForgetRequest { employer: Some(target) };
            // Not retried: the Pods get no traffic any more, so only state in the adapter remains.
            if let Err(error) = adapter.client.forget(request).await {
                tracing::info!(%error, adapter = params.adapter, "Adapter call forget failed");
            }
        })
    }
}

impl Adapter {
    /// Creates the client of an adapter from its flag.
    fn new(text: &str) -> Result<Self, ConfigError> {
        let flag = AdapterFlag::parse(text)
            .map_err(|source| ConfigError::InvalidAdapter { flag: text.to_owned(), source })?;
        let client = Client::at(&flag.address, CALL_TIMEOUT)
            .map_err(|source| ConfigError::InvalidAddress { flag: text.to_owned(), source })?;
        let handshake_done = AtomicBool::new(false);
        let circuit_breaker = Mutex::default();
        Ok(Self { flag, client, handshake_done, circuit_breaker })
    }

    /// Negotiates the protocol version, unless that is done.
    async fn handshake(&self) -> Result<(), BackendError> {
        if !self.handshake_done.load(Ordering::Relaxed) {
            let response = self.check(self.client.handshake(OPERATOR_NAME).await)?;
            tracing::info!(adapter = self.flag.pattern, name = response.name, "Adapter connected");
            self.handshake_done.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Classifies the error of a call. An unreachable adapter may return with another version, so
    /// the handshake is repeated.
    fn check<T>(&self, response: Result<T, Error>) -> Result<T, BackendError> {
        response.map_err(|error| {
            if matches!(error, Error::Unreachable(_)) {
                self.handshake_done.store(false, Ordering::Relaxed);
            }
            messages::backend_error(&self.flag.pattern, &error)
        })
    }

    async fn observe(
        &self,
        employer: &v1::Employer,
        members: &[DesiredMember],
    ) -> Result<TrafficByPod, BackendError> {
        let request = messages::observe_request(employer, members);
        let response = self.check(self.client.observe(request).await)?;
        messages::traffic(response, members, &self.flag.pattern)
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
                tracing::debug!(%error, adapter = adapter.flag.pattern, "Adapter call watch failed");
            }
        }
        sleep(WATCH_RETRY.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

#[cfg(test)]
mod tests;
