//! A cluster without API server, for tests: objects, one Instance and its OperatorVersion, and an
//! operator that plans until nothing remains to be done.

mod random;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::kudo::{InstanceSpec, InstanceStatus, PlanExecution};
use podops_client::event::ObjectEvent;
use serde_json::{Value, json};

use crate::{
    object::{ObjectId, Scope, file::FileRead, object_type, text},
    object_write::{ObjectWrite, record},
    plan::{self, Plan},
    run::shown,
    schedule::InstanceChange,
    view::{Observed, Version},
};

/// Turns of the operator after which a reconcile is considered endless.
const TURNS_MAX: usize = 100;

/// Served types, with their scope.
const SERVED: [(&str, &str, Scope); 9] = [
    ("v1", "Pod", Scope::Namespaced),
    ("v1", "ConfigMap", Scope::Namespaced),
    ("v1", "Secret", Scope::Namespaced),
    ("v1", "Namespace", Scope::Cluster),
    ("apps/v1", "Deployment", Scope::Namespaced),
    ("batch/v1", "Job", Scope::Namespaced),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", Scope::Cluster),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", Scope::Cluster),
    ("kudo.dev/v1beta1", "Instance", Scope::Namespaced),
];

pub(crate) struct World {
    /// Instance as stored, and its OperatorVersion.
    pub(crate) observed: Observed,
    /// Objects by identity.
    pub(crate) objects: BTreeMap<ObjectId, Value>,
    /// Served types in addition to [`SERVED`].
    pub(crate) served: Vec<(String, String)>,
    /// API version whose discovery fails.
    pub(crate) undiscovered: Option<String>,
    /// Objects whose changes the API server rejects.
    pub(crate) rejected: Vec<ObjectId>,
    /// Objects whose content the API server does not allow to change.
    pub(crate) immutable: Vec<ObjectId>,
    /// True if deleted objects exist until [`World::finish_deletions`].
    pub(crate) has_slow_deletions: bool,
    /// Changes of objects, in order: `apply ConfigMap default/a`.
    pub(crate) log: Vec<String>,
    /// Events, in order: reason and message.
    pub(crate) events: Vec<String>,
    /// Number of status writes.
    pub(crate) status_writes: usize,
    /// The last plan.
    pub(crate) last: Plan,
    now: Timestamp,
    next_uid: u64,
    /// Number of files that were read.
    reads: usize,
}

impl World {
    /// Returns a new Instance `app` in the namespace `default`, of an OperatorVersion with this
    /// content.
    pub(crate) fn new(version: &Value, parameters: &Value) -> Self {
        let mut world = Self {
            observed: Observed {
                namespace: "default".to_owned(),
                name: "app".to_owned(),
                uid: "instance-uid".into(),
                generation: 1,
                ..Observed::default()
            },
            objects: BTreeMap::new(),
            served: Vec::new(),
            undiscovered: None,
            rejected: Vec::new(),
            immutable: Vec::new(),
            has_slow_deletions: false,
            log: Vec::new(),
            events: Vec::new(),
            status_writes: 0,
            last: Plan::default(),
            now: Timestamp::UNIX_EPOCH,
            next_uid: 0,
            reads: 0,
        };
        world.observed.spec = serde_json::from_value(json!({
            "operatorVersion": { "name": "op-1" }, "parameters": parameters,
        }))
        .unwrap();
        world.set_version("v1/1", version);
        world
    }

    /// Replaces the content of the OperatorVersion.
    pub(crate) fn set_version(&mut self, identity: &str, content: &Value) {
        let mut spec = content.clone();
        spec["operator"] = json!({ "name": "op" });
        self.observed.version = Some(Arc::new(Version {
            namespace: "default".to_owned(),
            identity: identity.to_owned(),
            spec: serde_json::from_value(spec).unwrap(),
        }));
    }

    /// Changes the spec, as a user does.
    pub(crate) fn edit(&mut self, edit: impl FnOnce(&mut InstanceSpec)) {
        edit(&mut self.observed.spec);
        self.observed.generation += 1;
    }

