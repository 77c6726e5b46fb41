//! Finds containers that read labels and annotations of their Pod as environment variables, which
//! the kubelet sets only when a container starts.

use std::collections::BTreeSet;

use podops_api::template::PodTemplate;
use serde_json::Value;

/// Containers that read a label or annotation with another value in a new template.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Readers {
    /// True if an init container reads one: init containers of an existing Pod never run again.
    pub(super) init: bool,
    /// Names of the containers.
    pub(super) containers: BTreeSet<String>,
}

/// Returns the containers of the new template that read a label or annotation which changes.
pub(super) fn readers(from: &PodTemplate, to: &PodTemplate) -> Readers {
    let changed = changed_paths(from, to);
    if changed.is_empty() {
        return Readers::default();
    }
    let names = |list: &str| -> BTreeSet<String> {
        let containers = to.0.get("spec").and_then(|spec| spec[list].as_array());
        let readers = containers.into_iter().flatten().filter(|c| reads(c, &changed));
        readers.map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    Readers { init: !names("initContainers").is_empty(), containers: names("containers") }
}

/// Returns the field paths of labels and annotations whose values differ, as `fieldRef` names them.
fn changed_paths(from: &PodTemplate, to: &PodTemplate) -> BTreeSet<String> {
    let fields = [
        ("labels", from.labels(), to.labels()),
        ("annotations", from.annotations(), to.annotations()),
    ];
    let changed = fields.into_iter().flat_map(|(field, old, new)| {
        let keys: BTreeSet<String> = old.keys().chain(new.keys()).cloned().collect();
        let differing = keys.into_iter().filter(move |key| old.get(key) != new.get(key));
        differing.map(move |key| format!("metadata.{field}['{key}']"))
    });
    changed.collect()
}

/// Returns whether an environment variable of the container has one of these field paths.
fn reads(container: &Value, changed: &BTreeSet<String>) -> bool {
    let variables = container["env"].as_array().into_iter().flatten();
    let mut paths = variables.filter_map(|v| v["valueFrom"]["fieldRef"]["fieldPath"].as_str());
    paths.any(|path| changed.contains(&path.replace('"', "'")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(hash: &str, track: &str) -> PodTemplate {
        let reads =
            |path: &str| json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
        let value = json!({
            "metadata": {"annotations": {"hash": hash}, "labels": {"track": track}},
            "spec": {
                "initContainers": [{"name": "setup", "env": reads("metadata.labels['track']")}],
                "containers": [
                    {"name": "reads", "env": reads("metadata.annotations['hash']")},
                    {"name": "other", "env": reads("metadata.annotations['else']")},
                    {"name": "named", "env": reads("metadata.name")},
                ],
            },
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn containers_that_read_a_changed_annotation_are_found() {
        let from = template("a", "blue");
        assert_eq!(readers(&from, &from), Readers::default());
        let changed = readers(&from, &template("b", "blue"));
        assert_eq!(changed.containers, ["reads".to_owned()].into());
        assert!(!changed.init);
        assert!(readers(&from, &template("a", "green")).init);
    }
}
