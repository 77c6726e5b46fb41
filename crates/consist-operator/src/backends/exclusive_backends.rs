//! Backends that only one employer may use, such as an HAProxy backend or a target group.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{BackendError, Employer};

/// Time after a restart in which only employers with protected Pods may claim a backend, so that no
/// other employer claims one that is in use.
const STARTUP_CLAIM_DELAY: Duration = Duration::from_secs(10);

/// Exclusive claims on backends: two employers on one backend would drain each other's Pods.
#[derive(Debug, Default)]
pub struct ExclusiveBackends(Mutex<Claims>);

#[derive(Debug, Default)]
struct Claims {
    /// Key of the owning employer, by backend.
    owners: BTreeMap<String, String>,
    /// Time of the first claim since the operator started.
    since: Option<Instant>,
}

impl ExclusiveBackends {
    /// Claims `backends` for an employer and releases its claims on all others.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if another employer owns one of them,
    /// [`BackendError::Unreachable`] if another employer may still claim it after a restart.
    pub fn claim(
        &self,
        employer: &Employer,
        backends: &[String],
        now: Instant,
    ) -> Result<(), BackendError> {
        let mut claims = self.0.lock();
        let since = *claims.since.get_or_insert(now);
        let key = employer.key();
        let owners = &mut claims.owners;
        owners.retain(|backend, owner| *owner != key || backends.contains(backend));
        let conflict = backends.iter().find_map(|backend| {
            let owner = owners.get(backend).filter(|owner| **owner != key)?;
            Some(format!("backend-params: {backend} is already used by {owner}"))
        });
        if let Some(conflict) = conflict {
            return Err(BackendError::InvalidParams(conflict));
        }
        let is_new = backends.iter().any(|backend| !owners.contains_key(backend));
        if is_new && !employer.protects_pods && now.duration_since(since) < STARTUP_CLAIM_DELAY {
            return Err(BackendError::Unreachable(format!(
                "operator restarted; waiting up to {STARTUP_CLAIM_DELAY:?} for Services \
                 that already hold Pods to claim their backends"
            )));
        }
        owners.extend(backends.iter().map(|backend| (backend.clone(), key.clone())));
        Ok(())
    }

    /// Releases all claims of the employer with this key.
    pub fn release(&self, employer: &str) {
        let mut claims = self.0.lock();
        claims.owners.retain(|_, owner| owner != employer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_can_be_claimed_once_its_owner_released_it() {
        let (exclusive_backends, employer) = (ExclusiveBackends::default(), |name: &str| {
            Employer { name: name.to_owned(), protects_pods: true, ..Employer::default() }
        });
        let now = Instant::now();
        let claim = |name: &str, backend: &str| {
            exclusive_backends.claim(&employer(name), &[backend.to_owned()], now).is_ok()
        };
        assert!(claim("a", "x") && claim("a", "x") && !claim("b", "x"));
        assert!(claim("a", "y") && claim("b", "x"), "a claimed another backend");
        exclusive_backends.release(&employer("b").key());
        assert!(claim("c", "x"));
    }

    #[test]
    fn employers_with_protected_pods_claim_first_after_a_start() {
        let exclusive_backends = ExclusiveBackends::default();
        let started = Instant::now();
        let claim_at = |now: Instant, name: &str, protects_pods: bool| {
            let employer = Employer { name: name.to_owned(), protects_pods, ..Employer::default() };
            let claimed = exclusive_backends.claim(&employer, &["x".to_owned()], now);
            claimed.map_err(|error| error.class())
        };
        let claim = |name, protects_pods| claim_at(started, name, protects_pods);
        assert_eq!(claim("new", false), Err("unreachable"));
        assert_eq!(claim("old", true), Ok(()));
        assert_eq!(claim("new", true), Err("invalid_params"));
        assert_eq!(claim("old", false), Ok(()), "an existing claim is kept");
        exclusive_backends.release("//old");
        assert_eq!(claim_at(started + STARTUP_CLAIM_DELAY, "new", false), Ok(()));
    }
}
