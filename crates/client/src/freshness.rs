//! Decides whether a watch cache contains the operator's own last write. Pure; after KEP-5647.
//!
//! A watch delivers the changes of a collection in the order of their resource versions. A cache
//! that has reached the resource version of a write therefore contains that write and all earlier
//! ones: one number per collection is enough, and deleted objects need no bookkeeping.

use std::collections::BTreeMap;

use crate::write::Resource;

/// How far a cache has followed its watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheVersion {
    /// The highest resource version of any received event.
    pub resource_version: u64,
    /// Number of lists started.
    pub lists_begun: u64,
    /// Number of the last completed list, counted as in `lists_begun`.
    pub lists_done: u64,
}

/// The operator's last write to a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWrite {
    resource_version: u64,
    lists_begun: u64,
}

impl LastWrite {
    /// Records a write and the state of the cache when its response arrived: a list that began
    /// earlier may not contain the write.
    ///
    /// `resource_version` is the one in the API server's response; a response without one is
    /// ignored.
    pub fn record(&mut self, resource_version: Option<&str>, cache: CacheVersion) {
        let Some(resource_version) = resource_version.and_then(|v| v.parse().ok()) else { return };
        if resource_version >= self.resource_version {
            *self = Self { resource_version, lists_begun: cache.lists_begun };
        }
    }

    /// Returns whether the cache contains the write, by its event or by a list started after it.
    #[must_use]
    pub fn is_observed_by(&self, cache: CacheVersion) -> bool {
        cache.resource_version >= self.resource_version || cache.lists_done > self.lists_begun
    }
}

/// The operator's last write to each collection that a reconcile reads.
#[derive(Clone, Debug, Default)]
pub struct LastWrites(BTreeMap<Resource, LastWrite>);

impl LastWrites {
    /// Records a write to a collection; see [`LastWrite::record`].
    pub fn record(
        &mut self,
        resource: Resource,
        resource_version: Option<&str>,
        cache: CacheVersion,
    ) {
        self.0.entry(resource).or_default().record(resource_version, cache);
    }

    /// Returns the collections whose caches do not contain the last write yet; `cache` returns the
    /// version of a collection's cache.
    pub fn unobserved_by(&self, cache: impl Fn(Resource) -> CacheVersion) -> Vec<Resource> {
        let unobserved =
            |(resource, write): &(&Resource, &LastWrite)| !write.is_observed_by(cache(**resource));
        self.0.iter().filter(unobserved).map(|(resource, _)| *resource).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(resource_version: u64) -> CacheVersion {
        CacheVersion { resource_version, ..CacheVersion::default() }
    }

    #[test]
    fn a_write_is_observed_with_its_own_event_or_a_later_one() {
        let mut write = LastWrite::default();
        write.record(Some("7"), cache(5));
        assert!(!write.is_observed_by(cache(6)));
        assert!(write.is_observed_by(cache(7)));
    }

    #[test]
    fn only_a_list_started_after_the_write_contains_it() {
        let listing = CacheVersion { resource_version: 5, lists_begun: 2, lists_done: 1 };
        let mut write = LastWrite::default();
        write.record(Some("7"), listing);
        assert!(!write.is_observed_by(CacheVersion { lists_done: 2, ..listing }));
        assert!(write.is_observed_by(CacheVersion { lists_begun: 3, lists_done: 3, ..listing }));
    }

    #[test]
    fn a_delayed_response_to_an_earlier_write_is_ignored() {
        let mut write = LastWrite::default();
        write.record(Some("9"), CacheVersion::default());
        write.record(Some("8"), CacheVersion::default());
        assert!(!write.is_observed_by(cache(8)));
    }
}
