//! Cluster-scoped objects of an Instance: no owner reference deletes them with it, so a finalizer does.
//! Several Instances may apply the same; the last one deletes it.

use jiff::{SignedDuration, Timestamp};
use podops_api::kudo::InventoryEntry;
use serde_json::Value;

use super::{outcome::Plan, pruning::is_kept, status};
use crate::{
    object::{annotation, enhance::RUN, is_deleted, text},
    object_write::{Needs, ObjectWrite, entry, entry_of, id_of},
    reasons,
    schedule::InstanceChange,
    view::{Finalizer, Observed},
};

/// Time after which the inventory of every Instance that applies an object is known.
const INVENTORY_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// Time after which objects that cannot be deleted are left, so that the Instance can go.
pub(super) const GIVE_UP: SignedDuration = SignedDuration::from_mins(5);

/// Returns the plan that adds the finalizer, if a write is the first that needs it. Nothing else is
/// written before it.
pub(super) fn finalizer(observed: &Observed, writes: &[ObjectWrite]) -> Option<Plan> {
    let is_needed = |write: &ObjectWrite| {
        matches!(write, ObjectWrite::Apply { .. }) && write.id().namespace.is_empty()
    };
    if observed.has(Finalizer::ClusterObjects) || !writes.iter().any(is_needed) {
        return None;
    }
    let change = Some(InstanceChange::AddFinalizer(Finalizer::ClusterObjects));
    Some(Plan { change, status: observed.status.clone(), ..Plan::default() })
}

/// Holds a plan back until the stored inventory has the cluster-scoped objects that it applies. Nothing else
/// would know of them if the operator was killed before it has written the status.
pub(super) fn record_first(observed: &Observed, mut plan: Plan) -> Plan {
    let stored = &observed.stored.inventory;
    let new = plan.writes.iter().filter_map(|write| intended(write, stored));
    let new: Vec<InventoryEntry> = new.collect();
    if new.is_empty() {
        return plan;
    }
    for new in new {
        // A status that is not stored yet may have it.
        if entry(&plan.status.inventory, &id_of(&new)).is_none() {
            plan.status.inventory.push(new);
        }
    }
    plan.writes.clear();
    plan.needs = Needs::default();
    plan.is_status_first = true;
    plan
}

/// Entry of a cluster-scoped object that is to be applied and is not in this inventory. It has no UID.
fn intended(write: &ObjectWrite, inventory: &[InventoryEntry]) -> Option<InventoryEntry> {
    let ObjectWrite::Apply { task, .. } = write else { return None };
    let id = write.id();
    let is_new = id.namespace.is_empty() && entry(inventory, &id).is_none();
    is_new.then(|| InventoryEntry { task: task.clone(), ..entry_of(&id) })
}

/// Deletes what only an Instance that is being deleted has applied, and then removes the finalizer.
pub(super) fn remove(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan { status: observed.status.clone(), ..Plan::default() };
    if !observed.has(Finalizer::ClusterObjects) {
        return plan;
    }
    let (mut failures, mut is_early) = (Vec::new(), false);
    for entry in observed.status.inventory.iter().filter(|entry| entry.namespace.is_empty()) {
        match next(entry, observed, now) {
            Next::Read => drop(plan.needs.metadata.insert(id_of(entry))),
            Next::Delete { uid } => plan.writes.push(ObjectWrite::Delete { id: id_of(entry), uid }),
            Next::Wait => is_early = true,
            Next::Failed(failure) => failures.push(failure),
            Next::Leave => {}
        }
    }
    if is_early {
        plan.requeue_after = INVENTORY_DELAY.try_into().ok();
    }
    let is_over = age(observed, now).is_some_and(|age| age > GIVE_UP);
    if plan.needs.is_empty() && plan.writes.is_empty() && !is_early {
        if failures.is_empty() || is_over {
            plan.change = Some(InstanceChange::RemoveFinalizer(Finalizer::ClusterObjects));
        }
        if !failures.is_empty() {
            let message = failures.join("; ");
            status::report_objects_remain(&mut plan.status, &message, now);
            if is_over {
                plan.events.push(reasons::CLUSTER_OBJECTS_LEFT.with(message));
            }
        }
    }
    plan
}

/// What happens next to an object.
enum Next {
    Read,
    Delete {
        uid: String,
    },
    /// It is not known yet whether another Instance applies it.
    Wait,
    Failed(String),
    /// It is gone or another one, or stays.
    Leave,
}

fn next(entry: &InventoryEntry, observed: &Observed, now: Timestamp) -> Next {
    let id = id_of(entry);
    if observed.applied_by_others.contains(&id) {
        return Next::Leave;
    }
    let is_intended = entry.uid.is_empty();
    match observed.failures.get(&id) {
        // It was hardly applied either.
        Some(_) if is_intended => return Next::Leave,
        Some(failure) => return Next::Failed(format!("{id}: {failure}")),
        None => {}
    }
    let live = match observed.metadata_of(&id) {
        None => return Next::Read,
        Some(None) => return Next::Leave,
        Some(Some(live)) => live,
    };
    let (uid, is_last) =
        (text(live, "/metadata/uid").to_owned(), is_last_applied_by(live, observed));
    let is_other = if is_intended { !is_last } else { uid != entry.uid };
    if is_other || is_deleted(live) || is_kept(&id, live) {
        return Next::Leave;
    }
    let is_early = age(observed, now).is_some_and(|age| age < INVENTORY_DELAY);
    if is_early && !is_last { Next::Wait } else { Next::Delete { uid } }
}

/// Returns whether a run of this Instance changed an object last.
fn is_last_applied_by(live: &Value, observed: &Observed) -> bool {
    let Some(uid) = annotation(live, RUN) else { return false };
    let plans = observed.status.plan_status.values().map(|plan| plan.uid.as_str());
    let history = observed.status.history.iter().map(|run| run.uid.as_str());
    plans.chain(history).any(|known| known == uid)
}

/// Time since the deletion was requested.
pub(super) fn age(observed: &Observed, now: Timestamp) -> Option<SignedDuration> {
    Some(now.duration_since(observed.deleted_at?))
}
