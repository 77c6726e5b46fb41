//! Decodes the objects of a collection one by one, so that an object that cannot be decoded does
//! not affect the others. Pure: text in, objects out.
//!
//! The API server accepts objects that typed decoders reject: fields nested up to 10,000 deep, and
//! times after the year 9999. serde_json and jiff reject them, and with them the whole list.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{json, value::RawValue};

/// An object, or why it cannot be decoded.
#[derive(Clone, Debug)]
pub enum Decoded<K> {
    /// The object, without `metadata.managedFields`. Shared, because caches with an index contain
    /// it besides the cache of the watch.
    Object(Arc<K>),
    /// The object cannot be decoded.
    Invalid(Box<InvalidObject>),
}

/// Metadata of an object that cannot be decoded, and the error.
#[derive(Clone, Debug)]
pub struct InvalidObject {
    /// Namespace, name, UID, resourceVersion, finalizers and deletion timestamp.
    pub metadata: ObjectMeta,
    /// Reason for which the object cannot be decoded.
    pub error: String,
}

impl InvalidObject {
    /// Returns an object with this metadata and nothing else, if the kind permits it.
    #[must_use]
    pub fn metadata_only<K: DeserializeOwned>(&self) -> Option<K> {
        serde_json::from_value(json!({ "metadata": self.metadata })).ok()
    }
}

/// Maximum size of an object's labels, in bytes. The API server limits annotations to 256 KiB and
/// labels only by the size of the object, and caches keep labels.
const LABELS_MAX: usize = 64 << 10;

/// Maximum memory of a decoded object, in bytes. A value of two bytes, such as an element of a list
/// of zeros, takes sixteen times as much memory as its text.
const MEMORY_MAX: usize = 6 << 20;
/// Memory of a value, in bytes.
const VALUE: usize = 32;

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Reading raw text does not recurse, so nesting is not limited here.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self::decode(text.get()))
    }
}

impl<K: Resource + DeserializeOwned> Decoded<K> {
    fn decode(text: &str) -> Self {
        let decoded = without_managed_fields(text).and_then(|text| {
            let is_large = memory_of(&text) > MEMORY_MAX;
            if is_large { Ok(None) } else { serde_json::from_str(&text).map(Some) }
        });
        let error = match decoded {
            Ok(None) => format!("more than {} MiB once it is decoded", MEMORY_MAX >> 20),
            Ok(Some(object)) if size_of_labels(&object) <= LABELS_MAX => {
                return Self::Object(Arc::new(object));
            }
            Ok(Some(_)) => format!("labels of more than {} KiB", LABELS_MAX >> 10),
            Err(error) => error.to_string(),
        };
        Self::Invalid(Box::new(InvalidObject { metadata: identity(text), error }))
    }
}

/// Returns about how many bytes the value of a JSON text takes, or 0 of a text that is too short for
/// too many. Keys count as text.
fn memory_of(text: &str) -> usize {
    // Each value has two bytes at least.
    if text.len() + text.len() / 2 * VALUE < MEMORY_MAX {
        return 0;
    }
    let mut values = 1;
    let mut in_string = false;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => drop(bytes.next()),
            b',' | b'{' | b'[' if !in_string => values += 1,
            _ => {}
        }
    }
    text.len() + values * VALUE
}

fn size_of_labels<K: Resource>(object: &K) -> usize {
    let labels = object.meta().labels.iter().flatten();
    labels.map(|(key, value)| key.len() + value.len()).sum()
}

impl<K: Clone> Decoded<K> {
    /// Returns the object, if it could be decoded.
    #[must_use]
    pub fn ok(self) -> Option<K> {
        self.into_result().ok()
    }

    /// Returns the object, or why it cannot be decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidObject`] if it cannot be decoded.
    pub fn into_result(self) -> Result<K, Box<InvalidObject>> {
        match self {
            Self::Object(object) => Ok(Arc::unwrap_or_clone(object)),
            Self::Invalid(invalid) => Err(invalid),
        }
    }
}

