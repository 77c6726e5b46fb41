//! Deletes objects that were removed from the templates: the tasks of a completed run applied them
//! earlier, but not in this run.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::kudo::{ExecutionStatus, InstancePlan, InventoryEntry, PlanStatus};
use serde_json::Value;

use crate::{
    object::{
        ObjectId, annotation,
        enhance::{INSTANCE, PLAN},
        graceful::{BeforeDeletion, before_deletion, is_scalable},
        is_deleted, label,
        retention::is_kept,
        text,
    },
    object_write::{Needs, ObjectWrite, id_of},
    plan_names::is_rollout,
    run,
    view::{Observed, Version},
};

/// Work that remains before a run is complete.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// Needed reads.
    pub(super) needs: Needs,
    /// Workloads with terminating Pods, and why these wait.
    pub(super) waits: BTreeMap<ObjectId, String>,
    /// Deletions.
    pub(super) writes: Vec<ObjectWrite>,
    /// Objects to remove from the inventory.
    pub(super) forgotten: BTreeSet<ObjectId>,
    /// Failed deletions; the next run retries them.
    pub(super) failures: Vec<String>,
}

/// Run whose steps are complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed<'a> {
    pub(super) version: &'a Version,
    pub(super) plan: &'a InstancePlan,
    pub(super) status: &'a PlanStatus,
    /// Identity of the run.
    pub(super) run: &'a str,
}

/// Decides which objects to delete.
pub(super) fn prune(observed: &Observed, completed: Completed<'_>) -> Pruning {
    let mut pruning = Pruning::default();
    let inventory = &observed.status.inventory;
    // An object in another version of an API is the same object.
    let applied = inventory.iter().filter(|entry| completed.has_applied(entry));
    let applied: BTreeSet<&str> = applied.map(|entry| entry.uid.as_str()).collect();
    let tasks = completed.tasks();
    for entry in inventory {
        let is_stale = tasks.contains(entry.task.as_str()) && !completed.has_applied(entry);
        if is_stale && !applied.contains(entry.uid.as_str()) {
            pruning.add(entry, observed, completed.status);
        }
    }
    pruning
}

impl Completed<'_> {
    fn has_applied(&self, entry: &InventoryEntry) -> bool {
        run::is_of_run(&entry.run, self.run)
    }

    /// Completed tasks that apply objects; tasks of a failed step are not completed, even if the
    /// run continued.
    fn tasks(&self) -> BTreeSet<&str> {
        let mut tasks = BTreeSet::new();
        for (phase, phase_status) in self.plan.phases.iter().zip(&self.status.phases) {
            for (step, step_status) in phase.steps.iter().zip(&phase_status.steps) {
                if step_status.status == ExecutionStatus::Complete {
                    tasks.extend(step.tasks.iter().map(String::as_str));
                }
            }
        }
        tasks.retain(|name| {
            let task = self.version.task(name);
            task.is_some_and(|task| matches!(task.kind.as_str(), "Apply" | "Toggle"))
        });
        tasks
    }
}

impl Pruning {
    fn add(&mut self, entry: &InventoryEntry, observed: &Observed, plan: &PlanStatus) {
        let id = id_of(entry);
        if let Some(failure) = observed.failures.get(&id) {
            self.failures.push(format!("{id}: {failure}"));
            return;
        }
        let is_scalable = is_scalable(&id.object_type);
        let live = if is_scalable { observed.objects.get(&id) } else { observed.metadata_of(&id) };
        match live {
            None if is_scalable => drop(self.needs.objects.insert(id)),
            None => drop(self.needs.metadata.insert(id)),
            Some(None) => drop(self.forgotten.insert(id)),
            // An entry without UID is for an object that was about to be applied.
            Some(Some(live))
                if !entry.uid.is_empty() && text(live, "/metadata/uid") != entry.uid =>
            {
                self.forgotten.insert(id);
            }
            Some(Some(live)) if is_deleted(live) => {
                self.forgotten.insert(id);
            }
            Some(Some(live)) if observed.lags_behind(live) => {
                self.failures.push(format!("{id} was changed for a later generation"));
            }
            Some(Some(_)) if observed.applied_by_others.contains(&id) => {
                self.forgotten.insert(id);
            }
            // Another Instance may have taken over the object.
            Some(Some(live)) => {
                let is_own = label(live, INSTANCE) == Some(observed.name.as_str());
                if is_own && may_be_deleted(&id, live, &plan.name) {
                    self.delete(id, live);
                }
            }
        }
    }

