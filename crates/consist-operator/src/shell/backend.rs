//! Calls to backends: sockets, SDK clients, adapters and the xDS server.
//!
//! Parameters, parsing and decisions of each backend are in [`crate::backends`].

pub mod alibaba_clb;
pub mod aws_elbv2;
pub mod endpointslice;
pub mod envoy;
pub mod external;
pub mod haproxy;
mod rate_limiter;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::backends::{
    BackendError, DesiredMember, Employer, SyncResult, UnknownBackend,
    circuit_breaker::CircuitBreaker,
};

/// Calls an endpoint through a circuit breaker.
///
/// # Errors
///
/// The error of this call, or while the circuit is open the error that opened it.
async fn call_endpoint<T>(
    circuit_breaker: &Mutex<CircuitBreaker>,
    endpoint: &str,
    request: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let started = Instant::now();
    circuit_breaker.lock().permit(endpoint, started)?;
    let response = request.await;
    let error = response.as_ref().err();
    circuit_breaker.lock().record(endpoint, started, Instant::now(), error);
    response
}

/// Triggers a reconcile of an employer when its traffic changes, instead of polling the backend.
#[derive(Clone, Debug)]
pub struct ChangeNotifier(pub UnboundedSender<String>);

impl ChangeNotifier {
    /// Triggers a reconcile of the employer with this key.
    pub fn notify(&self, key: String) {
        // The receiver is dropped at shutdown.
        drop(self.0.send(key));
    }
}

/// A boxed future, which makes [`Backend`] usable as a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// Future of one sync.
pub type SyncFuture<'a> = BoxFuture<'a, SyncResult>;

/// Default resync interval, for backends that can lose their configuration or have it changed by
/// other clients.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// A proxy or load balancer that routes traffic to Pods.
pub trait Backend: Send + Sync {
    /// Applies the desired traffic of *all* Pods of an employer, where it differs from the current
    /// state, and then observes the traffic. The result is always observed, never inferred from an
    /// acknowledgement. Idempotent; configuration applied earlier may have been lost.
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a>;

    /// Interval after which an unchanged employer is synced again; none if that is never needed.
    fn resync_interval(&self) -> Option<Duration> {
        Some(RESYNC_INTERVAL)
    }

    /// Releases the exclusive claims of the employer with this key, because it uses another backend
    /// or is no longer an employer.
    fn release_claims(&self, _employer: &str) {}

    /// Drops the state kept for an employer that no longer routes traffic. Idempotent.
    fn forget<'a>(&'a self, _employer: &'a Employer) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// All backends, by name.
pub(super) struct Backends(BTreeMap<&'static str, Box<dyn Backend>>);

impl Backends {
    pub(super) fn new(all: impl IntoIterator<Item = (&'static str, Box<dyn Backend>)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// Returns the backend of this name, with its name.
    ///
    /// # Errors
    ///
    /// [`UnknownBackend`] if no backend has this name, or `name` is `None`.
    pub(super) fn get(
        &self,
        name: Option<&str>,
    ) -> Result<(&'static str, &dyn Backend), UnknownBackend> {
        if let Some((name, backend)) = name.and_then(|name| self.0.get_key_value(name)) {
            return Ok((name, &**backend));
        }
        let supported: Vec<&str> = self.0.keys().copied().collect();
        Err(UnknownBackend::new(name, &supported))
    }

    /// Returns all backends except the one of this name.
    pub(super) fn all_except(&self, name: Option<&str>) -> impl Iterator<Item = &dyn Backend> {
        let others = self.0.iter().filter(move |(other, _)| Some(**other) != name);
        others.map(|(_, backend)| &**backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_timed_out_opens_the_circuit() {
        let breaker = Mutex::new(CircuitBreaker::default());
        let error = BackendError::Unreachable("timeout".to_owned());
        let quick = call_endpoint(&breaker, "a", async { Err::<(), _>(error.clone()) }).await;
        assert!(
            quick.is_err() && call_endpoint(&breaker, "a", async { Ok(()) }).await.is_ok(),
            "a fast failure does not open the circuit"
        );
        let slow = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Err::<(), _>(error.clone())
        };
        assert!(call_endpoint(&breaker, "a", slow).await.is_err());
        assert_eq!(call_endpoint(&breaker, "a", async { Ok(()) }).await, Err(error));
        assert_eq!(call_endpoint(&breaker, "b", async { Ok(()) }).await, Ok(()));
    }
}
