//! OperatorVersions that others depend on, by their KudoOperator tasks.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::kudo::TaskSpec;
use podops_packages::package::operator_version_name;

use crate::view::{Dependencies, Version};

/// Returns the name of the OperatorVersion of a KudoOperator task.
#[must_use]
pub fn version_name(spec: &TaskSpec) -> String {
    operator_version_name(&spec.package, &spec.app_version, &spec.operator_version)
}

/// Returns the OperatorVersions that an OperatorVersion depends on directly, as `<namespace>/<name>`.
/// They are beside it: the command line creates them in its namespace.
#[must_use]
pub fn direct(version: &Version) -> BTreeSet<String> {
    let tasks = version.spec.tasks.iter().filter(|task| task.kind == "KudoOperator");
    tasks.map(|task| format!("{}/{}", version.namespace, version_name(&task.spec))).collect()
}

/// Returns the first OperatorVersions that depend on each other, among those that the OperatorVersion
/// `key` depends on: a path that ends where it begins. `None` if there is no such path.
#[must_use]
pub fn cycle(key: &str, version: &Version, known: &Dependencies) -> Option<Vec<String>> {
    let mut open: BTreeMap<String, BTreeSet<String>> = known
        .iter()
        .map(|(key, version)| (key.clone(), direct(version)))
        .chain([(key.to_owned(), direct(version))])
        .collect();
    // What is left, when those that depend on no other are removed until there are none, has a cycle.
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

    /// Cycle that is found from `a`, which depends on these, with the others' dependencies.
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