impl<K> Decoded<K> {
    /// Returns the object, or why it cannot be decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidObject`] if it cannot be decoded.
    pub fn as_result(&self) -> Result<&K, &InvalidObject> {
        match self {
            Self::Object(object) => Ok(object),
            Self::Invalid(invalid) => Err(invalid),
        }
    }
}

/// For watches: the kind is that of the object.
impl<K: Resource + Clone> Resource for Decoded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Object(object) => object.meta(),
            Self::Invalid(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Object(object) => Arc::make_mut(object).meta_mut(),
            Self::Invalid(invalid) => &mut invalid.metadata,
        }
    }
}

/// Fields of a JSON object, not decoded.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Removes `metadata.managedFields`, which no operator reads. Any client may nest them more deeply
/// than serde_json permits, so that they cannot be decoded.
///
/// # Errors
///
/// If the text is no JSON object with metadata.
pub fn without_managed_fields(text: &str) -> serde_json::Result<Cow<'_, str>> {
    let mut object: Fields<'_> = serde_json::from_str(text)?;
    let Some(metadata) = object.get("metadata") else { return Ok(text.into()) };
    let mut metadata: Fields<'_> = serde_json::from_str(metadata.get())?;
    if metadata.remove("managedFields").is_none() {
        return Ok(text.into());
    }
    let metadata = serde_json::value::to_raw_value(&metadata)?;
    object.insert("metadata".to_owned(), &metadata);
    serde_json::to_string(&object).map(Cow::Owned)
}

/// Decodes the fields of the metadata that identify and delete the object, one by one.
fn identity(text: &str) -> ObjectMeta {
    let object: Fields<'_> = serde_json::from_str(text).unwrap_or_default();
    let metadata: Fields<'_> = read(&object, "metadata").unwrap_or_default();
    // An object with a deletion timestamp that cannot be decoded is being deleted nevertheless.
    let deletion_timestamp = metadata
        .get("deletionTimestamp")
        .filter(|value| value.get() != "null")
        .map(|value| serde_json::from_str(value.get()).unwrap_or(Time(Timestamp::UNIX_EPOCH)));
    ObjectMeta {
        name: read(&metadata, "name"),
        namespace: read(&metadata, "namespace"),
        uid: read(&metadata, "uid"),
        resource_version: read(&metadata, "resourceVersion"),
        finalizers: read(&metadata, "finalizers"),
        deletion_timestamp,
        ..ObjectMeta::default()
    }
}

