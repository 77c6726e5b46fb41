//! The operator under test, and the safety properties checked after every plan, write and status
//! update: instance IDs are unique, no Pod is deleted without permission, no claim is deleted except
//! by a scale-in, an instance with a claim gets no other one, two Pods share no claim, no Pod of a
//! stopped revision is created, only rollouts stall, `maxUnavailable`, `maxSurge` and the partition
//! are respected, and the status reflects observed state only.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    collaset::{CollaSet, CollaSetStatus, FailureAction, Retention},
    ids::{ClaimName, InstanceId, PodName, Uid},
    int_or_percent::{Rounding, resolve},
    lifecycle::{self, COLLASET, LabelKind},
    well_known::{self, context},
};
use podops_client::write::{Outcome, PODS, Write};
use serde_json::Value;

use super::{Pod, SET, World, cluster::Cluster};
use crate::{
    decoration::applied::AppliedDecorations,
    plan::{
        self, Blocker, BlockerScope, Plan,
        action::{Action, PodChange},
    },
    reasons, render,
    shell::{
        cache::Caches,
        observe::{objects, observe},
    },
    status::status,
    view::{
        DryRunResult, DryRuns, LastPod, Observed, OwnOperation, PodSource, kept_back,
        record_dry_run, record_last_pods, record_never_selected,
    },
};

/// In-memory state of the operator, its pending plan and the history that the checks need.
#[derive(Clone, Debug, Default)]
pub(super) struct Operator {
    /// Last Pod of each instance.
    last_pods: BTreeMap<InstanceId, LastPod>,
    never_selected: BTreeSet<Uid>,
    pending: Option<PendingPlan>,
    /// Text of the last plan, for assertion messages.
    pub(super) last_plan: String,
    /// Dry-run results by source of the Pods.
    dry_runs: DryRuns,
    /// Pods of which the last create was rejected.
    rejected_creates: BTreeSet<PodSource>,
    /// Names that a create found taken by objects of other owners.
    taken_pods: BTreeSet<PodName>,
    taken_claims: BTreeSet<ClaimName>,
    /// Revision whose rollout has ended with all Pods available. Survives restarts.
    complete: String,
}

/// A plan that is not applied yet, and the state that it is based on.
#[derive(Clone, Debug)]
struct PendingPlan {
    observed: Observed,
    plan: Plan,
    /// Pods at planning time, terminating and failed ones included.
    pods: Vec<Pod>,
}

/// Returns the revisions from which a new Pod is built.
fn source_of(body: &Value) -> PodSource {
    let metadata = &body["metadata"];
    let revision = metadata["labels"][well_known::REVISION].as_str().unwrap_or_default();
    let decorations = metadata["annotations"][well_known::DECORATIONS].as_str();
    PodSource { revision: revision.into(), decorations: AppliedDecorations::parse(decorations) }
}

/// Plural of PersistentVolumeClaims.
const CLAIMS: &str = "persistentvolumeclaims";

/// Caches that have observed all objects of the cluster.
pub(super) fn caches(cluster: &Cluster) -> Caches {
    objects::caches(|plural| cluster.all(plural).cloned().collect()).unwrap()
}

impl World {
    /// Runs the first half of a reconcile: observes and plans, writes nothing.
    pub(super) fn observe_and_plan(&mut self) {
        let Some(set) = self.cluster.get("collasets", SET) else { return };
        let set: CollaSet = serde_json::from_value(set.clone()).unwrap();
        let caches = caches(&self.cluster);
        let mut observed = observe(&set, &caches);
        let now = self.time();
        let operator = &mut self.operator;
        record_never_selected(&mut operator.never_selected, &operator.last_pods, &observed, now);
        observed.never_selected.clone_from(&operator.never_selected);
        record_last_pods(&mut self.operator.last_pods, observed.all());
        observed.last_pods.clone_from(&self.operator.last_pods);
        observed.can_resize = true;
        observed.rejected_creates.clone_from(&self.operator.rejected_creates);
        observed.taken_pods.clone_from(&self.operator.taken_pods);
        observed.taken_claims.clone_from(&self.operator.taken_claims);
        observed.dry_runs.clone_from(&self.operator.dry_runs);
        let plan = plan::plan(&observed, self.time());
        self.operator.last_plan = plan.to_string();
        let pods = self.pods();
        assert_max_unavailable(&observed, &plan, &pods);
        assert_halted(&observed, &plan);
        self.operator.pending = Some(PendingPlan { observed, plan, pods });
    }

