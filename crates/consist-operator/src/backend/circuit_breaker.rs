//! Who did not answer in time, and is left alone for a while.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::BackendError;

/// How long it takes until somebody counts as silent, and how long it is left alone.
const SILENCE: Duration = Duration::from_secs(1);
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// Who did not answer in time, and is left alone for a while: many employers that wait for one that is
/// silent are not to keep others from being looked after.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker(Mutex<BTreeMap<String, (Instant, BackendError)>>);

impl CircuitBreaker {
    /// What comes of asking somebody, unless it was silent a moment ago.
    ///
    /// # Errors
    ///
    /// What the answer is, or was.
    pub(super) async fn ask<T>(
        &self,
        whom: &str,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, fault)) = lock().get_mut(whom) {
            if at.elapsed() < LEFT_ALONE {
                return Err(fault.clone());
            }
            // One at a time finds out whether it is back.
            *at = Instant::now();
        }
        let began = Instant::now();
        let answer = answer.await;
        match &answer {
            Err(fault) if began.elapsed() >= SILENCE => {
                lock().insert(whom.to_owned(), (Instant::now(), fault.clone()));
            }
            _ => drop(lock().remove(whom)),
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_silent_is_left_alone_for_a_while() {
        let (circuit_breaker, fault) =
            (CircuitBreaker::default(), BackendError::Unreachable("silent".to_owned()));
        let quick = circuit_breaker.ask("a", async { Err::<(), _>(fault.clone()) }).await;
        assert!(
            quick.is_err() && circuit_breaker.ask("a", async { Ok(()) }).await.is_ok(),
            "it answered"
        );
        let late = async {
            tokio::time::sleep(SILENCE).await;
            Err::<(), _>(fault.clone())
        };
        assert!(circuit_breaker.ask("a", late).await.is_err());
        assert_eq!(circuit_breaker.ask("a", async { Ok(()) }).await, Err(fault));
        assert_eq!(circuit_breaker.ask("b", async { Ok(()) }).await, Ok(()));
        let ago = Instant::now().checked_sub(LEFT_ALONE).unwrap();
        circuit_breaker.0.lock().unwrap().get_mut("a").unwrap().0 = ago;
        assert_eq!(circuit_breaker.ask("a", async { Ok(()) }).await, Ok(()));
        assert!(circuit_breaker.0.lock().unwrap().is_empty());
    }
}
