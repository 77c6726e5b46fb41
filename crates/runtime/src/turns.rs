//! Which object a controller reconciles next: the number of reconciles at a time is limited, and
//! shared between namespaces, so that objects of one namespace, however many, slow or often
//! changed, do not keep those of another waiting.
//!
//! kube's queue cannot do this: it returns the objects that were queued last first, so that an
//! object waits for as long as others keep being queued.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use podops_client::object_key::ObjectKey;

/// A namespace takes at most this share, as numerator and denominator, of the reconciles that other
/// namespaces do not use.
const SHARE: (usize, usize) = (3, 4);

/// Reconciles in progress, and the objects that wait for one, by namespace.
pub(crate) struct Turns {
    /// Maximum number of reconciles at a time.
    total: usize,
    /// Reconciles in progress.
    running: usize,
    /// Number of reconciles that were started.
    started: u64,
    namespaces: BTreeMap<String, Namespace>,
}

#[derive(Default)]
struct Namespace {
    running: usize,
    /// Value of [`Turns::started`] at its last start.
    last_started: u64,
    /// Names of objects, the longest waiting first.
    waiting: VecDeque<String>,
    is_waiting: BTreeSet<String>,
}

impl Namespace {
    /// Adds an object to those that wait, unless it is one of them.
    fn add(&mut self, name: &str) {
        if self.is_waiting.insert(name.to_owned()) {
            self.waiting.push_back(name.to_owned());
        }
    }

    /// Removes and returns the object that has waited longest.
    fn next(&mut self) -> Option<String> {
        let name = self.waiting.pop_front()?;
        self.is_waiting.remove(&name);
        Some(name)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

impl Turns {
    /// Returns turns for a controller that runs up to `total` reconciles at a time.
    pub(crate) fn new(total: usize) -> Self {
        Self { total: total.max(1), running: 0, started: 0, namespaces: BTreeMap::new() }
    }

    /// Starts the reconcile of an object. Returns false if none may start, or none of its
    /// namespace: the object then waits until [`finish`](Self::finish) or [`next`](Self::next)
    /// returns it.
    pub(crate) fn start(&mut self, key: &ObjectKey) -> bool {
        // After those that have waited longer.
        let last_started = self.started;
        let new = || Namespace { last_started, ..Namespace::default() };
        let namespace = self.namespaces.entry(key.namespace.clone()).or_insert_with(new);
        let others = self.running - namespace.running;
        if self.running < self.total && namespace.running < share(self.total - others) {
            self.started += 1;
            self.running += 1;
            namespace.running += 1;
            namespace.last_started = self.started;
            true
        } else {
            namespace.add(&key.name);
            false
        }
    }

    /// Ends the reconcile of an object; returns the one to reconcile next.
    pub(crate) fn finish(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        if let Some(namespace) = self.namespaces.get_mut(&key.namespace) {
            namespace.running = namespace.running.saturating_sub(1);
            self.running = self.running.saturating_sub(1);
            if namespace.is_idle() {
                self.namespaces.remove(&key.namespace);
            }
        }
        self.next()
    }

    /// Returns the object to reconcile next: of the namespace with the fewest reconciles in
    /// progress, and of those, the one whose last start is the longest ago.
    pub(crate) fn next(&mut self) -> Option<ObjectKey> {
        if self.running >= self.total {
            return None;
        }
        let waiting = self.namespaces.iter_mut().filter(|(_, n)| !n.waiting.is_empty());
        let (name, namespace) = waiting.min_by_key(|(_, n)| (n.running, n.last_started))?;
        let others = self.running - namespace.running;
        if namespace.running >= share(self.total - others) {
            return None;
        }
        let key = ObjectKey { namespace: name.clone(), name: namespace.next()? };
        if namespace.is_idle() {
            // The namespace is added again when the object starts.
            self.namespaces.remove(&key.namespace);
        }
        Some(key)
    }
}

/// Maximum number of reconciles of a namespace, of those that others do not use.
fn share(left: usize) -> usize {
    (left * SHARE.0).div_ceil(SHARE.1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: usize = 16;

    fn key(namespace: &str, n: usize) -> ObjectKey {
        ObjectKey::new(namespace, &n.to_string())
    }

    /// Starts objects of a namespace; returns how many may run.
    fn start(turns: &mut Turns, namespace: &str, count: usize) -> usize {
        (0..count).filter(|n| turns.start(&key(namespace, *n))).count()
    }

    #[test]
    fn each_further_namespace_has_turns_left() {
        let mut turns = Turns::new(TOTAL);
        let running = ["a", "b", "c"].map(|namespace| start(&mut turns, namespace, 100));
        assert_eq!(running, [12, 3, 1]);
    }

    #[test]
    fn a_single_turn_is_used() {
        let mut turns = Turns::new(1);
        assert_eq!(start(&mut turns, "a", 2), 1);
        assert_eq!(turns.finish(&key("a", 0)), Some(key("a", 1)));
    }

    #[test]
    fn objects_wait_once_and_in_order() {
        let mut turns = Turns::new(TOTAL);
        start(&mut turns, "a", 14);
        start(&mut turns, "a", 0);
        assert!(!turns.start(&key("a", 12)), "waits already");
        assert_eq!(turns.finish(&key("a", 0)), Some(key("a", 12)));
        assert!(turns.start(&key("a", 12)));
        assert_eq!(turns.finish(&key("a", 1)), Some(key("a", 13)));
    }

    #[test]
    fn namespaces_take_turns() {
        let mut turns = Turns::new(1);
        for namespace in ["c", "b", "a"] {
            start(&mut turns, namespace, 3);
        }
        let mut running = key("c", 0);
        let mut order = Vec::new();
        while let Some(next) = turns.finish(&running) {
            assert!(turns.start(&next));
            order.push(next.namespace.clone());
            running = next;
        }
        assert_eq!(order.concat(), "abcabcab");
    }

    /// Whatever ends in whatever order, no object waits while a reconcile could run.
    #[test]
    fn every_object_gets_its_turn() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut turns = Turns::new(random.usize(1..6));
            // kube's queue: it runs no more than the total.
            let mut queue: VecDeque<ObjectKey> =
                (0..60).map(|n| key(["a", "b", "c"][random.usize(0..3)], n)).collect();
            let mut running = Vec::new();
            let mut done = 0;
            while done < 60 {
                while running.len() < turns.total
                    && let Some(key) = queue.pop_front()
                {
                    if turns.start(&key) {
                        running.push(key);
                    }
                }
                assert!(!running.is_empty(), "{done} done, the others wait and none is running");
                let ended = running.swap_remove(random.usize(..running.len()));
                done += 1;
                queue.extend(turns.finish(&ended));
            }
            assert!(turns.next().is_none());
            assert!(turns.namespaces.is_empty());
        }
    }
}
