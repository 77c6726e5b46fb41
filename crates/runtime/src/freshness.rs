//! What was written, and has the cache seen it. Pure; after Kubernetes' KEP-5647.
//!
//! A watch delivers a collection's changes in the order of their resource versions. So a cache that
//! has come as far as the version of a write has seen that write and all before it; one number a
//! collection is enough, and nothing has to be remembered for objects that are gone.

/// How far a cache has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The highest resource version that an event carried.
    pub version: u64,
    /// How many lists were begun.
    pub lists_begun: u64,
    /// The number of the last list that was finished.
    pub lists_done: u64,
}

/// The last of one's own writes to a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    version: u64,
    lists_begun: u64,
}

impl Written {
    /// Notes a write and how far the cache had come by then.
    pub fn note(&mut self, version: Option<&str>, seen: Seen) {
        let Some(version) = version.and_then(|v| v.parse().ok()) else { return };
        if version >= self.version {
            *self = Self { version, lists_begun: seen.lists_begun };
        }
    }

    /// Whether the cache has seen the write, by its event or in a list that began after it.
    #[must_use]
    pub fn is_seen(&self, seen: Seen) -> bool {
        seen.version >= self.version || seen.lists_done > self.lists_begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_seen_by_its_own_event_or_a_later_one() {
        let mut written = Written::default();
        written.note(Some("7"), Seen { version: 5, ..Seen::default() });
        assert!(!written.is_seen(Seen { version: 6, ..Seen::default() }));
        assert!(written.is_seen(Seen { version: 7, ..Seen::default() }));
    }

    #[test]
    fn a_list_that_began_after_the_write_has_seen_it_and_one_under_way_has_not() {
        let under_way = Seen { version: 5, lists_begun: 2, lists_done: 1 };
        let mut written = Written::default();
        written.note(Some("7"), under_way);
        assert!(!written.is_seen(Seen { version: 5, lists_begun: 2, lists_done: 2 }));
        assert!(written.is_seen(Seen { version: 5, lists_begun: 3, lists_done: 3 }));
    }

    #[test]
    fn an_earlier_answer_that_comes_late_changes_nothing() {
        let mut written = Written::default();
        written.note(Some("9"), Seen::default());
        written.note(Some("8"), Seen::default());
        assert!(!written.is_seen(Seen { version: 8, ..Seen::default() }));
    }
}