    /// Applies the pending plan, phase by phase. After `max_writes` writes the operator crashes and
    /// restarts without its in-memory state.
    pub(super) fn apply_plan(&mut self, max_writes: usize) {
        let Some(pending) = self.operator.pending.take() else { return };
        self.cluster.now = self.time();
        let phases = render::render(&pending.observed, &pending.plan.actions, self.time());
        let mut left = max_writes;
        let mut blockers = Vec::new();
        let mut succeeded = true;
        for dry_run in phases.dry_runs {
            let Write::DryRunCreate { body, .. } = &dry_run else { continue };
            let result = if let Outcome::Rejected(message) = self.cluster.apply(&dry_run) {
                DryRunResult::Rejected { message, is_confirmed: false }
            } else {
                DryRunResult::Accepted
            };
            record_dry_run(&mut self.operator.dry_runs, source_of(body), result);
        }
        for writes in [phases.claim_deletions, phases.bookkeeping] {
            succeeded &= self.write_all(&pending, writes, &mut left, &mut blockers);
            if !succeeded {
                break;
            }
        }
        if succeeded {
            let included = phases.included_claims;
            let mut joins = phases.joins;
            let changes = [phases.departures, phases.creates, phases.changes, included.clone()];
            for writes in changes {
                succeeded &= self.write_all(&pending, writes, &mut left, &mut blockers);
            }
            let failed = self.not_adopted(&included);
            render::retain_joins(&mut joins, &pending.observed, &failed);
            succeeded &= self.write_all(&pending, joins, &mut left, &mut blockers);
            if succeeded {
                self.write_all(&pending, phases.finalizer_removal, &mut left, &mut blockers);
            }
        }
        if left == 0 {
            let complete = std::mem::take(&mut self.operator.complete);
            self.operator = Operator { complete, ..Operator::default() };
        } else {
            self.report(&pending, &blockers);
        }
    }

    /// Names of the claims that these writes should have adopted, and have not.
    fn not_adopted(&self, writes: &[Write]) -> BTreeSet<ClaimName> {
        let names = writes.iter().map(|write| write.target().name.as_str());
        names.filter(|name| !self.is_claim_owned(name)).map(ClaimName::from).collect()
    }

    fn is_claim_owned(&self, name: &str) -> bool {
        let claim = self.cluster.get(CLAIMS, name).map(|claim| Pod(claim.clone()));
        claim.is_some_and(|claim| claim.is_owned())
    }

    /// Applies up to `left` writes and checks each. Returns whether all of them succeeded.
    fn write_all(
        &mut self,
        pending: &PendingPlan,
        writes: Vec<Write>,
        left: &mut usize,
        blockers: &mut Vec<Blocker>,
    ) -> bool {
        let mut succeeded = true;
        for write in writes {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let before = self.clone();
            let outcome = self.cluster.apply(&write);
            succeeded &= matches!(outcome, Outcome::Done(_));
            self.remember(&write, &outcome);
            match outcome {
                Outcome::Done(_) => self.check_write(&before, pending, &write),
                Outcome::Rejected(message) => blockers.push(Blocker {
                    scope: if matches!(write, Write::Create { .. }) {
                        BlockerScope::Scaling
                    } else {
                        BlockerScope::Updating
                    },
                    reason: &reasons::SCALE_OUT_FAILED,
                    message,
                }),
                Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => {}
            }
        }
        succeeded
    }

