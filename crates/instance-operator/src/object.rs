//! Objects that tasks apply and delete: their identity, and functions that read their fields.

use std::fmt;

use podops_api::well_known::{CONTROL, CONTROL_ON};
use podops_client::object_key::is_path_segment;
pub use podops_packages::annotations::annotation;
use serde_json::{Map, Value};

pub mod enhance;
pub mod expressions;
pub mod field_managers;
pub mod file;
pub mod graceful;
pub mod hash;
pub mod health;
pub mod readiness;
pub mod retention;
pub mod secret;

/// Maximum length of an API version: the name of a group, `/` and the name of a version.
const API_VERSION_MAX: usize = 253 + 1 + 63;

/// API version and kind of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectType {
    /// API version, such as `apps/v1`.
    pub api_version: String,
    /// Kind, such as `StatefulSet`.
    pub kind: String,
}

impl ObjectType {
    /// API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns whether the type is this kind of this group, in any version.
    #[must_use]
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group() == group && self.kind == kind
    }

    /// Returns whether the API version is `VERSION` or `GROUP/VERSION`; as part of a URL, another
    /// one would address other objects.
    #[must_use]
    pub fn has_valid_version(&self) -> bool {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("v", &self.api_version));
        self.api_version.len() <= API_VERSION_MAX
            && is_path_segment(group)
            && is_path_segment(version)
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}

/// Identity of an object; without a name, all objects of the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// API version and kind.
    pub object_type: ObjectType,
    /// Namespace; empty if the object is cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// Returns the identity of an object.
    #[must_use]
    pub fn of(object: &Value) -> Self {
        Self {
            object_type: object_type(object),
            namespace: text(object, "/metadata/namespace").to_owned(),
            name: text(object, "/metadata/name").to_owned(),
        }
    }

    /// Returns an error message if the name or the namespace is not a valid path segment, so that
    /// the URL would address another object; `None` if both are valid.
    #[must_use]
    pub fn invalid_name(&self) -> Option<String> {
        if !self.object_type.has_valid_version() {
            let version = &self.object_type.api_version;
            return Some(format!("{self}: invalid apiVersion {version:?}: use GROUP/VERSION"));
        }
        let is_valid = is_path_segment(&self.name)
            && (self.namespace.is_empty() || is_path_segment(&self.namespace));
        (!is_valid).then(|| {
            format!("{self}: invalid name: use ASCII characters other than spaces, /, %, ? and #")
        })
    }

    /// Returns the identity that stands for all objects of a type.
    #[must_use]
    pub fn any_of(object_type: &ObjectType) -> Self {
        Self { object_type: object_type.clone(), ..Self::default() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            return write!(f, "{} {}/{}", self.object_type.kind, self.namespace, self.name);
        }
        write!(f, "{} {}", self.object_type.kind, self.name)
    }
}

/// Scope of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Objects of the type have a namespace.
    Namespaced,
    /// Objects of the type have no namespace.
    Cluster,
}

/// Returns the API version and kind of an object; absent fields are empty.
#[must_use]
pub fn object_type(object: &Value) -> ObjectType {
    ObjectType {
        api_version: text(object, "/apiVersion").to_owned(),
        kind: text(object, "/kind").to_owned(),
    }
}

/// Returns the string at a JSON pointer; empty if absent.
#[must_use]
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the integer at a JSON pointer; `None` if absent.
#[must_use]
pub fn integer(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// Returns the elements of the list at a JSON pointer; none if absent.
pub fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the value of a label; `None` if absent.
#[must_use]
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/labels")?.get(key)?.as_str()
}

/// Returns whether a Pod or Pod template has the label `kusionstack.io/control=true`.
#[must_use]
pub fn is_controlled(object: &Value) -> bool {
    label(object, CONTROL) == Some(CONTROL_ON)
}

/// Returns whether an object has a deletion timestamp.
#[must_use]
pub fn is_deleted(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Returns the condition of this type; `None` if absent.
#[must_use]
pub fn condition<'a>(object: &'a Value, condition: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|found| found["type"] == condition)
}

/// Returns whether the condition of this type is True.
#[must_use]
pub fn is_true(object: &Value, name: &str) -> bool {
    condition(object, name).is_some_and(|found| found["status"] == "True")
}

/// Returns the owner reference of an object's controller; `None` without a controller.
#[must_use]
pub fn controller(object: &Value) -> Option<&Value> {
    items(object, "/metadata/ownerReferences").find(|owner| owner["controller"] == true)
}

/// Returns the map at a path, created if missing; `None` if a value of another type is there.
pub fn map_at<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let mut value = object;
    for part in path {
        let map = value.as_object_mut()?;
        let next = map.entry(*part).or_insert(Value::Null);
        if next.is_null() {
            *next = Value::Object(Map::new());
        }
        value = next;
    }
    value.as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_version_cannot_address_other_objects() {
        let is_valid = |api_version: &str| {
            let kind = "Kind".to_owned();
            ObjectType { api_version: api_version.to_owned(), kind }.has_valid_version()
        };
        assert!(is_valid("v1") && is_valid("apps/v1") && is_valid("kudo.dev/v1beta1"));
        for attack in ["", "/v1", "apps/", "apps/v1/replicasets?", "v1?watch=true", "a/../v1", ".."]
        {
            assert!(!is_valid(attack), "{attack}");
        }
        assert!(!is_valid(&format!("{}/v1", "a".repeat(400))));
    }
}
