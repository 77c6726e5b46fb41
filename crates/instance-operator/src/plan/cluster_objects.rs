//! Cluster-scoped objects of an Instance: a finalizer deletes them, because no owner reference can.
//! Several Instances may apply the same object; the last Instance deletes it.

use jiff::{SignedDuration, Timestamp};
use podops_api::kudo::InventoryEntry;
use serde_json::Value;

use super::{outcome::Plan, status};
use crate::{
    object::{annotation, enhance::RUN, is_deleted, retention::is_kept, text},
    object_write::{Needs, ObjectWrite, entry, entry_of, id_of},
    reasons,
    schedule::InstanceChange,
    view::{Finalizer, Observed},
};

/// Time after which the inventory of every Instance that applies an object is observed.
const INVENTORY_DELAY: SignedDuration = SignedDuration::from_secs(10);
/// Time after which objects that cannot be deleted are left in the cluster, so that the Instance is
/// deleted.
pub(super) const GIVE_UP: SignedDuration = SignedDuration::from_mins(5);

/// Returns a plan that only adds the finalizer, before the first apply of a cluster-scoped object;
/// `None` if the finalizer is present or not needed.
pub(super) fn finalizer(observed: &Observed, writes: &[ObjectWrite]) -> Option<Plan> {
    if observed.has(Finalizer::ClusterObjects) || !writes.iter().any(applies_cluster_scoped) {
        return None;
    }
    let change = Some(InstanceChange::AddFinalizer(Finalizer::ClusterObjects));
    Some(Plan { change, status: observed.status.clone(), ..Plan::default() })
}

fn applies_cluster_scoped(write: &ObjectWrite) -> bool {
    matches!(write, ObjectWrite::Apply { .. }) && write.id().namespace.is_empty()
}

/// Postpones the writes of a plan until the stored inventory has the cluster-scoped objects that
/// they apply. Otherwise, an operator killed before the status write would leave objects without a
/// record.
pub(super) fn record_first(observed: &Observed, mut plan: Plan) -> Plan {
    let stored = &observed.stored.inventory;
    let new = plan.writes.iter().filter_map(|write| intended(write, stored));
    let new: Vec<InventoryEntry> = new.collect();
    if new.is_empty() {
        return plan;
    }
    for new in new {
        // A pending status may already have the entry.
        if entry(&plan.status.inventory, &id_of(&new)).is_none() {
            plan.status.inventory.push(new);
        }
    }
    plan.writes.clear();
    plan.needs = Needs::default();
    plan.is_status_first = true;
    plan
}

/// Entry without UID, for a cluster-scoped object to be applied that is not in this inventory;
/// `None` for other writes.
fn intended(write: &ObjectWrite, inventory: &[InventoryEntry]) -> Option<InventoryEntry> {
    let ObjectWrite::Apply { task, .. } = write else { return None };
    let id = write.id();
    let is_new = id.namespace.is_empty() && entry(inventory, &id).is_none();
    is_new.then(|| InventoryEntry { task: task.clone(), ..entry_of(&id) })
}

/// Deletes the cluster-scoped objects that no other Instance applies, then removes the finalizer.
pub(super) fn remove(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan { status: observed.status.clone(), ..Plan::default() };
    if !observed.has(Finalizer::ClusterObjects) {
        return plan;
    }
    let mut failures = Vec::new();
    let mut is_early = false;
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

/// Next step for an object.
enum Next {
    Read,
    Delete {
        uid: String,
    },
    /// Another Instance that applies the object may not be observed yet.
    Wait,
    Failed(String),
    /// The object does not exist, is not the recorded object, or must be kept.
    Leave,
}

fn next(entry: &InventoryEntry, observed: &Observed, now: Timestamp) -> Next {
    let id = id_of(entry);
    if observed.applied_by_others.contains(&id) {
        return Next::Leave;
    }
    let is_intended = entry.uid.is_empty();
    match observed.failures.get(&id) {
        // An object whose request fails was probably never applied.
        Some(_) if is_intended => return Next::Leave,
        Some(failure) => return Next::Failed(format!("{id}: {failure}")),
        None => {}
    }
    let live = match observed.metadata_of(&id) {
        None => return Next::Read,
        Some(None) => return Next::Leave,
        Some(Some(live)) => live,
    };
    let uid = text(live, "/metadata/uid").to_owned();
    let is_last = is_last_applied_by(live, observed);
    let is_other = if is_intended { !is_last } else { uid != entry.uid };
    if is_other || is_deleted(live) || is_kept(&id.object_type, live) {
        return Next::Leave;
    }
    let is_early = age(observed, now).is_some_and(|age| age < INVENTORY_DELAY);
    if is_early && !is_last { Next::Wait } else { Next::Delete { uid } }
}

/// Returns whether a run of this Instance was the last to change an object.
fn is_last_applied_by(live: &Value, observed: &Observed) -> bool {
    let Some(uid) = annotation(live, RUN) else { return false };
    let plans = observed.status.plan_status.values().map(|plan| plan.uid.as_str());
    let history = observed.status.history.iter().map(|run| run.uid.as_str());
    plans.chain(history).any(|known| known == uid)
}

/// Time since the deletion was requested; `None` if unknown.
pub(super) fn age(observed: &Observed, now: Timestamp) -> Option<SignedDuration> {
    Some(now.duration_since(observed.deleted_at?))
}
