//! Values and states that are compared by hash, because a search visits many.

use std::{
    collections::BTreeSet,
    fmt::{self, Debug},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Deref,
    sync::{Arc, Mutex},
};

use serde_json::Value;

/// A value that is compared by the hash of its text, because states are copied and compared often.
#[derive(Clone)]
pub(crate) struct Hashed<T> {
    value: Arc<T>,
    hash: u64,
}

/// A JSON value.
pub(crate) type Json = Hashed<Value>;

impl<T: Debug> Hashed<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { hash: hash_of(&format!("{value:?}")), value: Arc::new(value) }
    }
}

impl<T> Deref for Hashed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl<T> Eq for Hashed<T> {}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl<T: Debug> Debug for Hashed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// Returns the hash of a value.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hashes of states that are known to converge once faults end.
#[derive(Default)]
pub(crate) struct Converging(Mutex<BTreeSet<u64>>);

impl Converging {
    /// Returns whether a state converges. `divergence` returns the reason if not, and is called
    /// once for each state.
    pub(crate) fn contains<S: Clone + Hash>(
        &self,
        state: &S,
        divergence: impl FnOnce(S) -> Option<&'static str>,
    ) -> bool {
        let hash = hash_of(state);
        if self.0.lock().unwrap().contains(&hash) {
            return true;
        }
        let converges = divergence(state.clone()).is_none();
        if converges {
            self.0.lock().unwrap().insert(hash);
        }
        converges
    }
}
