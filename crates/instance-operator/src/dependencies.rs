//! Dependencies between OperatorVersions, which KudoOperator tasks define.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::kudo::TaskSpec;
use podops_packages::package::operator_version_name;

use crate::view::{Dependencies, Version};

/// Returns the name of the OperatorVersion that a KudoOperator task depends on.
#[must_use]
pub fn version_name(spec: &TaskSpec) -> String {
    operator_version_name(&spec.package, &spec.app_version, &spec.operator_version)
}

/// Returns the direct dependencies of an OperatorVersion, as `<namespace>/<name>`. All are in its
/// namespace, because the command line creates them there.
#[must_use]
pub fn direct(version: &Version) -> BTreeSet<String> {
    let tasks = version.spec.tasks.iter().filter(|task| task.kind == "KudoOperator");
    tasks.map(|task| format!("{}/{}", version.namespace, version_name(&task.spec))).collect()
}

/// Returns the first dependency cycle that is reachable from the OperatorVersion `key`: a path that
/// begins and ends with the same name. `None` if there is no cycle.
#[must_use]
pub fn cycle(key: &str, version: &Version, known: &Dependencies) -> Option<Vec<String>> {
    let mut open: BTreeMap<String, BTreeSet<String>> = known
        .iter()
        .map(|(key, version)| (key.clone(), direct(version)))
        .chain([(key.to_owned(), direct(version))])
        .collect();
    // OperatorVersions without remaining dependencies are removed repeatedly; the rest is in a
    // cycle or depends on a cycle.
    loop {
        let closed: Vec<String> = open
            .iter()
            .filter(|(_, needed)| !needed.iter().any(|key| open.contains_key(key)))
            .map(|(key, _)| key.clone())
            .collect();
        if closed.is_empty() {
            break;
        }
        open.retain(|key, _| !closed.contains(key));
    }
    let mut path: Vec<String> = Vec::new();
    let mut next = Some(key.to_owned()).filter(|key| open.contains_key(key));
    while let Some(key) = next {
        if let Some(start) = path.iter().position(|known| *known == key) {
            path.drain(..start);
            path.push(key);
            return Some(path);
        }
        next = open[&key].iter().find(|needed| open.contains_key(*needed)).cloned();
        path.push(key);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn version(needed: &[&str]) -> Arc<Version> {
        let tasks: Vec<Value> = needed
            .iter()
            .map(|name| {
                json!({ "kind": "KudoOperator", "spec": { "package": name, "operatorVersion": "1" } })
            })
            .collect();
        let spec = serde_json::from_value(json!({ "tasks": tasks })).unwrap();
        Arc::new(Version { namespace: "ns".to_owned(), identity: String::new(), spec })
    }

    /// Returns the cycle found from `a` with the dependencies `needed`; `others` have their own.
    fn found(needed: &[&str], others: &[(&str, &[&str])]) -> Option<String> {
        let known = others.iter().map(|(name, needed)| (format!("ns/{name}-1"), version(needed)));
        cycle("ns/a-1", &version(needed), &known.collect()).map(|path| path.join(" "))
    }

    #[test]
    fn cycles_are_found_and_shared_dependencies_are_none() {
        assert_eq!(found(&[], &[]), None);
        assert_eq!(found(&["a"], &[]).as_deref(), Some("ns/a-1 ns/a-1"));
        assert_eq!(found(&["b"], &[("b", &["a"])]).as_deref(), Some("ns/a-1 ns/b-1 ns/a-1"));
        assert_eq!(
            found(&["b"], &[("b", &["c"]), ("c", &["b"])]).as_deref(),
            Some("ns/b-1 ns/c-1 ns/b-1"),
            "of dependencies alone"
        );
        assert_eq!(found(&["b", "c"], &[("b", &["d"]), ("c", &["d"]), ("d", &[])]), None);
        assert_eq!(found(&["b"], &[]), None, "a missing OperatorVersion is no cycle");
    }
}
