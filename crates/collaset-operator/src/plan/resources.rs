//! What a container asks for and may use: CPU and memory, which a running container can be given
//! more or less of.

use std::collections::BTreeMap;

use podops_api::template::PodTemplate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::quantity;
use crate::view::PodView;

/// CPU and memory of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub struct Resources {
    /// What it asks for.
    pub requests: Amounts,
    /// What it may use.
    pub limits: Amounts,
}

/// Amounts of CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// In thousandths of a CPU.
    pub cpu: Option<i64>,
    /// In bytes.
    pub memory: Option<i64>,
}

impl From<Value> for Resources {
    /// Reads a container's `resources`.
    fn from(written: Value) -> Self {
        Self {
            requests: Amounts::read(&written["requests"]),
            limits: Amounts::read(&written["limits"]),
        }
    }
}

impl Resources {
    /// Sets the amounts that `other` has.
    pub fn set(&mut self, other: &Self) {
        self.requests = other.requests.or(self.requests);
        self.limits = other.limits.or(self.limits);
    }

    /// What a template's container gets: it asks for what it may use, if it does not say.
    fn of_template(container: &Value) -> Self {
        let written = Self::from(container["resources"].clone());
        Self { requests: written.requests.or(written.limits), ..written }
    }
}

impl From<Resources> for Value {
    fn from(resources: Resources) -> Self {
        let mut written = Map::new();
        for (list, amounts) in [("requests", resources.requests), ("limits", resources.limits)] {
            if amounts != Amounts::default() {
                written.insert(list.to_owned(), Value::Object(amounts.written()));
            }
        }
        Self::Object(written)
    }
}

impl Amounts {
    fn read(written: &Value) -> Self {
        const MILLI: i128 = 1_000_000;
        const ONE: i128 = 1_000_000_000;
        let amount = |name: &str, unit: i128| {
            let written = written.get(name)?;
            let text = written.as_str().map_or_else(|| written.to_string(), ToOwned::to_owned);
            let billionths = quantity::value(&text)?;
            // Kubernetes rounds up to the smallest unit that it counts in.
            i64::try_from((billionths + unit - 1).div_euclid(unit)).ok()
        };
        Self { cpu: amount("cpu", MILLI), memory: amount("memory", ONE) }
    }

    fn or(self, other: Self) -> Self {
        Self { cpu: self.cpu.or(other.cpu), memory: self.memory.or(other.memory) }
    }

    fn written(self) -> Map<String, Value> {
        let cpu = self.cpu.map(|milli| ("cpu".to_owned(), json!(format!("{milli}m"))));
        let memory = self.memory.map(|bytes| ("memory".to_owned(), json!(bytes.to_string())));
        cpu.into_iter().chain(memory).collect()
    }

    /// The amounts that are there and not the same in `other`.
    fn unlike(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.filter(|_| self.cpu != other.cpu),
            memory: self.memory.filter(|_| self.memory != other.memory),
        }
    }

    /// Whether everything that is there is in `other` too: no amount can be taken off a container.
    fn is_within(self, other: Self) -> bool {
        (self.cpu.is_none() || other.cpu.is_some())
            && (self.memory.is_none() || other.memory.is_some())
    }
}

/// Kubernetes' quality-of-service class, which no Pod can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

fn class(template: &PodTemplate) -> Class {
    let all: Vec<Resources> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| resources(template, list))
        .collect();
    let is_full = |r: &Resources| {
        r.limits == r.requests && r.limits.cpu.is_some() && r.limits.memory.is_some()
    };
    if all.iter().all(|r| *r == Resources::default()) {
        Class::BestEffort
    } else if all.iter().all(is_full) {
        Class::Guaranteed
    } else {
        Class::Burstable
    }
}

/// The resources of a template's containers, in order.
fn resources<'a>(template: &'a PodTemplate, list: &str) -> Vec<Resources> {
    let containers: Option<&'a Vec<Value>> =
        template.0.get("spec").and_then(|s| s[list].as_array());
    containers.into_iter().flatten().map(Resources::of_template).collect()
}

