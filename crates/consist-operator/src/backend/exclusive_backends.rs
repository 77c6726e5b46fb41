//! What belongs to one employer alone.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{BackendError, Employer};

/// How long after its start a process waits for those who hold Pods: what is theirs, no other may claim.
const HOLDERS_FIRST: Duration = Duration::from_secs(10);

/// What belongs to one employer alone: two of them would drain each other's Pods out of it.
#[derive(Debug, Default)]
pub(super) struct ExclusiveBackends(Mutex<Claimed>);

#[derive(Debug, Default)]
struct Claimed {
    owners: BTreeMap<String, String>,
    /// When the first one was claimed.
    since: Option<Instant>,
}

impl ExclusiveBackends {
    /// Claims these for an employer, and gives up what it claimed before.
    ///
    /// # Errors
    ///
    /// If one is another's, or may be.
    pub(super) fn claim(&self, employer: &Employer, what: &[String]) -> Result<(), BackendError> {
        let mut exclusive_backends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, key) =
            (*exclusive_backends.since.get_or_insert_with(Instant::now), employer.key());
        let owners = &mut exclusive_backends.owners;
        owners.retain(|one, owner| *owner != key || what.contains(one));
        let another = what.iter().find_map(|one| {
            let owner = owners.get(one).filter(|owner| **owner != key)?;
            Some(format!("backend-params: {one} is {owner}'s"))
        });
        if let Some(another) = another {
            return Err(BackendError::Params(another));
        }
        let is_new = what.iter().any(|one| !owners.contains_key(one));
        if is_new && !employer.holds && began.elapsed() < HOLDERS_FIRST {
            let told = "the operator has just started, and hears first those who hold Pods";
            return Err(BackendError::Unreachable(told.to_owned()));
        }
        owners.extend(what.iter().map(|one| (one.clone(), key.clone())));
        Ok(())
    }

    /// Gives up what the employer of this key claimed.
    pub(super) fn release(&self, employer: &str) {
        let mut exclusive_backends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        exclusive_backends.owners.retain(|_, owner| owner != employer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_anothers_is_not_taken_before_that_one_gives_it_up() {
        let (exclusive_backends, name) = (ExclusiveBackends::default(), |name: &str| Employer {
            name: name.to_owned(),
            holds: true,
            ..Employer::default()
        });
        let claim = |who: &str, what: &str| {
            exclusive_backends.claim(&name(who), &[what.to_owned()]).is_ok()
        };
        assert!(claim("a", "x") && claim("a", "x") && !claim("b", "x"));
        assert!(claim("a", "y") && claim("b", "x"), "a has gone elsewhere");
        exclusive_backends.release(&name("b").key());
        assert!(claim("c", "x"));
    }

    #[test]
    fn who_holds_pods_claims_first_after_a_start() {
        let exclusive_backends = ExclusiveBackends::default();
        let claim = |name: &str, holds: bool| {
            let employer = Employer { name: name.to_owned(), holds, ..Employer::default() };
            exclusive_backends.claim(&employer, &["x".to_owned()]).map_err(|fault| fault.class())
        };
        let later = |ago: Duration| {
            let mut claimed = exclusive_backends.0.lock().unwrap();
            claimed.since = Some(Instant::now().checked_sub(ago).unwrap());
        };
        assert_eq!(claim("new", false), Err("unreachable"));
        assert_eq!(claim("old", true), Ok(()));
        assert_eq!(claim("new", true), Err("params"));
        assert_eq!(claim("old", false), Ok(()), "what it has it keeps");
        exclusive_backends.release("//old");
        later(HOLDERS_FIRST);
        assert_eq!(claim("new", false), Ok(()));
    }
}