    /// Sets a parameter, as a user does.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.edit(|spec| drop(spec.parameters.insert(name.to_owned(), value.to_owned())));
    }

    /// Advances the clock.
    pub(crate) fn sleep(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Requests a run of a plan, as a user does.
    pub(crate) fn request(&mut self, plan: &str, uid: &str) {
        let request = PlanExecution {
            plan_name: plan.to_owned(),
            uid: uid.to_owned(),
            ..PlanExecution::default()
        };
        self.edit(|spec| spec.plan_execution = request);
    }

    pub(crate) fn delete(&mut self) {
        self.observed.deleting = true;
        self.observed.deleted_at = Some(self.now);
        self.observed.generation += 1;
    }

    /// Sets fields of the status of an object, as its controller does.
    pub(crate) fn report(&mut self, kind: &str, name: &str, status: Value) {
        let object =
            self.objects.iter_mut().find(|(id, _)| id.object_type.kind == kind && id.name == name);
        object.unwrap().1["status"] = status;
    }

    /// Like [`report`](Self::report), if the object exists.
    pub(crate) fn report_if(&mut self, kind: &str, name: &str, status: Value) {
        if self.object(kind, name).is_some() {
            self.report(kind, name, status);
        }
    }

    /// Reconciles until nothing remains to be done, and writes the status.
    pub(crate) fn reconcile(&mut self) {
        for _ in 0..TURNS_MAX {
            let progressed = self.turn(usize::MAX);
            if !progressed {
                return;
            }
        }
        panic!("the reconcile does not end: {:#?}", self.last);
    }

    /// Reconciles once; the operator is killed after this many writes of objects, before the status
    /// is written. Returns whether more remains to be done.
    pub(crate) fn turn(&mut self, kill_after: usize) -> bool {
        self.turn_with(kill_after, &mut |_, _| {})
    }

    /// Like [`turn`](Self::turn); calls `check` before each write with the status at that time.
    pub(crate) fn turn_with(
        &mut self,
        kill_after: usize,
        check: &mut dyn FnMut(&ObjectWrite, &InstanceStatus),
    ) -> bool {
        let mut observed = self.observed.clone();
        observed.stored = observed.status.clone();
        let mut changes_left = kill_after;
        let mut events = Vec::new();
        for _ in 0..TURNS_MAX {
            self.now += SignedDuration::from_secs(1);
            self.last = plan::plan(&observed, self.now);
            events.append(&mut self.last.events);
            observed.status = self.last.status.clone();
            if let Some(change) = self.last.change.clone().filter(InstanceChange::is_first) {
                if matches!(change, InstanceChange::RemoveFinalizer(_)) {
                    self.note(events);
                }
                change.apply_to(&mut self.observed);
                return true;
            }
            if !self.last.needs.is_empty() {
                self.read(&mut observed);
            } else if self.last.writes.is_empty() {
                break;
            }
            let mut failed_tasks = BTreeSet::new();
            for write in std::mem::take(&mut self.last.writes) {
                if changes_left == 0 {
                    return true;
                }
                if write.task().is_some_and(|task| failed_tasks.contains(task)) {
                    continue;
                }
                changes_left -= 1;
                check(&write, &self.last.status);
                if let Some(message) = self.rejection(&write) {
                    observed.failures.insert(write.id(), message.to_owned());
                    failed_tasks.extend(write.task().map(ToOwned::to_owned));
                    continue;
                }
                let response = self.apply(&write);
                record(&mut observed.status, &write, response.as_ref());
                observed.objects.insert(write.id(), response.map(Arc::new));
                if changes_left == 0 {
                    return true;
                }
            }
        }
        self.note(events);
        let is_changed = self.observed.status != observed.status;
        if is_changed {
            self.status_writes += 1;
            self.observed.status = observed.status;
        }
        let change = self.last.change.clone();
        if let Some(change) = &change {
            change.apply_to(&mut self.observed);
        }
        is_changed || change.is_some()
    }

    fn note(&mut self, events: Vec<ObjectEvent>) {
        let shown = events.into_iter().map(|e| format!("{}: {}", e.reason.name, e.message));
        self.events.extend(shown);
    }

    fn read(&mut self, observed: &mut Observed) {
        for object_type in &self.last.needs.types {
            if self.undiscovered.as_ref() == Some(&object_type.api_version) {
                let failure = "the server is unavailable".to_owned();
                observed.failures.insert(ObjectId::any_of(object_type), failure);
                continue;
            }
            let is_of = |api_version: &str, kind: &str| {
                object_type.api_version == api_version && object_type.kind == kind
            };
            let built_in = SERVED.iter().find(|(v, kind, _)| is_of(v, kind)).map(|found| found.2);
            let custom = self.served.iter().find(|(v, kind)| is_of(v, kind));
            let scope = built_in.or(custom.map(|_| Scope::Namespaced));
            observed.types.insert(object_type.clone(), scope);
        }
        for file in &self.last.needs.files {
            let content = format!("{} of {}", file.path, self.reads).into_bytes();
            self.reads += 1;
            self.log.push(format!("read {}", file.path));
            observed.files.insert(file.clone(), FileRead::Content(content));
        }
        for id in &self.last.needs.metadata {
            let metadata =
                self.objects.get(id).map(|object| json!({ "metadata": object["metadata"] }));
            observed.metadata.insert(id.clone(), metadata.map(Arc::new));
        }
        for id in &self.last.needs.objects {
            observed.objects.insert(id.clone(), self.objects.get(id).cloned().map(Arc::new));
        }
    }

    /// Returns why the API server rejects a write; `None` if accepted.
    fn rejection(&self, write: &ObjectWrite) -> Option<&'static str> {
        if self.rejected.contains(&write.id()) {
            return Some("not permitted");
        }
        self.is_immutable(write).then_some("spec.template: field is immutable")
    }

    fn is_immutable(&self, write: &ObjectWrite) -> bool {
        let ObjectWrite::Apply { object, .. } = write else { return false };
        let id = write.id();
        let live = self.objects.get(&id).filter(|_| self.immutable.contains(&id));
        live.is_some_and(|live| live["spec"] != object["spec"])
    }

    fn apply(&mut self, write: &ObjectWrite) -> Option<Value> {
        let id = write.id();
        match write {
            ObjectWrite::Apply { object, .. } => {
                self.log.push(format!("apply {id}"));
                let live = self.objects.get(&id);
                let mut stored = (**object).clone();
                let uid = live.map(|live| text(live, "/metadata/uid").to_owned());
                stored["metadata"]["uid"] = json!(uid.unwrap_or_else(|| {
                    self.next_uid += 1;
                    format!("uid-{}", self.next_uid)
                }));
                if let Some(status) = live.and_then(|live| live.get("status")) {
                    stored["status"] = status.clone();
                }
                self.objects.insert(id, stored.clone());
                Some(stored)
            }
            ObjectWrite::ScaleToZero { .. } => {
                self.log.push(format!("scale {id} to 0"));
                let live = self.objects.get_mut(&id)?;
                live["spec"]["replicas"] = json!(0);
                Some(live.clone())
            }
            ObjectWrite::Delete { uid, .. } => {
                self.log.push(format!("delete {id}"));
                let live = self.objects.get_mut(&id);
                let live = live.filter(|live| text(live, "/metadata/uid") == uid)?;
                if self.has_slow_deletions {
                    live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    return Some(live.clone());
                }
                self.objects.remove(&id);
                None
            }
        }
    }

    /// Removes the objects that are being deleted.
    pub(crate) fn finish_deletions(&mut self) {
        self.objects.retain(|_, object| object["metadata"].get("deletionTimestamp").is_none());
    }

    pub(crate) fn status(&self) -> &InstanceStatus {
        &self.observed.status
    }

    /// Status of a plan, such as `COMPLETE`.
    pub(crate) fn plan(&self, name: &str) -> String {
        let status = self.status().plan_status.get(name).map(|plan| plan.status);
        shown(status.unwrap_or_default())
    }

    /// Status and message of a step of the first plan that has the step.
    pub(crate) fn step(&self, name: &str) -> (String, String) {
        let phases = self.status().plan_status.values().flat_map(|plan| &plan.phases);
        let step = phases.flat_map(|phase| &phase.steps).find(|step| step.name == name).unwrap();
        (shown(step.status), step.message.clone())
    }

    /// Ended runs with plan and status, oldest first.
    pub(crate) fn runs(&self) -> Vec<String> {
        let runs = self.status().history.iter().rev();
        runs.map(|run| format!("{} {}", run.plan, shown(run.status))).collect()
    }

    /// A condition, such as `True ResourcesReady`.
    pub(crate) fn condition(&self, name: &str) -> String {
        let condition = self.status().conditions.iter().find(|c| c.type_ == name).unwrap();
        format!("{} {}", condition.status, condition.reason)
    }

    /// An object by kind and name.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<&Value> {
        let mut found = self.objects.iter();
        found
            .find(|(id, _)| id.object_type.kind == kind && id.name == name)
            .map(|(_, object)| object)
    }

    /// Adds an object, as another client does.
    pub(crate) fn add(&mut self, object: Value) {
        debug_assert!(!object_type(&object).kind.is_empty());
        self.objects.insert(ObjectId::of(&object), object);
    }
}

/// A template of a ConfigMap with this name and the parameter `P` as its data.
pub(crate) fn config_map(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  p: \"{{{{ .Params.P }}}}\"\n"
    )
}
