//! Circuit breaker for backend endpoints that time out.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::BackendError;

/// A failed call that took at least this long opens the circuit.
const SLOW_CALL: Duration = Duration::from_secs(1);
/// Time for which an open circuit fails fast.
const OPEN_FOR: Duration = Duration::from_secs(5);

/// Circuit breaker: an endpoint that timed out fails fast for [`OPEN_FOR`], so that employers
/// waiting for it do not starve other reconciles.
#[derive(Debug, Default)]
pub struct CircuitBreaker {
    /// Open circuits by endpoint.
    open: BTreeMap<String, OpenCircuit>,
}

#[derive(Debug)]
struct OpenCircuit {
    since: Instant,
    /// Error to return.
    error: BackendError,
}

impl CircuitBreaker {
    /// Permits a call to an endpoint, unless its circuit is open.
    ///
    /// # Errors
    ///
    /// The error that opened the circuit.
    pub fn permit(&mut self, endpoint: &str, now: Instant) -> Result<(), BackendError> {
        let Some(circuit) = self.open.get_mut(endpoint) else { return Ok(()) };
        if now.duration_since(circuit.since) < OPEN_FOR {
            return Err(circuit.error.clone());
        }
        // Only this call probes the endpoint; concurrent ones keep failing fast.
        circuit.since = now;
        Ok(())
    }

    /// Records the result of a permitted call.
    pub fn record(
        &mut self,
        endpoint: &str,
        started: Instant,
        now: Instant,
        error: Option<&BackendError>,
    ) {
        match error {
            // An endpoint that rejects the configuration of one employer is available to others.
            Some(error @ BackendError::Unreachable(_))
                if now.duration_since(started) >= SLOW_CALL =>
            {
                let circuit = OpenCircuit { since: now, error: error.clone() };
                self.open.insert(endpoint.to_owned(), circuit);
            }
            _ => drop(self.open.remove(endpoint)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_do_not_open_the_circuit() {
        let mut breaker = CircuitBreaker::default();
        let now = Instant::now();
        let error = BackendError::InvalidParams("target group not found".to_owned());
        breaker.record("a", now, now + SLOW_CALL, Some(&error));
        assert_eq!(breaker.permit("a", now + SLOW_CALL), Ok(()));
    }

    #[test]
    fn an_endpoint_that_timed_out_fails_fast_while_open() {
        let mut breaker = CircuitBreaker::default();
        let now = Instant::now();
        let error = BackendError::Unreachable("timeout".to_owned());
        assert_eq!(breaker.permit("a", now), Ok(()));
        breaker.record("a", now, now, Some(&error));
        assert_eq!(breaker.permit("a", now), Ok(()), "a fast failure does not open the circuit");
        let failed = now + SLOW_CALL;
        breaker.record("a", now, failed, Some(&error));
        assert_eq!(breaker.permit("a", failed), Err(error.clone()));
        assert_eq!(breaker.permit("b", failed), Ok(()));
        let probe = failed + OPEN_FOR;
        assert_eq!(breaker.permit("a", probe), Ok(()));
        assert_eq!(breaker.permit("a", probe), Err(error), "one call at a time probes");
        breaker.record("a", probe, probe, None);
        assert!(breaker.open.is_empty());
    }
}
