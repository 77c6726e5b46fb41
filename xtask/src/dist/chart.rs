//! The Helm chart: the manifests of the overlays with all operators, with templates in place of the
//! fields that values set, and conditions around the objects that depend on the version of the API
//! server.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value, json};

use super::{
    archive::{Entry, gzip, tar},
    release::{OPERATORS, Release},
};

/// Stands for the value `registry` in the manifests.
pub(super) const REGISTRY: &str = "podops-chart-registry";

/// Objects that belong to an operator, or to all, and are not named after it: policies of components,
/// and roles of people.
const OTHERS: [(&str, &str); 14] = [
    ("podops-admin", SHARED),
    ("podops-definition-protection", SHARED),
    ("podops-edit", SHARED),
    ("podops-packages-edit", "instance-operator"),
    ("podops-packages-view", "instance-operator"),
    ("podops-view", SHARED),
    ("podops-employer-annotations", "consist-operator"),
    ("podops-employers", "consist-operator"),
    ("podops-fast-operate", "lifecycle-operator"),
    ("podops-instance-admission", "instance-operator"),
    ("podops-lifecycle-labels", "lifecycle-operator"),
    ("podops-readiness-gate", "lifecycle-operator"),
    ("podops-traffic-readiness", "consist-operator"),
    ("podops-transition-rule-gates", "transition-rule-operator"),
];

/// Operator that is disabled unless a user enables it: it is for packages, and depends on no other.
const OPTIONAL: &str = "instance-operator";

/// Name of the objects that all operators share.
const SHARED: &str = "podops";

/// Fields of a Deployment that values set: pointer, value, and the template in place of it.
const VALUES: [(&str, &str, &str); 3] = [
    ("/spec/replicas", "replicas", "{{ .Values.operators.OPERATOR.replicas }}"),
    (
        "/spec/template/spec/containers/0/args",
        "args",
        "{{ toJson .Values.operators.OPERATOR.args }}",
    ),
    (
        "/spec/template/spec/containers/0/resources",
        "resources",
        "{{ toJson .Values.operators.OPERATOR.resources }}",
    ),
];

/// Condition of objects for API servers with MutatingAdmissionPolicy.
const HAS_POLICIES: &str = "semverCompare \">=1.36.0-0\" .Capabilities.KubeVersion.Version";

const NOTES: &str = "\
Podops is installed in the namespace {{ .Release.Namespace }}. Check it with:

  kubectl podops check --operator-namespace {{ .Release.Namespace }}
";

/// Manifests of all operators. They have [`REGISTRY`] as registry, and may contain the objects that
/// operators share more than once.
pub(super) struct Manifests {
    /// For API servers with MutatingAdmissionPolicy.
    pub(super) current: String,
    /// For older ones.
    pub(super) older: String,
}

/// Which API servers an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Servers {
    All,
    WithPolicies,
    WithoutPolicies,
}

impl Servers {
    /// Puts the condition around a document.
    fn guard(self, document: &str) -> String {
        let condition = match self {
            Self::All => return document.to_owned(),
            Self::WithPolicies => HAS_POLICIES.to_owned(),
            Self::WithoutPolicies => format!("not ({HAS_POLICIES})"),
        };
        format!("{{{{- if {condition} }}}}\n{document}{{{{- end }}}}\n")
    }
}

/// Values and templates of the chart.
struct Chart {
    /// Default values of each operator, by its key in the values.
    operators: Map<String, Value>,
    /// Content of each template, by the operator or [`SHARED`].
    templates: BTreeMap<String, String>,
}

