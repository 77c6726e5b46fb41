//! CPU and memory of containers, which can be resized in place.

use std::collections::BTreeMap;

use podops_api::template::PodTemplate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::compat::quantity;

/// CPU and memory requests and limits of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value", into = "Value")]
pub struct Resources {
    /// Requests.
    pub requests: Amounts,
    /// Limits.
    pub limits: Amounts,
}

/// Amounts of CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU in millicores; `None` if not specified.
    pub cpu: Option<i64>,
    /// Memory in bytes; `None` if not specified.
    pub memory: Option<i64>,
}

impl From<Value> for Resources {
    /// Parses a container's `resources`.
    fn from(resources: Value) -> Self {
        Self {
            requests: Amounts::parse(&resources["requests"]),
            limits: Amounts::parse(&resources["limits"]),
        }
    }
}

impl Resources {
    /// Returns the specified amounts that differ from `other`; `None` if there are none.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Self> {
        let difference = Self {
            requests: self.requests.difference(other.requests),
            limits: self.limits.difference(other.limits),
        };
        (difference != Self::default()).then_some(difference)
    }

    /// Overwrites the amounts that `other` specifies.
    pub fn set(&mut self, other: &Self) {
        self.requests = other.requests.or(self.requests);
        self.limits = other.limits.or(self.limits);
    }

    /// Returns whether they suffice for [`QosClass::Guaranteed`].
    fn is_guaranteed(&self) -> bool {
        self.limits == self.requests && self.limits.cpu.is_some() && self.limits.memory.is_some()
    }

    /// Returns whether `other` specifies every amount that these resources do.
    fn is_subset_of(&self, other: &Self) -> bool {
        self.requests.is_subset_of(other.requests) && self.limits.is_subset_of(other.limits)
    }

    /// Resources of a container of a Pod template; requests default to the limits.
    fn of_template(container: &Value) -> Self {
        let specified = Self::from(container["resources"].clone());
        Self { requests: specified.requests.or(specified.limits), ..specified }
    }
}

impl From<Resources> for Value {
    fn from(resources: Resources) -> Self {
        let mut fields = Map::new();
        for (list, amounts) in [("requests", resources.requests), ("limits", resources.limits)] {
            if amounts != Amounts::default() {
                fields.insert(list.to_owned(), Value::Object(amounts.to_json()));
            }
        }
        Self::Object(fields)
    }
}

impl Amounts {
    fn parse(list: &Value) -> Self {
        const MILLI: i128 = 1_000_000;
        const ONE: i128 = 1_000_000_000;
        Self { cpu: amount(list, "cpu", MILLI), memory: amount(list, "memory", ONE) }
    }

    fn or(self, other: Self) -> Self {
        Self { cpu: self.cpu.or(other.cpu), memory: self.memory.or(other.memory) }
    }

    fn to_json(self) -> Map<String, Value> {
        let cpu = self.cpu.map(|milli| ("cpu".to_owned(), json!(format!("{milli}m"))));
        let memory = self.memory.map(|bytes| ("memory".to_owned(), json!(bytes.to_string())));
        cpu.into_iter().chain(memory).collect()
    }

    /// Returns the specified amounts that differ from `other`.
    fn difference(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.filter(|_| self.cpu != other.cpu),
            memory: self.memory.filter(|_| self.memory != other.memory),
        }
    }

    /// Returns whether `other` specifies every amount that this one does: a resize cannot remove
    /// amounts.
    fn is_subset_of(self, other: Self) -> bool {
        (self.cpu.is_none() || other.cpu.is_some())
            && (self.memory.is_none() || other.memory.is_some())
    }
}

/// Parses an amount of a list; `unit` is in billionths.
fn amount(list: &Value, name: &str, unit: i128) -> Option<i64> {
    let quantity = list.get(name)?;
    let text = quantity.as_str().map_or_else(|| quantity.to_string(), ToOwned::to_owned);
    let billionths = quantity::value(&text)?;
    // Kubernetes rounds up to the smallest unit that it supports.
    i64::try_from((billionths + unit - 1).div_euclid(unit)).ok()
}

/// Kubernetes' quality-of-service class, which is immutable for a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

fn qos_class(template: &PodTemplate) -> QosClass {
    let all: Vec<Resources> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| resources(template, list))
        .collect();
    if all.iter().all(|r| *r == Resources::default()) {
        QosClass::BestEffort
    } else if all.iter().all(Resources::is_guaranteed) {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Returns the resources of a template's containers, in spec order.
fn resources<'a>(template: &'a PodTemplate, list: &str) -> Vec<Resources> {
    let containers: Option<&'a Vec<Value>> =
        template.0.get("spec").and_then(|s| s[list].as_array());
    containers.into_iter().flatten().map(Resources::of_template).collect()
}

/// Returns whether the API server permits resizing the containers of `from` to those of `to`.
#[must_use]
pub fn can_be_resized(from: &PodTemplate, to: &PodTemplate) -> bool {
    let old = resources(from, "containers");
    let new = resources(to, "containers");
    old.len() == new.len()
        && qos_class(from) == qos_class(to)
        && old.iter().zip(&new).all(|(old, new)| old.is_subset_of(new))
}

/// Returns whether the templates specify different container resources.
#[must_use]
pub fn differ(from: &PodTemplate, to: &PodTemplate) -> bool {
    resources(from, "containers") != resources(to, "containers")
}

/// Returns the resize from one template to another, by container name: only the amounts that
/// differ, because other controllers may have set the rest.
#[must_use]
pub fn changes(from: &PodTemplate, to: &PodTemplate) -> BTreeMap<String, Resources> {
    let old = by_name(from);
    let new = by_name(to);
    let changed = new.into_iter().filter_map(|(name, wanted)| {
        let changes = wanted.difference(old.get(&name)?)?;
        Some((name, changes))
    });
    changed.collect()
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
    fn requests_default_to_limits() {
        let limits = json!({ "limits": { "cpu": "0.5", "memory": "1Ki" } });
        let parsed = Resources::of_template(&json!({ "resources": limits }));
        assert_eq!(parsed.requests, Amounts { cpu: Some(500), memory: Some(1024) });
        assert_eq!(Resources::from(Value::from(parsed)), parsed);
    }

    #[test]
    fn resize_keeps_amounts_and_the_qos_class() {
        let can = |from: Value, to: Value| can_be_resized(&template(&from), &template(&to));
        let requests = |cpu: &str| json!({ "requests": { "cpu": cpu } });
        assert!(can(requests("1"), requests("2")));
        assert!(!can(requests("1"), json!({ "requests": { "memory": "1Gi" } })));
        assert!(!can(json!({}), requests("1")), "BestEffort would become Burstable");
        let full = |cpu: &str| json!({ "limits": { "cpu": cpu, "memory": "1Gi" } });
        assert!(can(full("1"), full("2")));
        let less =
            json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "500m" } });
        assert!(!can(full("1"), less));
    }

    #[test]
    fn resize_changes_only_the_amounts_that_the_template_changes() {
        let spec = |cpu: &str| template(&json!({ "requests": { "cpu": cpu, "memory": "1Gi" } }));
        let wanted = changes(&spec("1"), &spec("2"));
        assert_eq!(json!(wanted), json!({ "a": { "requests": { "cpu": "2000m" } } }));
    }
}
