//! Hash of the ConfigMaps and Secrets that a Pod template refers to. The hash is part of the
//! template, so that Pods are recreated when a dependency changes.
//!
//! The hash is byte-identical to KUDO's, so that no Pod is recreated when Podops takes over.

use md5::{Digest as _, Md5};
use serde_json::{Map, Value, json};

use super::{annotation, items, map_at, object_type, text};

pub use podops_api::well_known::DEPENDENCIES_HASH;

/// Annotation of ConfigMaps and Secrets whose content is not hashed.
pub const SKIP: &str = "kudo.dev/skip-hash-calculation";

/// Hash of an object's content.
pub type ContentHash = [u8; 16];
/// Hash of an object that does not exist or is not hashed.
pub const NO_CONTENT: ContentHash = [0; 16];

/// Paths of the Pod templates that get the annotation.
const TEMPLATES: [&[&str]; 2] =
    [&["spec", "template"], &["spec", "jobTemplate", "spec", "template"]];

/// Fields of metadata that are not hashed.
const IGNORED: [&str; 9] = [
    "namespace",
    "resourceVersion",
    "uid",
    "selfLink",
    "generation",
    "generateName",
    "clusterName",
    "continue",
    "creationTimestamp",
];

/// ConfigMap or Secret that a Pod template refers to. Hashes are joined in the order of this type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// `ConfigMap` or `Secret`.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
}

/// Returns the dependencies of all Pod templates of an object, sorted; a dependency that is named
/// twice is listed twice.
#[must_use]
pub fn dependencies(object: &Value) -> Vec<Dependency> {
    let mut found = Vec::new();
    for template in TEMPLATES {
        let spec = format!("/{}/spec", template.join("/"));
        let secrets = items(object, &format!("{spec}/imagePullSecrets"));
        found.extend(secrets.filter_map(|secret| dependency("Secret", text(secret, "/name"))));
        for volume in items(object, &format!("{spec}/volumes")) {
            found.extend(dependency("Secret", text(volume, "/secret/secretName")));
            found.extend(dependency("ConfigMap", text(volume, "/configMap/name")));
        }
    }
    found.sort();
    found
}

fn dependency(kind: &'static str, name: &str) -> Option<Dependency> {
    (!name.is_empty()).then(|| Dependency { kind, name: name.to_owned() })
}

/// Returns the hash of the content of a ConfigMap or Secret.
///
/// # Errors
///
/// [`Failure`](go_template::Failure) if the object is nested too deeply.
pub fn content(object: &Value) -> Result<ContentHash, go_template::Failure> {
    if annotation(object, SKIP).is_some() {
        return Ok(NO_CONTENT);
    }
    let mut counted = object.clone();
    if let Some(metadata) = map_at(&mut counted, &["metadata"]) {
        metadata.retain(|key, _| !IGNORED.contains(&key.as_str()));
        metadata.extend(empty_fields());
    }
    counted["apiVersion"] = json!("");
    counted["kind"] = json!("");
    let yaml = go_template::yaml_text(&json!({ "object": counted }))?;
    Ok(Md5::digest(yaml).into())
}

/// Fields of metadata that are hashed with these values for every object.
fn empty_fields() -> Map<String, Value> {
    let fields = json!({
        "annotations": {}, "finalizers": [], "managedFields": [], "ownerReferences": [],
        "deletionGracePeriodSeconds": 0, "remainingItemCount": 0,
    });
    fields.as_object().cloned().unwrap_or_default()
}

/// Sets the annotation on all Pod templates of an object, if the object has dependencies. `hash_of`
/// returns the hash of a dependency.
pub fn annotate(object: &mut Value, hash_of: impl Fn(&Dependency) -> ContentHash) {
    let dependencies = dependencies(object);
    if dependencies.is_empty() {
        return;
    }
    let joined: Vec<u8> = dependencies.iter().flat_map(hash_of).collect();
    let hash = hex::encode(Md5::digest(joined));
    for template in TEMPLATES {
        if object.pointer(&format!("/{}", template.join("/"))).is_some() {
            let path = [template, &["metadata", "annotations"]].concat();
            if let Some(annotations) = map_at(object, &path) {
                annotations.insert(DEPENDENCIES_HASH.to_owned(), json!(hash));
            }
        }
    }
}

