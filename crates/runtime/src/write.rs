//! A write, as data: decided in pure code, carried out by `shell::apply` alone.
//!
//! Each names what it was decided on, so that a decision on old knowledge changes nothing, and each
//! may be repeated: the second time it changes nothing.

use std::fmt;

use serde_json::Value;

/// A kind of object, as it stands in a request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The API version.
    pub version: &'static str,
    /// The lower-case plural.
    pub plural: &'static str,
}

impl Resource {
    /// The path of the collection in one namespace.
    #[must_use]
    pub fn path(&self, namespace: &str) -> String {
        let Self { group, version, plural } = self;
        match *group {
            "" => format!("/api/{version}/namespaces/{namespace}/{plural}"),
            group => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
        }
    }
}

/// One object, or a subresource of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The subresource, if it is not the object itself.
    pub subresource: Option<&'static str>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.resource.plural, self.namespace, self.name)?;
        self.subresource.map_or(Ok(()), |sub| write!(f, " ({sub})"))
    }
}

/// A change to an object, and what it is conditional on.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// RFC 7386, conditional on the `metadata.resourceVersion` in it.
    Merge(Value),
    /// Kubernetes' own, which merges lists by key; conditional as [`Change::Merge`].
    Strategic(Value),
    /// RFC 6902, conditional on its `test` operations.
    Json(json_patch::Patch),
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates the object; that one of its name is there already is an outcome of its own.
    Create(Target, Value),
    /// Asks whether the server would create the object; nothing is created.
    DryRunCreate(Target, Value),
    /// Changes the object.
    Patch(Target, Change),
    /// Deletes the object; that it is gone already counts as done.
    Delete {
        /// The object.
        target: Target,
        /// Guards against deleting a namesake.
        uid: String,
        /// The version that the decision was made on, where it was made on more than existence.
        version: Option<String>,
    },
}

impl Write {
    /// What is written to.
    #[must_use]
    pub fn target(&self) -> &Target {
        match self {
            Self::Create(target, _)
            | Self::DryRunCreate(target, _)
            | Self::Patch(target, _)
            | Self::Delete { target, .. } => target,
        }
    }

    /// The kind of request, as it stands in metrics.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(..) => "create",
            Self::DryRunCreate(..) => "dry_run_create",
            Self::Patch(..) => "patch",
            Self::Delete { .. } => "delete",
        }
    }
}

/// What became of a request that the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the version that the object has now, if the server said.
    Done(Option<String>),
    /// Not created, because one of its name is there.
    AlreadyExists,
    /// Not done, because what it was decided on is no longer so: look again.
    Conflict,
    /// Not done, because the object is gone.
    NotFound,
    /// Not done, because the server refuses it, in these words.
    Rejected(String),
}

impl Outcome {
    /// The outcome's kind, as it stands in metrics: a closed set.
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

/// Collects the operations of a JSON Patch.
#[derive(Clone, Debug, Default)]
pub struct JsonPatch(Vec<json_patch::PatchOperation>);

impl JsonPatch {
    /// Demands that the value at `path` is `value`; `null` demands that there is none.
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

    /// Removes the value at `path`; there must be one.
    #[must_use]
    pub fn remove(self, path: &[&str]) -> Self {
        self.with(json_patch::PatchOperation::Remove(json_patch::RemoveOperation {
            path: pointer(path),
        }))
    }

    /// The whole patch.
    #[must_use]
    pub fn build(self) -> Change {
        Change::Json(json_patch::Patch(self.0))
    }

    fn with(mut self, operation: json_patch::PatchOperation) -> Self {
        self.0.push(operation);
        self
    }
}

fn pointer(path: &[&str]) -> json_patch::jsonptr::PointerBuf {
    json_patch::jsonptr::PointerBuf::from_tokens(path.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_escape_what_stands_in_label_keys() {
        let Change::Json(patch) =
            JsonPatch::default().test(&["metadata", "labels", "a.b/c"], "1").build()
        else {
            unreachable!("build makes a JSON patch")
        };
        let text = serde_json::to_string(&patch).unwrap();
        assert_eq!(text, r#"[{"op":"test","path":"/metadata/labels/a.b~1c","value":"1"}]"#);
    }

    #[test]
    fn core_objects_live_under_api() {
        let pods = Resource { group: "", version: "v1", plural: "pods" };
        assert_eq!(pods.path("ns"), "/api/v1/namespaces/ns/pods");
    }
}
