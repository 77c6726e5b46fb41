//! Circuit breaker for backend endpoints that time out.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::backends::BackendError;

/// A failed call that took at least this long opens the circuit.
const SLOW_CALL: Duration = Duration::from_secs(1);
/// Time for which an open circuit fails fast.
const OPEN_FOR: Duration = Duration::from_secs(5);

/// Circuit breaker: an endpoint that timed out fails fast for [`OPEN_FOR`], so that employers
/// waiting for it do not starve other reconciles.
///
/// Holds the open circuits, by endpoint: when each opened, and the error to return.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<OpenCircuits>);

type OpenCircuits = BTreeMap<String, (Instant, BackendError)>;

impl CircuitBreaker {
    fn lock(&self) -> MutexGuard<'_, OpenCircuits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls an endpoint, unless its circuit is open.
    ///
    /// # Errors
    ///
    /// The error of this call, or while the circuit is open the error that opened it.
    pub(super) async fn call<T>(
        &self,
        endpoint: &str,
        request: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        if let Some((opened, error)) = self.lock().get_mut(endpoint) {
            if opened.elapsed() < OPEN_FOR {
                return Err(error.clone());
            }
            // Only this call probes the endpoint; concurrent ones keep failing fast.
            *opened = Instant::now();
        }
        let started = Instant::now();
        let response = request.await;
        match &response {
            Err(error) if started.elapsed() >= SLOW_CALL => {
                self.lock().insert(endpoint.to_owned(), (Instant::now(), error.clone()));
            }
            _ => drop(self.lock().remove(endpoint)),
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_that_timed_out_fails_fast_while_open() {
        let (breaker, error) =
            (CircuitBreaker::default(), BackendError::Unreachable("timeout".to_owned()));
        let quick = breaker.call("a", async { Err::<(), _>(error.clone()) }).await;
        assert!(
            quick.is_err() && breaker.call("a", async { Ok(()) }).await.is_ok(),
            "a fast failure does not open the circuit"
        );
        let slow = async {
            tokio::time::sleep(SLOW_CALL).await;
            Err::<(), _>(error.clone())
        };
        assert!(breaker.call("a", slow).await.is_err());
        assert_eq!(breaker.call("a", async { Ok(()) }).await, Err(error));
        assert_eq!(breaker.call("b", async { Ok(()) }).await, Ok(()));
        let opened = Instant::now().checked_sub(OPEN_FOR).unwrap();
        breaker.0.lock().unwrap().get_mut("a").unwrap().0 = opened;
        assert_eq!(breaker.call("a", async { Ok(()) }).await, Ok(()));
        assert!(breaker.0.lock().unwrap().is_empty());
    }
}