/// Returns whether an object can be a dependency: a ConfigMap or a Secret.
#[must_use]
pub fn is_dependency(object: &Value) -> bool {
    let object_type = object_type(object);
    object_type.is("", "ConfigMap") || object_type.is("", "Secret")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(data: &Value) -> Value {
        let labels = json!({
            "heritage": "kudo", "kudo.dev/instance": "depop", "kudo.dev/operator": "dep-operator",
        });
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {
                "name": "configdata", "namespace": "default", "labels": labels, "uid": "u",
                "annotations": { "kudo.dev/plan": "deploy" }, "resourceVersion": "7",
                "ownerReferences": [{ "name": "depop" }], "creationTimestamp": null,
            },
        })
    }

    fn deployment(spec: &Value) -> Value {
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "spec": { "template": { "spec": spec } } })
    }

    /// Values that KUDO's own tests assert.
    #[test]
    fn hashes_are_those_of_kudo() {
        let values = [
            (
                json!({ "valueA": "FancyValue", "valueB": "OtherFancyValue" }),
                "6fa812afe527bdb6c9a5fbfcba8193bb",
            ),
            (
                json!({ "valueA": "ChangedValue", "valueB": "OtherFancyValue" }),
                "da9f56a62d3c4af2596bebace008d845",
            ),
            (
                json!({ "valueA": "ChangedValue", "valueB": "SecondChangedValue" }),
                "1510654b540619228b477bdd56d44175",
            ),
        ];
        for (data, expected) in values {
            let config = config(&data);
            let mut object =
                deployment(&json!({ "volumes": [{ "configMap": { "name": "configdata" } }] }));
            annotate(&mut object, |_| content(&config).unwrap());
            let found = &object["spec"]["template"]["metadata"]["annotations"][DEPENDENCIES_HASH];
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn only_volumes_and_pull_secrets_are_dependencies() {
        let spec = json!({
            "imagePullSecrets": [{ "name": "pull" }],
            "volumes": [
                { "name": "a", "secret": { "secretName": "a" } },
                { "name": "b", "configMap": { "name": "b" } },
                { "name": "c", "configMap": { "name": "b" } },
                { "name": "d", "projected": { "sources": [{ "secret": { "name": "no" } }] } },
            ],
            "containers": [{ "envFrom": [{ "configMapRef": { "name": "no" } }] }],
        });
        let found: Vec<String> = dependencies(&deployment(&spec))
            .iter()
            .map(|d| format!("{} {}", d.kind, d.name))
            .collect();
        assert_eq!(found, ["ConfigMap b", "ConfigMap b", "Secret a", "Secret pull"]);
    }

    #[test]
    fn an_object_without_dependencies_has_no_hash() {
        let mut object = deployment(&json!({ "containers": [] }));
        let before = object.clone();
        annotate(&mut object, |_| NO_CONTENT);
        assert_eq!(object, before);
    }

    #[test]
    fn content_that_does_not_count_leaves_the_hash_alone() {
        let mut config = config(&json!({ "a": "b" }));
        config["metadata"]["annotations"][SKIP] = json!("true");
        assert_eq!(content(&config).unwrap(), NO_CONTENT);
    }

    #[test]
    fn cron_jobs_have_the_hash_in_their_inner_template() {
        let volumes = json!({ "volumes": [{ "secret": { "secretName": "a" } }] });
        let mut job =
            json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": volumes } } } } });
        annotate(&mut job, |_| NO_CONTENT);
        let template = &job["spec"]["jobTemplate"]["spec"]["template"];
        // MD5 of 16 zero bytes.
        let expected = "4ae71336e44bf9bf79d2752e234818a5";
        assert_eq!(template["metadata"]["annotations"][DEPENDENCIES_HASH], expected);
        assert_eq!(job["spec"].as_object().unwrap().len(), 1);
    }
}