/// Writes the chart as `podops-<version>.tgz`; `crds` are the CustomResourceDefinitions.
///
/// # Errors
///
/// If an object belongs to no operator, or a file cannot be written.
pub(super) fn write(release: &Release, manifests: &Manifests, crds: Vec<u8>) -> anyhow::Result<()> {
    let mut chart = Chart { operators: Map::new(), templates: BTreeMap::new() };
    let current = objects(&manifests.current)?;
    let older = objects(&manifests.older)?;
    for object in &current {
        match older.iter().find(|other| id(other) == id(object)) {
            Some(other) if other == object => chart.add(object, Servers::All)?,
            Some(_) | None => chart.add(object, Servers::WithPolicies)?,
        }
    }
    for object in older.iter().filter(|object| !current.contains(object)) {
        chart.add(object, Servers::WithoutPolicies)?;
    }
    let files = chart.files(release, crds)?;
    let entries = files
        .into_iter()
        .map(|(path, content)| (format!("podops/{path}"), Entry::File { content, mode: 0o644 }));
    let entries: BTreeMap<String, Entry> = entries.collect();
    let archive = gzip(&tar(entries.iter().map(|(path, entry)| (path.as_str(), entry)))?)?;
    let file = release.output.join(format!("podops-{}.tgz", release.version));
    fs::write(&file, archive).with_context(|| file.display().to_string())
}

impl Chart {
    /// Adds an object to the template of its operator.
    fn add(&mut self, object: &Value, servers: Servers) -> anyhow::Result<()> {
        let owner = owner(object)?;
        let mut object = object.clone();
        let mut substitutions = vec![(REGISTRY.to_owned(), "{{ .Values.registry }}".to_owned())];
        if object["kind"] == "Deployment" {
            let mut values = Map::from_iter([("enabled".to_owned(), json!(owner != OPTIONAL))]);
            for (pointer, name, template) in VALUES {
                let value = object.pointer_mut(pointer).with_context(|| format!("no {pointer}"))?;
                let placeholder = format!("podops-chart-{name}");
                values.insert(name.to_owned(), std::mem::replace(value, json!(placeholder)));
                substitutions.push((placeholder, template.replace("OPERATOR", &key(owner))));
            }
            object["spec"]["template"]["spec"]["priorityClassName"] =
                json!("podops-chart-priority");
            let priority = "{{ .Values.priorityClassName | quote }}".to_owned();
            substitutions.push(("podops-chart-priority".to_owned(), priority));
            match self.operators.get(&key(owner)) {
                // Users set the arguments that do not depend on the API server.
                Some(defaults) => {
                    let more = more_args(&values["args"], &defaults["args"])?;
                    let args =
                        format!("concat .Values.operators.{}.args (list {more})", key(owner));
                    let args =
                        ("podops-chart-args".to_owned(), format!("{{{{ toJson ({args}) }}}}"));
                    substitutions.insert(0, args);
                }
                None => drop(self.operators.insert(key(owner), Value::Object(values))),
            }
        }
        let namespace = ("podops-system".to_owned(), "{{ .Release.Namespace }}".to_owned());
        substitutions.push(namespace);
        let mut text = serde_saphyr::to_string(&object)?;
        for (placeholder, template) in substitutions {
            text = text.replace(&placeholder, &template);
        }
        let document = servers.guard(&format!("---\n{text}"));
        let template = self.templates.entry(owner.to_owned()).or_default();
        if !template.contains(&document) {
            template.push_str(&document);
        }
        Ok(())
    }

    /// Path and content of each file of the chart.
    fn files(self, release: &Release, crds: Vec<u8>) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        let Release { version, registry, .. } = release;
        let about = json!({
            "apiVersion": "v2", "name": "podops", "type": "application",
            "description": "Operators that change, move, replace and delete Pods without failed requests",
            "version": version, "appVersion": version, "kubeVersion": ">=1.33.0-0",
        });
        let operators = serde_saphyr::to_string(&json!({ "operators": self.operators }))?;
        let values = format!(
            "# Registry and path of the images.\nregistry: {registry:?}\n\
             # PriorityClass of all Pods.\npriorityClassName: \"\"\n\
             # The operators are independent: disable those that the cluster does not need.\n{operators}"
        );
        let mut files = BTreeMap::from([
            ("Chart.yaml".to_owned(), serde_saphyr::to_string(&about)?.into_bytes()),
            ("values.yaml".to_owned(), values.into_bytes()),
            ("values.schema.json".to_owned(), serde_json::to_vec_pretty(&schema(&self.operators))?),
            ("templates/NOTES.txt".to_owned(), NOTES.into()),
            ("crds/crds.yaml".to_owned(), crds),
        ]);
        for (owner, text) in self.templates {
            let text = if owner == SHARED {
                text
            } else {
                let key = key(&owner);
                format!("{{{{- if .Values.operators.{key}.enabled }}}}\n{text}{{{{- end }}}}\n")
            };
            files.insert(format!("templates/{owner}.yaml"), text.into_bytes());
        }
        Ok(files)
    }
}

