//! The operator: a look and what it comes to, and what must never come of any.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::runtime::watcher::Event;
use podops_api::{
    collaset::{CollaSet, CollaSetStatus, Retention},
    int_or_percent::{Rounding, resolve},
    lifecycle::{self, COLLASET, LabelKind},
    well_known,
};
use podops_runtime::{
    shell::store::IndexedStore,
    write::{Outcome, Write},
};
use serde::de::DeserializeOwned;

use super::{Pod, SET, World, cluster::Cluster};
use crate::{
    plan::{self, Action, Blocker, Plan, claims::retention},
    render,
    shell::observe::{Caches, observe, owner, trim_claim, trim_pod, trim_revision},
    status::status,
    view::{Observed, record_last_pods},
};

/// What the operator keeps in mind, and what it has in hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Operator {
    last_pods: BTreeMap<i64, String>,
    in_hand: Option<InHand>,
    /// The last plan, for the message of a failure.
    pub(super) last_plan: String,
    /// IDs of Pods that were replaced, or that replaced others.
    replaced: BTreeSet<i64>,
    /// Revisions that it asked the server about.
    dry_runs: BTreeMap<String, Result<(), String>>,
    /// Claims that a Pod has mounted.
    used: BTreeSet<String>,
}

/// A plan and what it was made of.
#[derive(Clone, Debug)]
struct InHand {
    observed: Observed,
    plan: Plan,
    /// The Pods as they were.
    pods: Vec<Pod>,
}

fn store<K>(
    cluster: &Cluster,
    plural: &str,
    index: fn(&K) -> Option<String>,
    trim: fn(&mut K),
) -> std::sync::Arc<IndexedStore<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let store = IndexedStore::new(index);
    store.apply_event(Event::Init);
    for object in cluster.all(plural) {
        let mut object: K = serde_json::from_value(object.clone()).unwrap();
        trim(&mut object);
        store.apply_event(Event::InitApply(object));
    }
    store.apply_event(Event::InitDone);
    store
}

impl World {
    /// Observes and plans; nothing is written yet.
    pub(super) fn look(&mut self) {
        let Some(set) = self.cluster.get("collasets", SET) else { return };
        let set: CollaSet = serde_json::from_value(set.clone()).unwrap();
        let caches = Caches {
            pods: store(&self.cluster, "pods", owner, trim_pod),
            claims: store(&self.cluster, "persistentvolumeclaims", owner, trim_claim),
            revisions: store(&self.cluster, "controllerrevisions", owner, trim_revision),
            contexts: store(&self.cluster, "resourcecontexts", |_| None, |_| ()),
        };
        let mut observed = observe(&set, &caches);
        record_last_pods(&mut self.operator.last_pods, &observed.pods);
        observed.last_pods.clone_from(&self.operator.last_pods);
        observed.can_resize = true;
        observed.dry_runs.clone_from(&self.operator.dry_runs);
        let plan = plan::plan(&observed, self.time());
        self.operator.last_plan = plan.to_string();
        let pods = self.pods();
        interrupts_no_more_than_allowed(&observed, &plan, &pods);
        self.operator.in_hand = Some(InHand { observed, plan, pods });
    }

    /// Writes what was planned, step by step; after so many writes the operator is killed and
    /// started anew.
    pub(super) fn act(&mut self, most: usize) {
        let Some(in_hand) = self.operator.in_hand.take() else { return };
        let steps = render::render(&in_hand.observed, &in_hand.plan.actions, self.time());
        let mut left = most;
        let mut failures = Vec::new();
        let mut done = true;
        for dry_run in steps.dry_runs {
            let Write::DryRunCreate(_, body) = &dry_run else { continue };
            let revision =
                body["metadata"]["labels"][well_known::REVISION].as_str().unwrap().to_owned();
            let outcome = self.cluster.apply(&dry_run);
            let answer =
                if let Outcome::Rejected(message) = outcome { Err(message) } else { Ok(()) };
            self.operator.dry_runs.insert(revision, answer);
        }
        for step in [steps.claim_deletions, steps.bookkeeping] {
            done &= self.write_all(&in_hand, step, &mut left, &mut failures);
            if !done {
                break;
            }
        }
        if done {
            for step in [steps.creates, steps.changes] {
                done &= self.write_all(&in_hand, step, &mut left, &mut failures);
            }
            if done {
                self.write_all(&in_hand, steps.finalizer_removal, &mut left, &mut failures);
            }
        }
        if left == 0 {
            self.operator = Operator {
                replaced: std::mem::take(&mut self.operator.replaced),
                used: std::mem::take(&mut self.operator.used),
                ..Operator::default()
            };
        } else {
            self.report(&in_hand, &failures);
        }
    }

