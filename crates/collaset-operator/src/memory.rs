//! Facts about one CollaSet that are not stored in the cluster: the API server's responses to
//! earlier writes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use podops_api::ids::{ClaimName, InstanceId, PodName, RevisionName, Uid};
use podops_client::{
    results::WriteResults,
    write::{Outcome, PODS, Target},
};

use crate::{
    render::CLAIMS,
    results::{dry_run_result, instance_of, is_resize, source_of},
    view::{
        DryRunResult, DryRuns, LastPod, Observed, PodSource, record_dry_run, record_last_pods,
        record_never_selected,
    },
};

/// Time within which a Pod that ends has failed to start.
const START: SignedDuration = SignedDuration::from_secs(10);
/// Longest delay of the next Pod of an instance.
const DELAY_MAX: SignedDuration = SignedDuration::from_secs(300);

/// Last creation of a Pod for an instance.
#[derive(Clone, Copy, Debug)]
struct Creation {
    at: Timestamp,
    /// Number of Pods before it, one after another, that have ended within seconds.
    failures: u32,
    /// True if its Pod has ended, other than by a deletion.
    has_ended: bool,
}

impl Creation {
    fn after(last: Option<&Self>, at: Timestamp) -> Self {
        let has_failed = |last: &&Self| last.has_ended && last.is_recent(at);
        let failures = last.filter(has_failed).map_or(0, |last| last.failures + 1);
        Self { at, failures, has_ended: false }
    }

    /// Returns whether the Pod would have failed to start if it had ended by now.
    fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) < self.delay() + START
    }

    /// Delay of the next Pod: none at first, then 1 s, 2 s, 4 s, up to [`DELAY_MAX`].
    fn delay(&self) -> SignedDuration {
        let Some(doublings) = self.failures.checked_sub(1) else { return SignedDuration::ZERO };
        let seconds = 1_i64.checked_shl(doublings).unwrap_or(i64::MAX);
        SignedDuration::from_secs(seconds.max(1)).min(DELAY_MAX)
    }

    /// Time before which the next Pod is not created; `None` without delay.
    fn next_due(&self) -> Option<Timestamp> {
        let delay = self.delay();
        (!delay.is_zero()).then(|| self.at.checked_add(delay).unwrap_or(Timestamp::MAX))
    }
}

/// Time after which a rejected dry run is repeated: its cause may be another object.
const REJECTION_MAX: SignedDuration = SignedDuration::from_secs(600);

/// Facts about one CollaSet that are not stored in the cluster.
#[derive(Debug, Default)]
pub struct SetMemory {
    /// UID of the namespace; `None` before it was needed.
    pub namespace_uid: Option<Uid>,
    last_pods: BTreeMap<InstanceId, LastPod>,
    never_selected: BTreeSet<Uid>,
    creations: BTreeMap<InstanceId, Creation>,
    rejected_resizes: BTreeMap<Uid, RevisionName>,
    dry_runs: DryRuns,
    /// Times of the rejected ones.
    rejected_at: BTreeMap<PodSource, Timestamp>,
    rejected_creates: BTreeSet<PodSource>,
    taken_pods: BTreeSet<PodName>,
    taken_claims: BTreeSet<ClaimName>,
}

impl SetMemory {
    /// Adds the facts to the observed state, and drops outdated ones.
    pub fn add_to(&mut self, observed: &mut Observed, now: Timestamp) {
        record_never_selected(&mut self.never_selected, &self.last_pods, observed, now);
        record_last_pods(&mut self.last_pods, observed.all());
        // The next creation depends on recent ones only.
        self.creations.retain(|_, last| last.is_recent(now));
        // A kubelet reports a terminal phase of deleted Pods as well.
        for pod in observed.all().filter(|pod| pod.terminal && !pod.deleting) {
            let last = pod.instance.and_then(|id| self.creations.get_mut(&id));
            if let Some(last) = last {
                last.has_ended = true;
            }
        }
        let due = self.creations.iter().filter_map(|(id, last)| Some((*id, last.next_due()?)));
        observed.creation_due = due.collect();
        observed.never_selected.clone_from(&self.never_selected);
        if !self.rejected_resizes.is_empty() {
            // A rejected resize is outdated once the Pod has another revision.
            let pods = observed.all();
            let revisions: BTreeMap<&Uid, &RevisionName> =
                pods.map(|pod| (&pod.uid, &pod.revision)).collect();
            self.rejected_resizes.retain(|uid, to| revisions.get(uid) == Some(&&*to));
        }
        let known = &observed.revisions;
        self.rejected_at.retain(|source, at| {
            known.contains_key(&source.revision) && now.duration_since(*at) < REJECTION_MAX
        });
        self.dry_runs.retain(|source, result| {
            let is_valid =
                *result == DryRunResult::Accepted || self.rejected_at.contains_key(source);
            known.contains_key(&source.revision) && is_valid
        });
        self.rejected_creates.retain(|source| known.contains_key(&source.revision));
        observed.dry_runs.clone_from(&self.dry_runs);
        observed.last_pods.clone_from(&self.last_pods);
        observed.rejected_resizes.clone_from(&self.rejected_resizes);
        observed.rejected_creates.clone_from(&self.rejected_creates);
        observed.taken_pods.clone_from(&self.taken_pods);
        observed.taken_claims.clone_from(&self.taken_claims);
    }