    /// Updates the operator's memory after a create.
    fn remember(&mut self, write: &Write, outcome: &Outcome) {
        let Write::Create { target, body, .. } = write else { return };
        let known = &mut self.operator;
        let source = source_of(body);
        let is_pod = target.resource == PODS;
        match outcome {
            Outcome::Rejected(_) if is_pod => drop(known.rejected_creates.insert(source)),
            Outcome::Done(_) if is_pod => drop(known.rejected_creates.remove(&source)),
            Outcome::AlreadyExists => {
                let plural = target.resource.plural;
                let existing = self.cluster.get(plural, &target.name).expect("it exists");
                let owner = &self.cluster.get("collasets", SET).unwrap()["metadata"]["uid"];
                let owners = existing["metadata"]["ownerReferences"].as_array();
                if owners.into_iter().flatten().any(|reference| reference["uid"] == *owner) {
                    return;
                }
                let name = target.name.as_str();
                if is_pod {
                    self.operator.taken_pods.insert(name.into());
                } else {
                    self.operator.taken_claims.insert(name.into());
                }
            }
            Outcome::Done(_) | Outcome::Rejected(_) | Outcome::Conflict | Outcome::NotFound => {}
        }
    }

    fn report(&mut self, pending: &PendingPlan, blockers: &[Blocker]) {
        let reported = status(&pending.observed, &pending.plan, blockers, self.time()).status;
        assert_status_matches_observed(&reported, pending, self.time());
        self.assert_only_rollouts_stall(&reported, pending);
        if reported != pending.observed.status && self.cluster.get("collasets", SET).is_some() {
            self.cluster.apply(&render::status(&pending.observed, &reported));
        }
    }

    /// Once a rollout is complete, nothing that happens to Pods makes the set Stalled or stops the
    /// revision, until more Pods are to be updated.
    fn assert_only_rollouts_stall(&mut self, reported: &CollaSetStatus, pending: &PendingPlan) {
        let updated = &reported.updated_revision;
        let is_true = |type_| condition_is_true(reported, type_);
        if self.operator.complete != *updated || pending.plan.is_updating {
            self.operator.complete = String::new();
        } else {
            assert!(!is_true("Stalled"), "Stalled after the rollout: {}", pending.plan);
            assert_eq!(reported.halted_revision, "", "halted after the rollout: {}", pending.plan);
        }
        let is_promoted = reported.current_revision != pending.observed.status.current_revision
            && !pending.observed.status.current_revision.is_empty();
        let is_kept = pending.observed.replicas() == 0
            || !pending.observed.is_by_label() && partition(pending) > 0;
        let is_rejected = !pending.observed.rejected_creates.is_empty();
        assert!(!is_promoted || !is_kept || is_rejected, "promoted: {}", pending.plan);
        if is_true("Ready") && reported.replicas > 0 {
            self.operator.complete.clone_from(updated);
        }
    }

    /// Checks the safety properties after one successful write.
    fn check_write(&mut self, before: &World, pending: &PendingPlan, write: &Write) {
        let plural = write.target().resource.plural;
        let name = write.target().name.as_str();
        match (plural, write) {
            ("pods", Write::Create { .. }) => {
                self.assert_unique_containers(name);
                self.assert_unique_ids();
                self.assert_max_surge(before, pending);
                let new = self.pod(name).unwrap();
                assert_not_stopped(pending, &new);
                self.assert_claims_unused(&new, pending);
                // A replacement on request keeps the revision, so it is not an update.
                let origin = new.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
                let origin = origin.and_then(|name| before.pod(name));
                if origin.is_none_or(|pod| pod.revision() != new.revision()) {
                    self.assert_partition(before, pending);
                }
            }
            ("pods", Write::Delete { .. }) => {
                assert!(
                    before.pod(name).is_none_or(|pod| pod.has_kind(LabelKind::Operate)),
                    "{name} was deleted without permission"
                );
            }
            // A Pod that the user includes may be at any revision.
            ("pods", Write::Patch { .. }) if before.pod(name).is_some_and(|pod| pod.is_owned()) => {
                self.assert_partition(before, pending);
            }
            ("persistentvolumeclaims", Write::Create { .. }) => {
                self.assert_claim_needed(before, name);
            }
            ("persistentvolumeclaims", Write::Delete { .. }) => {
                assert_claim_deletable(before, pending, name);
            }
            _ => {}
        }
    }

