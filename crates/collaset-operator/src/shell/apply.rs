//! Sends the writes of a plan, phase by phase.

use std::collections::BTreeSet;

use jiff::Timestamp;
use podops_api::ids::ClaimName;
use podops_client::{
    object_key::ObjectKey,
    results::WriteResults,
    shell::{clock, read},
    write::{Outcome, Write},
};

use super::reconcile::CollaSetController;
use crate::{
    memory::SetMemory,
    plan::{Plan, action::Action},
    render::{self, Changes},
    results::group_by_source,
    view::Observed,
};

impl CollaSetController {
    /// Sends the writes of a plan, and remembers the responses. A phase begins once the phases that
    /// it depends on have succeeded.
    pub(super) async fn apply(
        &self,
        observed: &Observed,
        plan: &Plan,
        memory: &mut SetMemory,
        now: Timestamp,
    ) -> WriteResults {
        if !plan.actions.is_empty() {
            tracing::debug!(%plan, "Planned");
        }
        let (changes, others): (Vec<&Action>, Vec<&Action>) =
            plan.actions.iter().partition(|action| render::is_change_only(action));
        let phases = render::render(observed, others, now);
        let mut results = self.writer.applier.apply_all(phases.dry_runs).await;
        if results.iter().next().is_some() {
            memory.record_dry_runs(&results, now);
            self.share_dry_runs(observed, memory);
        }
        for phase in [phases.claim_deletions, phases.bookkeeping] {
            let written = self.write_all(observed, phase).await;
            if !written.all_done() {
                return written;
            }
        }
        let departures = self.write_all(observed, phases.departures).await;
        let creates = self.create(observed, phases.creates, memory).await;
        let changes = phases.changes.into_iter().chain(Changes::new(observed, changes, now));
        let changes = self.write_all(observed, changes).await;
        memory.record_resizes(observed, &changes);
        let all_done = departures.all_done() && changes.all_done();
        let joins = self.join(observed, phases.included_claims, phases.joins).await;
        for written in [departures, creates, changes, joins] {
            results.extend(written);
        }
        if all_done {
            results.extend(self.write_all(observed, phases.finalizer_removal).await);
        }
        results
    }

    /// Makes the results of dry runs known to the PodDecorations of the namespace, whose statuses
    /// name the decorations that the API server rejects.
    fn share_dry_runs(&self, observed: &Observed, memory: &SetMemory) {
        let set = ObjectKey::new(&observed.namespace, &observed.name);
        if self.watches.caches.dry_runs.set(set, memory.dry_runs().clone()) {
            self.watches.related.send_to_namespace(&observed.namespace);
        }
    }

    async fn write_all(
        &self,
        observed: &Observed,
        writes: impl IntoIterator<Item = Write>,
    ) -> WriteResults {
        self.writer.write_all(&observed.uid, writes).await
    }

    /// Creates objects, a few of each kind first.
    async fn create(
        &self,
        observed: &Observed,
        creates: Vec<Write>,
        memory: &mut SetMemory,
    ) -> WriteResults {
        let mut results = WriteResults::default();
        for group in group_by_source(creates) {
            results.extend(self.writer.applier.apply_slow_start(group).await);
        }
        self.writer.record(&observed.uid, &results);
        memory.record_creates(&results, clock::now());
        self.record_taken_names(observed, &results, memory).await;
        results
    }

    /// Adopts the included PVCs, then the Pods whose PVCs were all adopted.
    async fn join(
        &self,
        observed: &Observed,
        claims: Vec<Write>,
        mut pods: Vec<Write>,
    ) -> WriteResults {
        let mut results = self.write_all(observed, claims).await;
        let failed = results.iter().filter(|result| !result.is_done());
        let failed: BTreeSet<ClaimName> =
            failed.map(|result| result.write.target().name.as_str().into()).collect();
        render::retain_joins(&mut pods, observed, &failed);
        results.extend(self.write_all(observed, pods).await);
        results
    }

    /// Remembers the names of new objects that objects of other owners have, so that the next
    /// reconcile chooses others. An object of this CollaSet will appear in the cache.
    async fn record_taken_names(
        &self,
        observed: &Observed,
        results: &WriteResults,
        memory: &mut SetMemory,
    ) {
        let collided =
            results.iter().filter(|result| matches!(result.outcome, Ok(Outcome::AlreadyExists)));
        for result in collided {
            let target = result.write.target();
            match read::owner_uids(&self.client, target).await {
                Ok(Some(owners)) if !owners.iter().any(|owner| *owner == *observed.uid) => {
                    memory.record_taken_name(target);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, %target, "Failed to read the owners; retrying");
                }
            }
        }
    }
}
