//! Writes as data: decided in pure code, executed by `shell::apply`.
//!
//! Each write is conditional on the state it was decided on, so that a decision on stale state
//! changes nothing, and each is idempotent.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use serde_json::{Value, json};

/// Kind of object, as in the path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural name in lower case.
    pub plural: &'static str,
}

impl Resource {
    /// Returns the path of the collection in one namespace.
    #[must_use]
    pub fn path(&self, namespace: &str) -> String {
        let Self { group, version, plural } = self;
        match *group {
            "" => format!("/api/{version}/namespaces/{namespace}/{plural}"),
            group => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
        }
    }
}

/// Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };

/// Object or subresource that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Kind of the object.
    pub resource: Resource,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Subresource; `None` for the object itself.
    pub subresource: Option<&'static str>,
}

impl Target {
    /// Returns the target of an object itself, without a subresource.
    #[must_use]
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        Self { resource, namespace: namespace.to_owned(), name: name.to_owned(), subresource: None }
    }

    /// Returns the target of a subresource of the object.
    #[must_use]
    pub fn subresource(self, subresource: &'static str) -> Self {
        Self { subresource: Some(subresource), ..self }
    }
}

impl Change {
    /// Returns the merge patch that replaces the status `reported` of the object with this UID. A
    /// merge patch keeps absent fields, so those that the new status does not have are null, at any
    /// depth.
    ///
    /// Conditional on the UID, not on the resourceVersion: a status has one writer, and it remains
    /// correct for its observedGeneration even if the spec changes meanwhile.
    pub fn status(uid: &str, reported: &impl Serialize, status: &impl Serialize) -> Self {
        let mut body = json!(status);
        clear_removed(&json!(reported), &mut body);
        Self::Merge(json!({ "metadata": { "uid": uid }, "status": body }))
    }
}

/// Sets the fields of objects in `new` to null that only `old` has.
fn clear_removed(old: &Value, new: &mut Value) {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) else { return };
    for (field, value) in old {
        clear_removed(value, new.entry(field.clone()).or_insert(Value::Null));
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.resource.plural, self.namespace, self.name)?;
        self.subresource.map_or(Ok(()), |sub| write!(f, " ({sub})"))
    }
}

/// Patch of an object, with its precondition.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// JSON merge patch (RFC 7386), conditional on the `metadata.resourceVersion` in it.
    Merge(Value),
    /// Strategic merge patch, which merges lists by key; conditional as [`Change::Merge`].
    Strategic(Value),
    /// JSON Patch (RFC 6902), conditional on its `test` operations.
    Json(json_patch::Patch),
}

/// Handling by the API server of fields that the kind does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drops them, and returns a warning.
    Warn,
    /// Rejects the object, and names them.
    Strict,
}

/// One API request. Each is idempotent.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates the object; returns [`Outcome::AlreadyExists`] if the name is taken.
    Create {
        /// Object to create.
        target: Target,
        /// The whole object.
        body: Value,
        /// How unknown fields are treated.
        validation: FieldValidation,
    },
    /// Creates the object as a dry run: it is strictly validated by the API server, but not stored.
    DryRunCreate {
        /// Object to create.
        target: Target,
        /// The whole object.
        body: Value,
    },
    /// Patches the object.
    Patch {
        /// Object to patch.
        target: Target,
        /// The change and its precondition.
        change: Change,
    },
    /// Deletes the object with this UID; `NotFound` counts as done.
    Delete {
        /// Object to delete.
        target: Target,
        /// UID precondition, so that a new object with the same name is not deleted.
        uid: String,
        /// resourceVersion precondition, for decisions that depend on the object's state.
        version: Option<String>,
    },
}

impl Write {
    /// Returns the object that is written.
    #[must_use]
    pub fn target(&self) -> &Target {
        match self {
            Self::Create { target, .. }
            | Self::DryRunCreate { target, .. }
            | Self::Patch { target, .. }
            | Self::Delete { target, .. } => target,
        }
    }

    /// Returns the verb of the request, as a metric label.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::DryRunCreate { .. } => "dry_run_create",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
        }
    }
}

