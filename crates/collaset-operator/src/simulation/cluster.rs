//! An API server, as far as the operator can tell.

use std::collections::BTreeMap;

use podops_runtime::write::{Change, Outcome, Target, Write};
use serde_json::{Value, json};

/// The objects of one namespace, by kind and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    objects: BTreeMap<(&'static str, String), Value>,
    version: u64,
    uids: u64,
    /// Why Pods of this image are refused.
    pub(super) refuses: Option<(String, String)>,
}

impl Cluster {
    pub(super) fn get(&self, plural: &'static str, name: &str) -> Option<&Value> {
        self.objects.get(&(plural, name.to_owned()))
    }

    pub(super) fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((kind, _), _)| *kind == plural).map(|(_, object)| object)
    }

    /// How often anything changed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Makes an object.
    pub(super) fn put(&mut self, plural: &'static str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        if plural == "pods" {
            object["metadata"]["generation"] = json!(1);
        }
        object["metadata"]["namespace"] = json!("ns");
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.store(plural, &name, object);
    }

    /// Changes an object that is there, if the change is one; one that is let go of by everybody and
    /// is to be deleted goes.
    pub(super) fn change(&mut self, plural: &'static str, name: &str, by: impl FnOnce(&mut Value)) {
        let mut object = self.get(plural, name).cloned().expect("it is there");
        by(&mut object);
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
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let key = (plural, name.to_owned());
        let ends = !object["metadata"]["deletionTimestamp"].is_null() && !held;
        // A Pod's end is its kubelet's business, a claim's that of who protects it.
        if ends && plural == "collasets" {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, object);
        }
    }

    /// Takes an object away.
    pub(super) fn remove(&mut self, plural: &'static str, name: &str) {
        self.version += 1;
        self.objects.remove(&(plural, name.to_owned()));
    }

    /// Asks for an object's deletion.
    pub(super) fn delete(&mut self, plural: &'static str, name: &str) {
        if matches!(plural, "pods" | "persistentvolumeclaims" | "collasets") {
            self.change(plural, name, |object| {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            });
        } else {
            self.remove(plural, name);
        }
    }

    /// Carries out a write, or refuses it, as the API server would.
    pub(super) fn apply(&mut self, write: &Write) -> Outcome {
        let Target { resource, name, .. } = write.target();
        let plural = resource.plural;
        let found = self.get(plural, name).cloned();
        match write {
            Write::Create(_, body) | Write::DryRunCreate(_, body) => {
                let image = body["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
                if let Some((_, why)) = self.refuses.as_ref().filter(|(bad, _)| bad == image) {
                    return Outcome::Rejected(why.clone());
                }
                if found.is_some() {
                    return Outcome::AlreadyExists;
                }
                if matches!(write, Write::Create(..)) {
                    self.put(plural, body.clone());
                }
            }
            Write::Delete { uid, version, .. } => {
                let Some(found) = found else { return Outcome::Done(None) };
                let known = &found["metadata"];
                let other = known["uid"] != json!(uid)
                    || version.as_ref().is_some_and(|v| known["resourceVersion"] != json!(v));
                if other {
                    return Outcome::Conflict;
                }
                self.delete(plural, name);
            }
            Write::Patch(_, change) => {
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

/// Applies a patch; whether its conditions were met.
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
            // What is to be removed may be gone; the server refuses the whole patch then, too.
            let done = tests && json_patch::patch(&mut changed, &json_patch::Patch(rest)).is_ok();
            if done {
                *object = changed;
            }
            done
        }
        Change::Merge(body) => {
            is_meant(object, body) && {
                json_patch::merge(object, body);
                true
            }
        }
        Change::Strategic(body) => {
            is_meant(object, body) && {
                merge(object, body, "");
                true
            }
        }
    }
}

/// Whether UID and version, where a patch names them, are the object's.
fn is_meant(object: &Value, body: &Value) -> bool {
    ["uid", "resourceVersion"].into_iter().all(|field| {
        let wanted = &body["metadata"][field];
        wanted.is_null() || *wanted == object["metadata"][field]
    })
}

/// Kubernetes' strategic merge, for the two lists that the operator merges.
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
                    Some(place) if change["$patch"] == "delete" => drop(items.remove(place)),
                    Some(place) => merge(&mut items[place], change, ""),
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
