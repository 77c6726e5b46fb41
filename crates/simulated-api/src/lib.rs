//! API server in memory: generations, resourceVersions, finalizers, preconditions and the patch types
//! that the operators use. For simulations of rollouts, in tests and in `kubectl podops simulate`.

mod patch;

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_client::write::{Outcome, Target, Write};
use serde_json::{Value, json};

use patch::patch;

/// Objects of one namespace, by plural and name.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    namespace: String,
    by_name: BTreeMap<(&'static str, String), Value>,
    version: u64,
    uids: u64,
    /// Simulated time.
    pub now: Timestamp,
}

/// Kinds whose objects have a deletion timestamp before they are removed.
const TERMINATING: [&str; 4] = ["pods", "persistentvolumeclaims", "collasets", "poddecorations"];

impl Objects {
    /// Returns an API server without objects.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..Self::default() }
    }

    /// Returns the namespace of the objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, plural: &'static str, name: &str) -> Option<&Value> {
        self.by_name.get(&(plural, name.to_owned()))
    }

    /// Returns the objects of a kind, ordered by name.
    pub fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.by_name.iter().filter(move |((kind, _), _)| *kind == plural).map(|(_, object)| object)
    }

    /// Returns the resourceVersion of the latest write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Stores an object as another API server returned it.
    pub fn import(&mut self, plural: &'static str, object: Value) {
        let metadata = &object["metadata"];
        let version = metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        self.version = self.version.max(version.unwrap_or_default());
        self.by_name.insert((plural, name_of(&object)), object);
    }

    /// Creates an object, with a new UID.
    pub fn put(&mut self, plural: &'static str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        if plural == "pods" {
            object["metadata"]["generation"] = json!(1);
            object["metadata"]["creationTimestamp"] = json!(self.now.to_string());
        }
        object["metadata"]["namespace"] = json!(self.namespace);
        self.store(plural, name_of(&object), object);
    }

    /// Updates an object if it exists; an update that changes nothing writes nothing. An object that is
    /// being deleted is removed with its last finalizer, except for Pods and claims.
    pub fn change(&mut self, plural: &'static str, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(known) = self.get(plural, name) else { return };
        let mut object = known.clone();
        edit(&mut object);
        if plural == "pods" && known["spec"] != object["spec"] {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        if *known != object {
            self.store(plural, name.to_owned(), object);
        }
    }

    fn store(&mut self, plural: &'static str, name: String, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let finalizers = object["metadata"]["finalizers"].as_array();
        let has_finalizers = finalizers.is_some_and(|f| !f.is_empty());
        let is_removable = !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers;
        // Pods are removed by their kubelet, claims once no Pod mounts them.
        if is_removable && matches!(plural, "collasets" | "poddecorations") {
            self.by_name.remove(&(plural, name));
        } else {
            self.by_name.insert((plural, name), object);
        }
    }

    /// Removes an object at once.
    pub fn remove(&mut self, plural: &'static str, name: &str) {
        self.version += 1;
        self.by_name.remove(&(plural, name.to_owned()));
    }

    /// Requests the deletion of an object: sets `deletionTimestamp` on the kinds that terminate
    /// gracefully, removes others at once.
    pub fn delete(&mut self, plural: &'static str, name: &str) {
        if TERMINATING.contains(&plural) {
            let now = self.now.to_string();
            self.change(plural, name, |object| {
                let at = &mut object["metadata"]["deletionTimestamp"];
                if at.is_null() {
                    *at = json!(now);
                }
            });
        } else {
            self.remove(plural, name);
        }
    }

    /// Applies a write as an API server would: it succeeds or conflicts.
    pub fn apply(&mut self, write: &Write) -> Outcome {
        let Target { resource, name, .. } = write.target();
        let plural = resource.plural;
        let found = self.get(plural, name).cloned();
        match write {
            Write::Create { .. } | Write::DryRunCreate { .. } if found.is_some() => {
                return Outcome::AlreadyExists;
            }
            Write::Create { body, .. } => self.put(plural, body.clone()),
            Write::DryRunCreate { .. } => {}
            Write::Delete { uid, version, .. } => {
                let Some(found) = found else { return Outcome::Done(None) };
                let known = &found["metadata"];
                let conflicts = known["uid"] != json!(uid)
                    || version.as_ref().is_some_and(|v| known["resourceVersion"] != json!(v));
                if conflicts {
                    return Outcome::Conflict;
                }
                self.delete(plural, name);
            }
            Write::Patch { change, .. } => {
                let Some(mut object) = found else { return Outcome::NotFound };
                if !patch(&mut object, change) {
                    return Outcome::Conflict;
                }
                self.change(plural, name, |known| *known = object);
            }
        }
        Outcome::Done(Some(self.version.to_string()))
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