    /// No decoration adds its containers twice.
    fn assert_unique_containers(&self, pod: &str) {
        let pod = self.pod(pod).unwrap();
        let containers = pod.0["spec"]["containers"].as_array().unwrap();
        let names: BTreeSet<&str> =
            containers.iter().filter_map(|container| container["name"].as_str()).collect();
        assert_eq!(names.len(), containers.len(), "{}: {containers:?}", pod.name());
    }

    fn assert_unique_ids(&self) {
        let mut ids: Vec<i64> = self.live().iter().map(Pod::id).collect();
        ids.sort_unstable();
        let pods = ids.len();
        ids.dedup();
        assert_eq!(
            ids.len(),
            pods,
            "two Pods have the same instance ID: {}",
            self.operator.last_plan
        );
    }

    fn assert_max_surge(&self, before: &World, pending: &PendingPlan) {
        let replicas = pending.observed.replicas();
        let Some(surge) = rolling(pending).and_then(|r| r.max_surge.clone()) else { return };
        let max = replicas + resolve(&surge, replicas, Rounding::Up);
        let was = before.live().len();
        let is = self.live().len();
        // The limit does not apply to a surplus that existed at planning time, for example after a
        // scale-in.
        let planned_within_max = pending.pods.iter().filter(|pod| pod.is_live()).count() <= max;
        assert!(
            !planned_within_max || is <= max,
            "{was} Pods became {is}, at most {max} allowed: {}",
            pending.plan
        );
    }

    /// Number of instances at the updated revision, without Pods being scaled in, Pods that the
    /// plan excludes or releases, and surge Pods.
    fn updated_instances(&self, pending: &PendingPlan) -> usize {
        let mut live = self.live();
        live.retain(|pod| !is_leaving(&pending.plan, pod));
        let updated = live.iter().filter(|pod| {
            let is_scaled_in = lifecycle::is_during(&labels(pod), COLLASET, lifecycle::SCALE_IN);
            let origin = pod.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
            let is_surge = origin.is_some_and(|name| live.iter().any(|p| p.name() == name));
            !is_scaled_in && !is_surge && *pod.revision() == *pending.plan.updated
        });
        updated.count()
    }

    fn assert_partition(&self, before: &World, pending: &PendingPlan) {
        let partition = partition(pending);
        if pending.plan.updated == pending.plan.current || partition == 0 {
            return;
        }
        // A lost Pod comes back as it was, also if the partition was raised meanwhile.
        if pending.observed.spec.paused {
            return;
        }
        let max = pending.observed.replicas().saturating_sub(partition);
        let was = before.updated_instances(pending);
        let is = self.updated_instances(pending);
        assert!(
            is <= was || is <= max,
            "{is} instances updated, at most {max} allowed: {}",
            pending.plan
        );
    }

    /// No Pod is created that mounts a claim which another Pod mounts, as far as it was observed.
    fn assert_claims_unused(&self, new: &Pod, pending: &PendingPlan) {
        let was_observed = |pod: &&Pod| pending.pods.iter().any(|known| known.name() == pod.name());
        for pod in self.pods().iter().filter(|pod| !pod.is_terminal()).filter(was_observed) {
            let shared = pod.mounts().into_iter().find(|claim| new.mounts().contains(claim));
            assert_eq!(shared, None, "{} and {}: {}", pod.name(), new.name(), pending.plan);
        }
    }