    /// Whether all of it was done.
    fn write_all(
        &mut self,
        in_hand: &InHand,
        writes: Vec<Write>,
        left: &mut usize,
        failures: &mut Vec<Blocker>,
    ) -> bool {
        let mut all = true;
        for write in writes {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let before = self.clone();
            let outcome = self.cluster.apply(&write);
            all &= matches!(outcome, Outcome::Done(_));
            match outcome {
                Outcome::Done(_) => self.was_right(&before, in_hand, &write),
                Outcome::Rejected(message) => failures.push(Blocker {
                    scaling: matches!(write, Write::Create(..)),
                    reason: "ScaleOutFailed",
                    message,
                }),
                Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => {}
            }
        }
        all
    }

    fn report(&mut self, in_hand: &InHand, failures: &[Blocker]) {
        let (reported, _) = status(&in_hand.observed, &in_hand.plan, failures, self.time());
        claims_no_more_than_was_seen(&reported, in_hand, self.time());
        if reported != in_hand.observed.status && self.cluster.get("collasets", SET).is_some() {
            self.cluster.apply(&render::status(&in_hand.observed, &reported));
        }
    }

    /// What has to hold of every single write.
    fn was_right(&mut self, before: &World, in_hand: &InHand, write: &Write) {
        let (plural, name) = (write.target().resource.plural, write.target().name.as_str());
        match (plural, write) {
            ("pods", Write::Create(..)) => {
                self.every_id_is_one_pods();
                self.there_are_not_too_many(before, in_hand);
                let new = self.pod(name).unwrap();
                self.operator.used.extend(new.mounts());
                if let Some(origin) = new.get(well_known::REPLACE_PAIR_ORIGIN_NAME) {
                    self.operator.replaced.insert(new.id());
                    self.operator.replaced.extend(self.pod(origin).map(|pod| pod.id()));
                }
                // One that is replaced by request stays of its revision.
                let origin = new.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
                let origin = origin.and_then(|name| before.pod(name));
                if origin.is_none_or(|pod| pod.revision() != new.revision()) {
                    self.no_more_are_updated_than_may_be(before, in_hand);
                }
            }
            ("pods", Write::Delete { .. }) => {
                let given = |pod: Pod| pod.has(&LabelKind::Operate.key(COLLASET));
                assert!(before.pod(name).is_none_or(given), "{name} was not given");
            }
            ("pods", Write::Patch(..)) => self.no_more_are_updated_than_may_be(before, in_hand),
            // A name may come back once its claim is gone.
            ("persistentvolumeclaims", Write::Create(..)) => {
                self.operator.used.remove(name);
            }
            ("persistentvolumeclaims", Write::Delete { .. }) => {
                self.claim_was_free(before, in_hand, name);
            }
            _ => {}
        }
    }