    /// Deletes an object; a workload whose Pods are under control is deleted gracefully.
    fn delete(&mut self, id: ObjectId, live: &Value) {
        let uid = text(live, "/metadata/uid").to_owned();
        match before_deletion(live, None) {
            BeforeDeletion::Nothing => self.writes.push(ObjectWrite::Delete { id, uid }),
            BeforeDeletion::Scale => self.writes.push(ObjectWrite::ScaleToZero { id, uid }),
            BeforeDeletion::Wait(reason) => drop(self.waits.insert(id, reason)),
        }
    }
}

/// Returns whether an object may be deleted once its template is removed.
fn may_be_deleted(id: &ObjectId, live: &Value, plan: &str) -> bool {
    // A template may depend on the name of the plan.
    let is_of_plan = annotation(live, PLAN)
        .is_some_and(|known| known == plan || is_rollout(known) && is_rollout(plan));
    is_of_plan && !is_kept(&id.object_type, live)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    /// Prunes after a completed run `new`. Its task applied the object `a` in these API versions
    /// and runs; the live object has this metadata.
    fn pruned(inventory: &[(&str, &str)], live: &Value) -> Pruning {
        let plan =
            json!({ "phases": [{ "name": "p", "steps": [{ "name": "s", "tasks": ["t"] }] }] });
        let spec = json!({
            "tasks": [{ "name": "t", "kind": "Apply", "spec": { "resources": ["a"] } }],
            "plans": { "deploy": plan },
        });
        let steps = json!([{ "name": "s", "status": "COMPLETE" }]);
        let status = json!({ "name": "deploy", "phases": [{ "name": "p", "steps": steps }] });
        let status: PlanStatus = serde_json::from_value(status).unwrap();
        let version = Version { spec: serde_json::from_value(spec).unwrap(), ..Version::default() };
        let mut observed = Observed { name: "app".to_owned(), ..Observed::default() };
        for (api_version, run) in inventory {
            let entry = InventoryEntry {
                task: "t".to_owned(),
                api_version: (*api_version).to_owned(),
                kind: "Thing".to_owned(),
                name: "a".to_owned(),
                uid: "uid".to_owned(),
                run: (*run).to_owned(),
                ..InventoryEntry::default()
            };
            let live = json!({ "metadata": live });
            observed.metadata.insert(id_of(&entry), Some(Arc::new(live)));
            observed.status.inventory.push(entry);
        }
        let plan = &version.spec.plans["deploy"];
        prune(&observed, Completed { version: &version, plan, status: &status, run: "new" })
    }

    fn metadata(uid: &str, instance: &str) -> Value {
        json!({ "uid": uid, "labels": { INSTANCE: instance }, "annotations": { PLAN: "deploy" } })
    }

    #[test]
    fn another_version_of_an_api_is_the_same_object() {
        let live = metadata("uid", "app");
        assert_eq!(pruned(&[("x/v1", "old")], &live).writes.len(), 1);
        let pruning = pruned(&[("x/v1", "old"), ("x/v2", "new")], &live);
        assert_eq!(pruning.writes, []);
        assert_eq!(pruned(&[("x/v1", "old"), ("x/v2", "new#2")], &live).writes, []);
    }

    #[test]
    fn an_object_that_another_client_recreated_is_forgotten() {
        let pruning = pruned(&[("x/v1", "old")], &metadata("another", "app"));
        assert_eq!((pruning.writes.len(), pruning.forgotten.len()), (0, 1));
    }

    #[test]
    fn an_object_that_another_instance_took_over_stays() {
        assert_eq!(pruned(&[("x/v1", "old")], &metadata("uid", "other")).writes, []);
    }
}