/// Whether the API lets the containers of one template be given the resources of the other.
#[must_use]
pub fn can_be_resized(from: &PodTemplate, to: &PodTemplate) -> bool {
    let (old, new) = (resources(from, "containers"), resources(to, "containers"));
    let kept = |(old, new): (&Resources, &Resources)| {
        old.requests.is_within(new.requests) && old.limits.is_within(new.limits)
    };
    old.len() == new.len() && class(from) == class(to) && old.iter().zip(&new).all(kept)
}

/// Whether the templates give their containers different resources.
#[must_use]
pub fn differ(from: &PodTemplate, to: &PodTemplate) -> bool {
    resources(from, "containers") != resources(to, "containers")
}

/// What each container, by name, is given when a Pod of one template becomes one of the other: only
/// the amounts that differ, as somebody else may have set others.
#[must_use]
pub fn changes(from: &PodTemplate, to: &PodTemplate) -> BTreeMap<String, Resources> {
    let (old, new) = (by_name(from), by_name(to));
    let changed = new.into_iter().filter_map(|(name, wanted)| {
        let known = old.get(&name)?;
        let requests = wanted.requests.unlike(known.requests);
        let limits = wanted.limits.unlike(known.limits);
        let changes = Resources { requests, limits };
        (changes != Resources::default()).then_some((name, changes))
    });
    changed.collect()
}

/// What of it a Pod's containers do not have yet.
#[must_use]
pub fn missing(pod: &PodView, wanted: &BTreeMap<String, Resources>) -> BTreeMap<String, Resources> {
    let lacking = pod.containers.iter().filter_map(|container| {
        let wanted = wanted.get(&container.name)?;
        let requests = wanted.requests.unlike(container.resources.requests);
        let limits = wanted.limits.unlike(container.resources.limits);
        let missing = Resources { requests, limits };
        (missing != Resources::default()).then(|| (container.name.clone(), missing))
    });
    lacking.collect()
}

fn by_name(template: &PodTemplate) -> BTreeMap<String, Resources> {
    let containers = template.0.get("spec").and_then(|s| s["containers"].as_array());
    let named = containers
        .into_iter()
        .flatten()
        .filter_map(|c| Some((c["name"].as_str()?.to_owned(), Resources::of_template(c))));
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(resources: &Value) -> PodTemplate {
        let spec = json!({ "spec": { "containers": [{ "name": "a", "resources": resources }] } });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_is_not_asked_for_is_what_may_be_used() {
        let limits = json!({ "limits": { "cpu": "0.5", "memory": "1Ki" } });
        let read = Resources::of_template(&json!({ "resources": limits }));
        assert_eq!(read.requests, Amounts { cpu: Some(500), memory: Some(1024) });
        assert_eq!(Resources::from(Value::from(read)), read);
    }

    #[test]
    fn nothing_is_taken_off_and_the_class_stays() {
        let can = |from: Value, to: Value| can_be_resized(&template(&from), &template(&to));
        let asks = |cpu: &str| json!({ "requests": { "cpu": cpu } });
        assert!(can(asks("1"), asks("2")));
        assert!(!can(asks("1"), json!({ "requests": { "memory": "1Gi" } })));
        assert!(!can(json!({}), asks("1")), "it was of no class that promises anything");
        let full = |cpu: &str| json!({ "limits": { "cpu": cpu, "memory": "1Gi" } });
        assert!(can(full("1"), full("2")));
        let less =
            json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } });
        assert!(!can(full("1"), less));
    }

    #[test]
    fn only_what_the_template_changes_is_changed_in_the_container_of_that_name() {
        let spec = |cpu: &str| template(&json!({ "requests": { "cpu": cpu, "memory": "1Gi" } }));
        let wanted = changes(&spec("1"), &spec("2"));
        let container = |name: &str, resources: Value| crate::view::Container {
            name: name.to_owned(),
            resources: Resources::from(resources),
            ..crate::view::Container::default()
        };
        let defaulted =
            json!({ "requests": { "cpu": "1", "memory": "2Gi" }, "limits": { "cpu": "4" } });
        let mut pod = PodView {
            containers: vec![container("sidecar", json!({})), container("a", defaulted)],
            ..PodView::default()
        };
        let lacking = missing(&pod, &wanted);
        assert_eq!(json!(lacking), json!({ "a": { "requests": { "cpu": "2000m" } } }));
        pod.containers[1].resources.requests.cpu = Some(2000);
        assert!(missing(&pod, &wanted).is_empty());
    }
}