    fn every_id_is_one_pods(&self) {
        let mut ids: Vec<i64> = self.live().iter().map(Pod::id).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "an ID is of two Pods: {}", self.operator.last_plan);
    }

    fn there_are_not_too_many(&self, before: &World, in_hand: &InHand) {
        let replicas = in_hand.observed.replicas();
        let Some(surge) = rolling(in_hand).and_then(|r| r.max_surge.clone()) else { return };
        let most = replicas + resolve(&surge, replicas, Rounding::Up);
        let (was, is) = (before.live().len(), self.live().len());
        let few = in_hand.pods.iter().filter(|pod| pod.is_live()).count() <= most;
        assert!(!few || is <= most, "{was} became {is}, at most {most}: {}", in_hand.plan);
    }

    /// Instances of the updated revision, of those that stay.
    fn updated(&self, in_hand: &InHand) -> usize {
        let live = self.live();
        let updated = live.iter().filter(|pod| {
            let released = lifecycle::is_during(&labels(pod), COLLASET, lifecycle::SCALE_IN);
            let origin = pod.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
            let is_surge = origin.is_some_and(|name| live.iter().any(|p| p.name() == name));
            !released && !is_surge && pod.revision() == in_hand.plan.updated
        });
        updated.count()
    }

    fn no_more_are_updated_than_may_be(&self, before: &World, in_hand: &InHand) {
        let partition = rolling(in_hand).and_then(|r| r.by_partition.clone());
        let Some(partition) = partition.and_then(|p| p.partition) else { return };
        if in_hand.plan.updated == in_hand.plan.current || partition == IntOrString::Int(0) {
            return;
        }
        let replicas = in_hand.observed.replicas();
        let most = replicas.saturating_sub(resolve(&partition, replicas, Rounding::Up));
        let (was, is) = (before.updated(in_hand), self.updated(in_hand));
        assert!(is <= was || is <= most, "{is} are updated, at most {most}: {}", in_hand.plan);
    }

    fn claim_was_free(&self, before: &World, in_hand: &InHand, name: &str) {
        let user = before.live().into_iter().find(|pod| pod.mounts().iter().any(|c| c == name));
        assert!(user.is_none(), "{name} was in use: {}", in_hand.plan);
        let Some(claim) = before.cluster.get("persistentvolumeclaims", name) else { return };
        let id = claim["metadata"]["labels"][well_known::INSTANCE_ID].as_str().unwrap();
        let replaced = self.operator.replaced.contains(&id.parse().unwrap());
        let kept = retention(&in_hand.observed).when_scaled == Retention::Retain;
        let unused = !self.operator.used.contains(name);
        assert!(!kept || replaced || unused, "{name} was to be retained: {}", in_hand.plan);
    }
}

fn rolling(in_hand: &InHand) -> Option<&podops_api::collaset::RollingUpdate> {
    in_hand.observed.spec.update_strategy.rolling_update.as_ref()
}

fn labels(pod: &Pod) -> lifecycle::Labels {
    serde_json::from_value(pod.0["metadata"]["labels"].clone()).unwrap_or_default()
}

/// Updates begin in no more serving Pods than `maxUnavailable` leaves; counted anew, from the
/// objects.
fn interrupts_no_more_than_allowed(observed: &Observed, plan: &Plan, pods: &[Pod]) {
    let rolling = observed.spec.update_strategy.rolling_update.as_ref();
    let Some(most) = rolling.and_then(|r| r.max_unavailable.clone()) else { return };
    let most = resolve(&most, observed.replicas(), Rounding::Down).max(1);
    // However short: its users are served.
    let serves = |pod: &Pod| {
        pod.is_live()
            && pod.has(well_known::SERVICE_AVAILABLE)
            && !pod.has(&LabelKind::Operating.key(COLLASET))
    };
    let begun = |pod: &Pod| {
        plan.actions.iter().any(|action| {
            matches!(action, Action::Begin(name, lifecycle::UPDATE, _) if name == pod.name())
        })
    };
    if !pods.iter().any(|pod| serves(pod) && begun(pod)) {
        return;
    }
    let left = pods.iter().filter(|pod| serves(pod) && !begun(pod)).count();
    let least = observed.replicas().saturating_sub(most);
    assert!(left >= least, "{left} serve, at least {least} have to: {plan}");
}

/// The status speaks of nothing that was not seen.
fn claims_no_more_than_was_seen(reported: &CollaSetStatus, in_hand: &InHand, now: jiff::Timestamp) {
    let observed = &in_hand.observed;
    let named = observed.has_persistent_names();
    let active: Vec<&Pod> =
        in_hand.pods.iter().filter(|pod| pod.is_live() || named && pod.is_owned()).collect();
    let count = |holds: &dyn Fn(&Pod) -> bool| -> i32 {
        active.iter().filter(|pod| holds(pod)).count().try_into().unwrap()
    };
    let least = i128::from(observed.spec.min_ready_seconds.unwrap_or_default()) * 1_000_000_000;
    let available = |pod: &Pod| {
        let since = pod.get(well_known::SERVICE_AVAILABLE).and_then(|s| s.parse::<i128>().ok());
        since.is_some_and(|since| now.as_nanosecond() - since >= least)
    };
    let updated = |pod: &Pod| pod.revision() == reported.updated_revision;
    assert_eq!(reported.replicas, count(&|_| true));
    assert_eq!(reported.ready_replicas, count(&Pod::is_ready));
    assert_eq!(reported.available_replicas, count(&available));
    assert_eq!(reported.updated_replicas, count(&updated));
    assert_eq!(reported.updated_available_replicas, count(&|pod| updated(pod) && available(pod)));
    assert!(reported.observed_generation <= observed.generation);
}