/// Result of a request to which the API server responded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success; contains the new resourceVersion, if the response has one.
    Done(Option<String>),
    /// Not created, because an object with this name exists.
    AlreadyExists,
    /// Not done, because the object has changed since the decision: reconcile again.
    Conflict,
    /// Not done, because the object does not exist.
    NotFound,
    /// Rejected by the API server with this message.
    Rejected(String),
}

impl Outcome {
    /// Returns the class of the outcome, as a metric label: a closed set.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Done(_) => "success",
            Self::AlreadyExists => "already_exists",
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::Rejected(_) => "rejected",
        }
    }
}

/// Builder for a JSON Patch.
#[derive(Clone, Debug, Default)]
pub struct JsonPatch(Vec<json_patch::PatchOperation>);

impl JsonPatch {
    /// Tests that the value at `path` is `value`; `null` tests that it is absent.
    #[must_use]
    pub fn test(self, path: &[&str], value: impl Into<Value>) -> Self {
        let value = value.into();
        self.with(json_patch::PatchOperation::Test(json_patch::TestOperation {
            path: pointer(path),
            value,
        }))
    }

    /// Sets the value at `path`.
    #[must_use]
    pub fn add(self, path: &[&str], value: impl Into<Value>) -> Self {
        let value = value.into();
        self.with(json_patch::PatchOperation::Add(json_patch::AddOperation {
            path: pointer(path),
            value,
        }))
    }

    /// Replaces the value at `path`, which must exist; in a list, unlike [`Self::add`], which
    /// inserts.
    #[must_use]
    pub fn replace(self, path: &[&str], value: impl Into<Value>) -> Self {
        let value = value.into();
        self.with(json_patch::PatchOperation::Replace(json_patch::ReplaceOperation {
            path: pointer(path),
            value,
        }))
    }

    /// Sets each label to its value, or removes it if the value is `None`; a label to remove must
    /// exist.
    #[must_use]
    pub fn change_labels(self, changes: &BTreeMap<String, Option<String>>) -> Self {
        self.change_map("labels", changes)
    }

    /// As [`Self::change_labels`], with annotations.
    #[must_use]
    pub fn change_annotations(self, changes: &BTreeMap<String, Option<String>>) -> Self {
        self.change_map("annotations", changes)
    }

    fn change_map(self, field: &str, changes: &BTreeMap<String, Option<String>>) -> Self {
        changes.iter().fold(self, |patch, (key, value)| {
            let path = ["metadata", field, key.as_str()];
            match value {
                Some(value) => patch.add(&path, value.as_str()),
                None => patch.remove(&path),
            }
        })
    }

    /// Removes the value at `path`, which must exist.
    #[must_use]
    pub fn remove(self, path: &[&str]) -> Self {
        self.with(json_patch::PatchOperation::Remove(json_patch::RemoveOperation {
            path: pointer(path),
        }))
    }

    /// Builds the patch.
    #[must_use]
    pub fn build(self) -> Change {
        Change::Json(self.into())
    }

    fn with(mut self, operation: json_patch::PatchOperation) -> Self {
        self.0.push(operation);
        self
    }
}

impl From<JsonPatch> for json_patch::Patch {
    fn from(patch: JsonPatch) -> Self {
        Self(patch.0)
    }
}

fn pointer(path: &[&str]) -> json_patch::jsonptr::PointerBuf {
    json_patch::jsonptr::PointerBuf::from_tokens(path.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_pointers_escape_label_keys() {
        let Change::Json(patch) =
            JsonPatch::default().test(&["metadata", "labels", "a.b/c"], "1").build()
        else {
            unreachable!("build returns a JSON patch")
        };
        let text = serde_json::to_string(&patch).unwrap();
        assert_eq!(text, r#"[{"op":"test","path":"/metadata/labels/a.b~1c","value":"1"}]"#);
    }

    #[test]
    fn the_path_of_the_core_group_starts_with_api() {
        assert_eq!(PODS.path("ns"), "/api/v1/namespaces/ns/pods");
    }
}