    /// An instance gets a claim of a template only if it has none, whatever the template contains.
    fn assert_claim_needed(&self, before: &World, name: &str) {
        let labels = |claim: &Value| {
            let labels = &claim["metadata"]["labels"];
            [well_known::INSTANCE_ID, well_known::CLAIM_TEMPLATE_NAME]
                .map(|key| labels[key].clone())
        };
        let created = self.cluster.get("persistentvolumeclaims", name).unwrap();
        let is_released =
            |claim: &Value| !claim["metadata"]["labels"][well_known::ORPHANED].is_null();
        let other = before.claims().into_iter().find(|claim| {
            let owner = &claim["metadata"]["ownerReferences"][0]["name"];
            claim["metadata"]["name"] != *name
                && (owner.is_null() || *owner == *SET)
                && labels(claim) == labels(created)
                && !is_released(claim)
        });
        assert!(
            other.is_none(),
            "{name} was created beside {other:?}: {}",
            self.operator.last_plan
        );
    }
}

/// A claim is deleted only if its instance was scaled in, and the policy is Delete.
fn assert_claim_deletable(before: &World, pending: &PendingPlan, name: &str) {
    let mounting = before.live().into_iter().find(|pod| pod.mounts().iter().any(|c| c == name));
    assert!(mounting.is_none(), "{name} was deleted while mounted: {}", pending.plan);
    let policy = pending.observed.claim_retention().when_scaled;
    assert_eq!(policy, Retention::Delete, "{name} was deleted: {}", pending.plan);
    let Some(claim) = before.cluster.get("persistentvolumeclaims", name) else { return };
    let id = claim["metadata"]["labels"][well_known::INSTANCE_ID].as_str().unwrap();
    let id: i64 = id.parse().unwrap();
    let planned_on = pending.observed.instance_entries();
    let entry = planned_on.iter().find(|entry| entry.id.0 == id).map(|entry| &entry.data);
    let has = |key| entry.is_some_and(|data| data.contains_key(key));
    let is_surplus = planned_on.len() > pending.observed.replicas();
    let is_scaled_in = has(context::SCALE_IN) || is_surplus && !has(context::REPLACE_NEW_POD_ID);
    assert!(is_scaled_in, "{name} was deleted: {}", pending.plan);
}

/// No Pod of a revision is created whose rollout was stopped, unless there is no other revision.
fn assert_not_stopped(pending: &PendingPlan, new: &Pod) {
    let status = &pending.observed.status;
    let is_stopped = *status.halted_revision == *new.revision()
        && pending.plan.failures.halted.is_some()
        && status.current_revision != status.halted_revision;
    assert!(!is_stopped, "{} is of a stopped revision: {}", new.name(), pending.plan);
}

fn condition_is_true(status: &CollaSetStatus, type_: &str) -> bool {
    status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
}

/// Number of Pods that the spec and the step in the status exclude from the update.
fn partition(pending: &PendingPlan) -> usize {
    let (observed, Some(rolling)) = (&pending.observed, rolling(pending)) else { return 0 };
    let replicas = observed.replicas();
    let own =
        rolling.by_partition.as_ref().and_then(|by_partition| by_partition.partition.as_ref());
    let own = own.map_or(0, |partition| kept_back(partition, replicas));
    let stored = observed.status.rollout_step.as_ref();
    let Some(stored) = stored.filter(|step| step.revision == *pending.plan.updated) else {
        return own;
    };
    let until = rolling.steps.get(..usize::try_from(stored.step).unwrap());
    let of_steps =
        until.and_then(|steps| steps.iter().map(|step| kept_back(&step.partition, replicas)).min());
    own.max(of_steps.unwrap_or_default())
}

/// Returns whether the plan excludes or releases the Pod.
fn is_leaving(plan: &Plan, pod: &Pod) -> bool {
    plan.actions.iter().any(|action| {
        let Action::Pod { pod: name, change: PodChange::Exclude | PodChange::Release } = action
        else {
            return false;
        };
        **name == *pod.name()
    })
}

fn rolling(pending: &PendingPlan) -> Option<&podops_api::collaset::RollingUpdate> {
    pending.observed.spec.update_strategy.rolling_update.as_ref()
}

fn labels(pod: &Pod) -> lifecycle::Labels {
    serde_json::from_value(pod.0["metadata"]["labels"].clone()).unwrap_or_default()
}