    /// Remembers for which revisions and decorations the API server accepts Pods.
    pub fn record_dry_runs(&mut self, results: &WriteResults, now: Timestamp) {
        for write in results {
            let Some(result) = dry_run_result(write) else { continue };
            let source = source_of(&write.write);
            if result == DryRunResult::Accepted {
                self.rejected_at.remove(&source);
            } else {
                self.rejected_at.insert(source.clone(), now);
            }
            record_dry_run(&mut self.dry_runs, source, result);
        }
    }

    /// Results of the dry-run creations of Pods.
    #[must_use]
    pub fn dry_runs(&self) -> &DryRuns {
        &self.dry_runs
    }

    /// Remembers for which revisions the API server rejects new Pods, and when it created one for
    /// each instance.
    pub fn record_creates(&mut self, results: &WriteResults, now: Timestamp) {
        for result in results.iter().filter(|result| result.write.target().resource == PODS) {
            let source = source_of(&result.write);
            match result.outcome {
                Ok(Outcome::Rejected(_)) => drop(self.rejected_creates.insert(source)),
                Ok(Outcome::Done(_)) => {
                    self.rejected_creates.remove(&source);
                    if let Some(id) = instance_of(&result.write) {
                        let last = self.creations.get(&id);
                        self.creations.insert(id, Creation::after(last, now));
                    }
                }
                Ok(Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound) | Err(_) => {}
            }
        }
    }

    /// Remembers the name of a new object that an object of another owner has.
    pub fn record_taken_name(&mut self, target: &Target) {
        match target.resource {
            PODS => drop(self.taken_pods.insert(target.name.as_str().into())),
            CLAIMS => drop(self.taken_claims.insert(target.name.as_str().into())),
            _ => {}
        }
    }

    /// Remembers Pods whose resize to their revision the API server rejected.
    pub fn record_resizes(&mut self, observed: &Observed, results: &WriteResults) {
        for result in results.iter().filter(|result| is_resize(&result.write)) {
            let name = PodName::from(result.write.target().name.as_str());
            let Some(pod) = observed.pods.get(&name) else { continue };
            if result.rejection().is_some() {
                self.rejected_resizes.insert(pod.uid.clone(), pod.revision.clone());
            } else {
                self.rejected_resizes.remove(&pod.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::view::PodView;

    /// Otherwise a Pod that a user deletes repeatedly is missing for longer each time.
    #[test]
    fn a_deleted_pod_does_not_end_by_itself() {
        let now = Timestamp::UNIX_EPOCH;
        let has_ended = |deleting: bool| {
            let mut memory = SetMemory::default();
            memory.creations.insert(InstanceId(0), Creation::after(None, now));
            let instance = Some(InstanceId(0));
            let pod = PodView { instance, terminal: true, deleting, ..PodView::default() };
            let mut observed = Observed::default();
            observed.pods.insert(pod.name.clone(), Arc::new(pod));
            memory.add_to(&mut observed, now);
            memory.creations[&InstanceId(0)].has_ended
        };
        assert!(has_ended(false));
        assert!(!has_ended(true));
    }

    #[test]
    fn pods_that_end_at_once_are_created_after_growing_delays() {
        let mut now = Timestamp::UNIX_EPOCH;
        let mut last = Creation::after(None, now);
        let mut delays = Vec::new();
        for _ in 0..12 {
            delays.push(last.delay().as_secs());
            now = last.next_due().unwrap_or(now);
            last = Creation::after(Some(&Creation { has_ended: true, ..last }), now);
        }
        assert_eq!(delays, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        // One that was deleted, and one that has run for a while.
        assert_eq!(Creation::after(Some(&last), now).delay(), SignedDuration::ZERO);
        last.has_ended = true;
        let later = now + last.delay() + START;
        assert_eq!(Creation::after(Some(&last), later).delay(), SignedDuration::ZERO);
    }
}
