//! In-memory API server: generations, resourceVersions, finalizers, preconditions and the patch
//! types that the operator uses.

use std::collections::BTreeMap;

use podops_client::write::{Change, Outcome, Target, Write};
use serde_json::{Value, json};

/// Objects of one namespace, by plural and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    uids: u64,
    /// Simulated time, in seconds since the Unix epoch.
    pub(super) now: i64,
    /// Image whose Pods are rejected on create, and the error message.
    pub(super) rejected_image: Option<(String, String)>,
    /// Name of an object of which every patch is rejected.
    pub(super) rejected_patches: Option<String>,
}

impl Cluster {
    pub(super) fn get(&self, plural: &'static str, name: &str) -> Option<&Value> {
        self.objects.get(&(plural, name.to_owned()))
    }

    pub(super) fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((kind, _), _)| *kind == plural).map(|(_, object)| object)
    }

    /// resourceVersion of the latest write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Creates an object, with a new UID.
    pub(super) fn put(&mut self, plural: &'static str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        if plural == "pods" {
            object["metadata"]["generation"] = json!(1);
            let now = jiff::Timestamp::from_second(self.now).unwrap();
            object["metadata"]["creationTimestamp"] = json!(now.to_string());
        }
        object["metadata"]["namespace"] = json!("ns");
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.store(plural, &name, object);
    }

    /// Updates an existing object; a no-op update writes nothing. A CollaSet that is being deleted
    /// is removed with its last finalizer.
    ///
    /// # Panics
    ///
    /// If the object does not exist.
    pub(super) fn change(
        &mut self,
        plural: &'static str,
        name: &str,
        edit: impl FnOnce(&mut Value),
    ) {
        let mut object = self.get(plural, name).cloned().expect("the object exists");
        edit(&mut object);
        let known = self.get(plural, name);
        if plural == "pods" && known.is_some_and(|known| known["spec"] != object["spec"]) {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        if self.get(plural, name) != Some(&object) {
            self.store(plural, name, object);
        }
    }

    fn store(&mut self, plural: &'static str, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let finalizers = object["metadata"]["finalizers"].as_array();
        let has_finalizers = finalizers.is_some_and(|f| !f.is_empty());
        let key = (plural, name.to_owned());
        let is_removable = !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers;
        // Pods are removed by their kubelet, claims once no Pod mounts them.
        if is_removable && matches!(plural, "collasets" | "poddecorations") {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, object);
        }
    }

    /// Removes an object at once.
    pub(super) fn remove(&mut self, plural: &'static str, name: &str) {
        self.version += 1;
        self.objects.remove(&(plural, name.to_owned()));
    }

    /// Requests the deletion of an object: sets `deletionTimestamp` on the kinds that terminate
    /// gracefully, removes others at once.
    pub(super) fn delete(&mut self, plural: &'static str, name: &str) {
        if matches!(plural, "pods" | "persistentvolumeclaims" | "collasets" | "poddecorations") {
            self.change(plural, name, |object| {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        } else {
            self.remove(plural, name);
        }
    }

    /// Applies a write as the API server would: it succeeds, conflicts or is rejected.
    pub(super) fn apply(&mut self, write: &Write) -> Outcome {
        let Target { resource, name, .. } = write.target();
        let plural = resource.plural;
        let found = self.get(plural, name).cloned();
        match write {
            Write::Create { body, .. } | Write::DryRunCreate { body, .. } => {
                let image = body["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
                let rejected =
                    self.rejected_image.as_ref().filter(|(rejected, _)| rejected == image);
                if let Some((_, message)) = rejected {
                    return Outcome::Rejected(message.clone());
                }
                if found.is_some() {
                    return Outcome::AlreadyExists;
                }
                if matches!(write, Write::Create { .. }) {
                    self.put(plural, body.clone());
                }
            }
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
            Write::Patch { .. } if self.rejected_patches.as_ref() == Some(name) => {
                return Outcome::Rejected("patch rejected".to_owned());
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

/// Applies a patch if its preconditions hold. Returns whether it was applied.
fn patch(object: &mut Value, change: &Change) -> bool {
    match change {
        Change::Json(operations) => {
            let mut changed = object.clone();
            let tests = operations.0.iter().all(|operation| {
                let json_patch::PatchOperation::Test(test) = operation else { return true };
                test.path.resolve(object).unwrap_or(&Value::Null) == &test.value
            });
            let is_test =
                |o: &json_patch::PatchOperation| matches!(o, json_patch::PatchOperation::Test(_));
            let rest = operations.0.iter().filter(|o| !is_test(o)).cloned().collect();
            // Like the API server, reject the whole patch if a path to remove does not exist.
            let applied =
                tests && json_patch::patch(&mut changed, &json_patch::Patch(rest)).is_ok();
            if applied {
                *object = changed;
            }
            applied
        }
        Change::Merge(body) => {
            preconditions_hold(object, body) && {
                json_patch::merge(object, body);
                true
            }
        }
        Change::Strategic(body) => {
            preconditions_hold(object, body) && {
                merge(object, body, "");
                true
            }
        }
    }
}

/// Returns whether the UID and resourceVersion match the object's, where a patch specifies them.
fn preconditions_hold(object: &Value, body: &Value) -> bool {
    ["uid", "resourceVersion"].into_iter().all(|field| {
        let wanted = &body["metadata"][field];
        wanted.is_null() || *wanted == object["metadata"][field]
    })
}

/// Strategic merge patch: lists are merged by `name`, `ownerReferences` by `uid`.
fn merge(into: &mut Value, change: &Value, field: &str) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, change) in change {
                if change.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key.clone()).or_insert(Value::Null), change, key);
                }
            }
        }
        (into, Value::Array(changes)) => {
            let key = if field == "ownerReferences" { "uid" } else { "name" };
            let mut items = into.as_array().cloned().unwrap_or_default();
            for change in changes {
                let known = items.iter().position(|item| item[key] == change[key]);
                match known {
                    Some(index) if change["$patch"] == "delete" => drop(items.remove(index)),
                    Some(index) => merge(&mut items[index], change, ""),
                    None if change["$patch"] == "delete" => {}
                    None => items.push(change.clone()),
                }
            }
            *into = Value::Array(items);
        }
        (into, change) if change.is_object() => {
            *into = json!({});
            merge(into, change, field);
        }
        (into, change) => *into = change.clone(),
    }
}