/// Objects of manifests, without the namespace, which Helm creates.
fn objects(manifests: &str) -> anyhow::Result<Vec<Value>> {
    // Templates would evaluate them.
    ensure!(!manifests.contains("{{"), "the manifests contain template delimiters");
    let mut objects = serde_saphyr::from_multiple::<Value>(manifests)?;
    objects.retain(|object| object["kind"] != "Namespace");
    Ok(objects)
}

/// Kind, namespace and name of an object.
fn id(object: &Value) -> [&Value; 3] {
    let metadata = &object["metadata"];
    [&object["kind"], &metadata["namespace"], &metadata["name"]]
}

/// Arguments of an operator that are not among its default ones, as a template has them in a list.
fn more_args(args: &Value, defaults: &Value) -> anyhow::Result<String> {
    let args: Vec<&Value> = args.as_array().into_iter().flatten().collect();
    let defaults: Vec<&Value> = defaults.as_array().into_iter().flatten().collect();
    let more =
        args.strip_prefix(&defaults[..]).context("arguments are missing for older servers")?;
    let quoted: Vec<String> = more.iter().map(ToString::to_string).collect();
    Ok(quoted.join(" "))
}

/// Operator that an object belongs to, or [`SHARED`].
fn owner(object: &Value) -> anyhow::Result<&'static str> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let other = OTHERS.iter().find(|(other, _)| *other == name).map(|(_, owner)| *owner);
    let own_name = name.strip_prefix("podops-").unwrap_or(name);
    let own_name = own_name.strip_suffix("-admission").unwrap_or(own_name);
    let operator = OPERATORS.into_iter().find(|operator| *operator == own_name);
    let shared = (name == SHARED).then_some(SHARED);
    let owner = other.or(operator).or(shared);
    owner.with_context(|| format!("{} {name} belongs to no operator", object["kind"]))
}

/// Key of an operator in the values, such as `transitionRule`.
fn key(operator: &str) -> String {
    let name = operator.strip_suffix("-operator").unwrap_or(operator);
    let mut words = name.split('-');
    let mut key = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        key.push_str(&first.to_uppercase());
        key.push_str(rest);
    }
    key
}

/// JSON schema of the values, with which Helm rejects others.
fn schema(operators: &Map<String, Value>) -> Value {
    let operator = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "enabled": { "type": "boolean" },
            "replicas": { "type": "integer", "minimum": 0 },
            "args": { "type": "array", "items": { "type": "string" } },
            "resources": { "type": "object" },
        },
    });
    let operators: Map<String, Value> =
        operators.keys().map(|key| (key.clone(), operator.clone())).collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object", "additionalProperties": false,
        "properties": {
            "registry": { "type": "string", "minLength": 1 },
            "priorityClassName": { "type": "string" },
            "operators": { "type": "object", "additionalProperties": false, "properties": operators },
            "global": { "type": "object" },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_keys_without_dashes() {
        assert_eq!(key("transition-rule-operator"), "transitionRule");
        assert_eq!(key("collaset-operator"), "collaset");
    }

    #[test]
    fn arguments_for_older_servers_follow_those_of_users() {
        let more = more_args(&json!(["--a", "--b=1", "--c"]), &json!(["--a"])).unwrap();
        assert_eq!(more, r#""--b=1" "--c""#);
        assert!(more_args(&json!(["--b"]), &json!(["--a"])).is_err());
    }

    #[test]
    fn an_object_of_no_operator_is_an_error() {
        let object = json!({ "kind": "Role", "metadata": { "name": "podops-other" } });
        assert_eq!(
            owner(&object).unwrap_err().to_string(),
            "\"Role\" podops-other belongs to no operator"
        );
    }
}