/// Checks that updates of available Pods stay within `maxUnavailable`, counted independently of the
/// plan from the Pod objects.
fn assert_max_unavailable(observed: &Observed, plan: &Plan, pods: &[Pod]) {
    let rolling = observed.spec.update_strategy.rolling_update.as_ref();
    let Some(max_unavailable) = rolling.and_then(|r| r.max_unavailable.clone()) else { return };
    let max_unavailable = resolve(&max_unavailable, observed.replicas(), Rounding::Down).max(1);
    if !pods.iter().any(|pod| is_in_service(pod) && starts_update(plan, pod)) {
        return;
    }
    let left = pods.iter().filter(|pod| is_in_service(pod) && !starts_update(plan, pod)).count();
    let min = observed.replicas().saturating_sub(max_unavailable);
    assert!(left >= min, "{left} Pods available, at least {min} required: {plan}");
}

fn is_in_service(pod: &Pod) -> bool {
    // Regardless of minReadySeconds: the Pod receives traffic.
    pod.is_live() && pod.has(well_known::SERVICE_AVAILABLE) && !pod.has_kind(LabelKind::Operating)
}

fn starts_update(plan: &Plan, pod: &Pod) -> bool {
    plan.actions.iter().any(|action| {
        let Action::Pod { pod: name, change: PodChange::Begin { operation, .. } } = action else {
            return false;
        };
        *operation == OwnOperation::Update && **name == *pod.name()
    })
}

/// Checks that no Pod is updated to a revision whose rollout is reported as halted.
fn assert_halted(observed: &Observed, plan: &Plan) {
    let policy = observed.rolling_update().and_then(|rolling| rolling.failure_policy.as_ref());
    let halts = policy.is_some_and(|policy| policy.action == FailureAction::Halt);
    let halted = &observed.status.halted_revision;
    let is_resumed = observed.resumed_revision.as_ref() == Some(&plan.updated);
    // An update to another decoration leaves a Pod at its revision.
    let is_decorated = !observed.decorations.known.is_empty();
    if !halts || is_resumed || is_decorated || *plan.updated != **halted {
        return;
    }
    for action in &plan.actions {
        let Action::Pod { pod, change } = action else { continue };
        let begins = matches!(change, PodChange::Begin { operation: OwnOperation::Update, .. });
        let is_updated = *observed.pods[pod].revision == **halted;
        assert!(!begins || is_updated, "{pod} is updated to the halted revision: {plan}");
    }
}

/// Checks that the status reflects only the state that the plan is based on.
fn assert_status_matches_observed(
    reported: &CollaSetStatus,
    pending: &PendingPlan,
    now: jiff::Timestamp,
) {
    let observed = &pending.observed;
    let persistent_names = observed.has_persistent_names();
    let mut pods: Vec<&Pod> = pending
        .pods
        .iter()
        .filter(|pod| pod.is_live() || persistent_names && pod.is_owned())
        .collect();
    assert_eq!(reported.replicas, count(&pods, |_| true));
    assert_eq!(reported.ready_replicas, count(&pods, Pod::is_ready));
    assert_eq!(reported.available_replicas, count(&pods, |pod| is_available(observed, pod, now)));
    pods.retain(|pod| pod.revision() == reported.updated_revision);
    assert_eq!(reported.updated_replicas, count(&pods, |_| true));
    assert_eq!(
        reported.updated_available_replicas,
        count(&pods, |pod| is_available(observed, pod, now))
    );
    assert!(reported.observed_generation <= observed.generation);
}

fn count(pods: &[&Pod], is_counted: impl Fn(&Pod) -> bool) -> i32 {
    pods.iter().filter(|pod| is_counted(pod)).count().try_into().unwrap()
}

fn is_available(observed: &Observed, pod: &Pod, now: jiff::Timestamp) -> bool {
    let min_ready = i128::from(observed.spec.min_ready_seconds.unwrap_or_default()) * 1_000_000_000;
    let since = pod.get(well_known::SERVICE_AVAILABLE).and_then(|s| s.parse::<i128>().ok());
    since.is_some_and(|since| now.as_nanosecond() - since >= min_ready)
}
