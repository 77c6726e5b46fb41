//! Facts about one CollaSet that are not stored in the cluster: the API server's responses to
//! earlier writes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::ids::{ClaimName, InstanceId, PodName, RevisionName, Uid};
use podops_client::{
    results::WriteResults,
    write::{Outcome, PODS, Target},
};

use crate::{
    render::CLAIMS,
    results::{dry_run_result, is_resize, source_of},
    view::{DryRunResult, Observed, PodSource, record_last_pods},
};

/// Facts about one CollaSet that are not stored in the cluster.
#[derive(Debug, Default)]
pub struct SetMemory {
    last_pods: BTreeMap<InstanceId, Uid>,
    rejected_resizes: BTreeMap<Uid, RevisionName>,
    dry_runs: BTreeMap<PodSource, DryRunResult>,
    rejected_creates: BTreeSet<PodSource>,
    taken_pods: BTreeSet<PodName>,
    taken_claims: BTreeSet<ClaimName>,
}

impl SetMemory {
    /// Adds the facts to the observed state, and drops outdated ones.
    pub fn add_to(&mut self, observed: &mut Observed) {
        record_last_pods(&mut self.last_pods, observed.all());
        if !self.rejected_resizes.is_empty() {
            // A rejected resize is outdated once the Pod has another revision.
            let pods = observed.all();
            let revisions: BTreeMap<&Uid, &RevisionName> =
                pods.map(|pod| (&pod.uid, &pod.revision)).collect();
            self.rejected_resizes.retain(|uid, to| revisions.get(uid) == Some(&&*to));
        }
        let known = &observed.revisions;
        self.dry_runs.retain(|source, _| known.contains_key(&source.revision));
        self.rejected_creates.retain(|source| known.contains_key(&source.revision));
        observed.dry_runs.clone_from(&self.dry_runs);
        observed.last_pods.clone_from(&self.last_pods);
        observed.rejected_resizes.clone_from(&self.rejected_resizes);
        observed.rejected_creates.clone_from(&self.rejected_creates);
        observed.taken_pods.clone_from(&self.taken_pods);
        observed.taken_claims.clone_from(&self.taken_claims);
    }

    /// Remembers for which revisions the API server accepts Pods.
    pub fn record_dry_runs(&mut self, results: &WriteResults) {
        for result in results {
            if let Some(dry_run) = dry_run_result(result) {
                self.dry_runs.insert(source_of(&result.write), dry_run);
            }
        }
    }

    /// Remembers for which revisions the API server rejects new Pods.
    pub fn record_rejected_creates(&mut self, results: &WriteResults) {
        for result in results.iter().filter(|result| result.write.target().resource == PODS) {
            let source = source_of(&result.write);
            match result.outcome {
                Ok(Outcome::Rejected(_)) => drop(self.rejected_creates.insert(source)),
                Ok(Outcome::Done(_)) => drop(self.rejected_creates.remove(&source)),
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
