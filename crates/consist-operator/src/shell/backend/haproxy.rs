//! Calls of backend `haproxy` to Runtime APIs.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{Backend, SyncFuture, call_endpoint};
use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult,
    circuit_breaker::CircuitBreaker,
    exclusive_backends::ExclusiveBackends,
    haproxy::{
        Params, Slot, commands, merge, no_free_slot, observe,
        reader::{ReadSlots, SlotReader},
        rejection,
    },
};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a response that is read, in bytes.
const RESPONSE_MAX: u64 = 4 << 20;

/// The backend `haproxy`.
#[derive(Debug, Default)]
pub struct Haproxy {
    /// Instances that employers may use, as patterns.
    allowed: Vec<String>,
    exclusive_backends: ExclusiveBackends,
    circuit_breaker: Mutex<CircuitBreaker>,
    backend_ids: BackendIds,
}

/// Known numeric IDs of backends (`be_id`), by instance and backend name.
type BackendIds = Mutex<BTreeMap<(String, String), String>>;

impl Haproxy {
    /// Creates the backend for these instances, as `<namespace>/<instance>`.
    #[must_use]
    pub fn new(allowed: Vec<String>) -> Self {
        Self { allowed, ..Self::default() }
    }

    async fn sync_all(
        &self,
        employer: &Employer,
        members: &[DesiredMember],
    ) -> Result<SyncResult, BackendError> {
        let params = Params::read(employer, &self.allowed)?;
        self.exclusive_backends.claim(employer, &params.exclusive_backends(), Instant::now())?;
        // An unreachable instance must not prevent changes on the others.
        let syncs = params.instances.iter().map(|at| self.sync_instance(at, &params, members));
        let mut result = SyncResult::default();
        for sync in join_all(syncs).await {
            merge(&mut result.observed, sync.observed);
            result.error = result.error.or(sync.error);
            result.unfulfilled = result.unfulfilled.or(sync.unfulfilled);
        }
        Ok(result)
    }

    /// Applies the desired state at one instance and observes the result.
    async fn sync_instance(
        &self,
        instance: &str,
        params: &Params,
        members: &[DesiredMember],
    ) -> SyncResult {
        let read = self.read_slots(instance, &params.backend);
        let mut slots = match call_endpoint(&self.circuit_breaker, instance, read).await {
            Ok(slots) => slots,
            Err(error) => return error.into(),
        };
        let commands = commands(&slots, params, members);
        let unfulfilled = commands.is_full.then(|| no_free_slot(instance, params, slots.len()));
        let mut error = None;
        let requests = commands.requests();
        if !requests.is_empty() {
            error = execute(instance, &requests).await.err();
            slots = match self.read_slots(instance, &params.backend).await {
                Ok(slots) => slots,
                Err(error) => return SyncResult::unobserved(members, error),
            };
        }
        SyncResult { observed: observe(&slots, members), error, unfulfilled }
    }

    /// Reads the servers of a backend and their statistics.
    async fn read_slots(&self, instance: &str, backend: &str) -> Result<Vec<Slot>, BackendError> {
        let key = (instance.to_owned(), backend.to_owned());
        let known_id = self.backend_ids.lock().get(&key).cloned();
        let mut reader = SlotReader::new(backend, known_id);
        loop {
            let response = request(instance, &reader.commands()).await?;
            let read = reader.handle(response).map_err(|error| {
                BackendError::InvalidResponse(format!("haproxy at {instance}: {error}"))
            })?;
            if let Some(ReadSlots { slots, backend_id }) = read {
                self.backend_ids.lock().insert(key, backend_id);
                return Ok(slots);
            }
        }
    }
}

impl Backend for Haproxy {
    fn release_claims(&self, employer: &str) {
        self.exclusive_backends.release(employer);
    }

    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a> {
        Box::pin(async move { self.sync_all(employer, members).await.into() })
    }
}

async fn execute(instance: &str, requests: &[String]) -> Result<(), BackendError> {
    for commands in requests {
        let response = request(instance, commands).await?;
        tracing::debug!(instance, commands, response = response.trim(), "HAProxy commands sent");
        if let Some(error) = rejection(instance, &response) {
            return Err(error);
        }
    }
    Ok(())
}

/// Sends commands to the Runtime API of an instance and returns the response.
async fn request(instance: &str, commands: &str) -> Result<String, BackendError> {
    let reason = match timeout(REQUEST_TIMEOUT, connect_and_exchange(instance, commands)).await {
        Ok(Ok(response)) => return Ok(response),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("timeout after {REQUEST_TIMEOUT:?}"),
    };
    Err(BackendError::Unreachable(format!("haproxy at {instance}: {reason}")))
}

async fn connect_and_exchange(instance: &str, commands: &str) -> std::io::Result<String> {
    if let Some(address) = instance.strip_prefix("tcp://") {
        exchange(TcpStream::connect(address).await?, commands).await
    } else if let Some(path) = instance.strip_prefix("unix://") {
        exchange(UnixStream::connect(path).await?, commands).await
    } else {
        Err(std::io::Error::other("instance must be tcp://<address>:<port> or unix://<path>"))
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    commands: &str,
) -> std::io::Result<String> {
    stream.write_all(format!("{commands}\n").as_bytes()).await?;
    let mut response = String::new();
    stream.take(RESPONSE_MAX).read_to_string(&mut response).await?;
    Ok(response)
}