fn read<'a, T: Deserialize<'a>>(fields: &Fields<'a>, key: &str) -> Option<T> {
    serde_json::from_str(fields.get(key)?.get()).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::Value;

    use super::*;

    /// A time that the API server accepts, and jiff does not.
    const TOO_LATE: &str = "9999-12-31T23:59:59Z";

    fn pod(name: &str, metadata: &Value, spec: &Value) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": { "name": name, "namespace": "ns", "uid": name, "resourceVersion": "7" },
        });
        let fields = metadata.as_object().unwrap().clone();
        pod["metadata"].as_object_mut().unwrap().extend(fields);
        pod
    }

    /// Decodes a list of Pods; an error is returned as its object's name and its cause.
    fn decode(list: &str) -> Vec<Result<String, String>> {
        let list: ObjectList<Decoded<Pod>> = serde_json::from_str(list).unwrap();
        let items = list.items.into_iter().map(|item| match item.into_result() {
            Ok(pod) => Ok(pod.metadata.name.unwrap()),
            Err(invalid) => Err(format!("{}: {}", invalid.metadata.name.unwrap(), invalid.error)),
        });
        items.collect()
    }

    fn list(items: &[Value]) -> String {
        json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }).to_string()
    }

    #[test]
    fn an_object_with_megabytes_of_labels_is_skipped() {
        let labels: BTreeMap<String, String> =
            (0..1000).map(|n| (format!("{n:063}"), "x".repeat(63))).collect();
        let pod = json!({ "metadata": { "name": "a", "uid": "1", "labels": labels } });
        let decoded: Decoded<Pod> = serde_json::from_value(pod).unwrap();
        let invalid = decoded.as_result().unwrap_err();
        assert_eq!(invalid.error, "labels of more than 64 KiB");
        assert_eq!(invalid.metadata.name.as_deref(), Some("a"));
    }

    #[test]
    fn an_item_that_cannot_be_decoded_does_not_affect_the_list() {
        let containers = json!({ "containers": [] });
        let late = json!({ "deletionTimestamp": TOO_LATE });
        let decoded = decode(&list(&[
            pod("a", &json!({}), &containers),
            pod("late", &late, &containers),
            pod("typed", &json!({}), &json!({ "containers": "none" })),
            pod("z", &json!({}), &containers),
        ]));
        assert_eq!((&decoded[0], &decoded[3]), (&Ok("a".to_owned()), &Ok("z".to_owned())));
        assert!(decoded[1].as_ref().is_err_and(|error| error.starts_with("late: ")), "{decoded:?}");
        assert!(decoded[2].as_ref().is_err_and(|error| error.starts_with("typed: ")));
    }

    #[test]
    fn deep_nesting_affects_only_its_object() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(5000), "}".repeat(5000));
        let text = list(&[pod("deep", &json!({ "x": "DEEP" }), &json!({ "containers": [] }))]);
        // Fields that the type does not have are skipped without recursion.
        assert_eq!(decode(&text.replace("\"DEEP\"", &deep)), [Ok("deep".to_owned())]);
        let text = list(&[pod("deep", &json!({ "labels": "DEEP" }), &json!({}))]);
        let decoded = decode(&text.replace("\"DEEP\"", &deep));
        assert!(decoded[0].as_ref().is_err_and(|error| error.starts_with("deep: ")), "{decoded:?}");
    }

    #[test]
    fn managed_fields_are_not_decoded() {
        let managed = json!({ "managedFields": [{ "manager": "x", "time": TOO_LATE }] });
        let text = list(&[pod("a", &managed, &json!({ "containers": [] }))]);
        assert_eq!(decode(&text), [Ok("a".to_owned())]);
    }

    #[test]
    fn watch_events_are_decoded_one_by_one() {
        let late = pod("late", &json!({ "deletionTimestamp": TOO_LATE }), &json!({}));
        let line = format!(r#"{{"type":"DELETED","object":{late}}}"#);
        let event: WatchEvent<Decoded<Pod>> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Deleted(Decoded::Invalid(invalid)) = event else { panic!("{event:?}") };
        let deleted: Pod = invalid.metadata_only().unwrap();
        assert_eq!(deleted.metadata.uid.as_deref(), Some("late"));
        assert_eq!(deleted.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_object_of_too_many_values_is_invalid() {
        let with = |spec: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"a","uid":"u","managedFields":[{{}}]}},"spec":{spec}}}"#
            );
            Decoded::<kube::core::DynamicObject>::decode(&text)
        };
        let zeros = |count: usize| format!("{{\"x\":[{}]}}", vec!["0"; count].join(","));
        let invalid = with(&zeros(200_000)).into_result().unwrap_err();
        assert_eq!(invalid.error, "more than 6 MiB once it is decoded");
        assert_eq!(invalid.metadata.uid.as_deref(), Some("u"), "it can be reported and deleted");
        assert!(with(&zeros(150_000)).ok().is_some());
        // The largest ResourceContext, of 1 MiB.
        let entry = r#"{"id":1,"data":{"Owner":"web","Revision":"web-5d6f7","ReplaceNewPodID":"10001","ScaleIn":"true"}}"#;
        let context = format!("{{\"contexts\":[{}]}}", vec![entry; 11_000].join(","));
        assert!(with(&context).ok().is_some());
        // Text is not counted, whatever it contains.
        let text = r#"{"x":"[1,2,\"{,,"}"#.replace("1,2", &",".repeat(200_000));
        assert!(with(&text).ok().is_some());
    }
}
