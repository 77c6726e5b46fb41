//! Takes an eviction's part of the PodDisruptionBudget that covers the Pod, as the API server does for
//! an eviction that it carries out itself: here the Pod goes later, and must be counted at once.

use jiff::Timestamp;
use k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::Time};
use kube::core::{Selector, SelectorExt as _};
use podops_api::lifecycle::Labels;
use podops_runtime::write::{JsonPatch, Resource, Target, Write};
use serde_json::json;

/// PodDisruptionBudgets.
pub const BUDGETS: Resource =
    Resource { group: "policy", version: "v1", plural: "poddisruptionbudgets" };

/// More Pods than any budget has on their way out; the API server's own limit.
const DISRUPTED_MAX: usize = 2000;

/// How far a Pod is, as budgets have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// It has not started: nobody counts on it.
    NotYet,
    /// It runs, and is not Ready.
    Unready,
    /// It is Ready.
    Ready,
}

/// Why a Pod may not be evicted now, as the API server tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// For people.
    pub message: String,
    /// What is behind it.
    pub cause: String,
    /// Whether asking again later may help.
    pub passing: bool,
}

/// The write that takes a part for the Pod, if one has to be taken.
///
/// # Errors
///
/// If there is none to take.
pub fn take(
    budgets: &[PodDisruptionBudget],
    name: &str,
    labels: &Labels,
    running: Running,
    now: Timestamp,
) -> Result<Option<Write>, Denial> {
    if running == Running::NotYet {
        return Ok(None);
    }
    let covers = |budget: &&PodDisruptionBudget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
        selector.is_some_and(|selector| selector.matches(labels))
    };
    let mut covering = budgets.iter().filter(covers);
    let Some(budget) = covering.next() else { return Ok(None) };
    if covering.next().is_some() {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        let (message, cause) = (message.to_owned(), String::new());
        return Err(Denial { message, cause, passing: false });
    }
    if running == Running::Unready && goes_unready(budget) {
        return Ok(None);
    }
    take_from(budget, name, now)
}

/// Healthy Pods: how many there are to be, and how many there are.
fn healthy(budget: &PodDisruptionBudget) -> (i32, i32) {
    let status = budget.status.as_ref();
    let number = |n: Option<i32>| n.unwrap_or_default();
    status.map_or((0, 0), |s| (number(s.desired_healthy), number(s.current_healthy)))
}

/// Whether a Pod that is not Ready may go without a part of the budget.
fn goes_unready(budget: &PodDisruptionBudget) -> bool {
    let policy = budget.spec.as_ref().and_then(|s| s.unhealthy_pod_eviction_policy.as_deref());
    let (desired, current) = healthy(budget);
    policy == Some("AlwaysAllow") || desired > 0 && current >= desired
}

fn take_from(
    budget: &PodDisruptionBudget,
    pod: &str,
    now: Timestamp,
) -> Result<Option<Write>, Denial> {
    let metadata = &budget.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let refusal = |cause: String| Denial {
        message: "Cannot evict pod as it would violate the pod's disruption budget.".to_owned(),
        cause,
        passing: true,
    };
    let current = budget.status.as_ref().filter(|s| s.observed_generation >= metadata.generation);
    let Some(status) = current else {
        return Err(refusal(format!(
            "The disruption budget {name} is still being processed by the server."
        )));
    };
    let mut disrupted = status.disrupted_pods.clone().unwrap_or_default();
    if disrupted.contains_key(pod) {
        return Ok(None);
    }
    let allowed = status.disruptions_allowed.unwrap_or_default();
    if allowed < 1 || disrupted.len() >= DISRUPTED_MAX {
        let (desired, current) = healthy(budget);
        return Err(refusal(format!(
            "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
        )));
    }
    disrupted.insert(pod.to_owned(), Time(now));
    let change = JsonPatch::default()
        .test(&["metadata", "resourceVersion"], json!(metadata.resource_version))
        .add(&["status", "disruptionsAllowed"], json!(allowed - 1))
        .add(&["status", "disruptedPods"], json!(disrupted));
    let target = Target {
        resource: BUDGETS,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name,
        subresource: Some("status"),
    };
    Ok(Some(Write::Patch(target, change.build())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn budget(selector: &str, allowed: i32) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": { "name": "b", "namespace": "ns", "generation": 2, "resourceVersion": "7" },
            "spec": { "selector": { "matchLabels": { "app": selector } } },
            "status": {
                "observedGeneration": 2, "disruptionsAllowed": allowed, "expectedPods": 3,
                "currentHealthy": 2 + allowed, "desiredHealthy": 2,
            },
        }))
        .unwrap()
    }

    fn taken(budgets: &[PodDisruptionBudget], ready: bool) -> Result<bool, String> {
        let running = if ready { Running::Ready } else { Running::Unready };
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let taken = take(budgets, "web-1", &labels, running, now());
        taken.map(|write| write.is_some()).map_err(|refusal| refusal.cause)
    }

    #[test]
    fn a_part_is_taken_where_one_is_left_and_by_nobody_twice() {
        assert_eq!(taken(&[budget("web", 1), budget("other", 0)], true), Ok(true));
        let used = "The disruption budget b needs 2 healthy pods and has 2 currently";
        assert_eq!(taken(&[budget("web", 0)], true), Err(used.to_owned()));
        let mut again = budget("web", 0);
        let disrupted = [("web-1".to_owned(), Time(now()))];
        again.status.as_mut().unwrap().disrupted_pods = Some(disrupted.into());
        assert_eq!(taken(&[again], true), Ok(false));
        assert_eq!(taken(&[budget("other", 0)], true), Ok(false));
    }

    #[test]
    fn the_part_is_written_as_the_api_server_writes_it() {
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let write =
            take(&[budget("web", 1)], "web-1", &labels, Running::Ready, now()).unwrap().unwrap();
        let Write::Patch(target, podops_runtime::write::Change::Json(patch)) = write else {
            unreachable!("a part is taken by a JSON patch")
        };
        assert_eq!(target.to_string(), "poddisruptionbudgets ns/b (status)");
        let mut object = json!({ "metadata": { "resourceVersion": "7" }, "status": {} });
        json_patch::patch(&mut object, &patch).unwrap();
        let status = json!({
            "disruptionsAllowed": 0, "disruptedPods": { "web-1": "1970-01-01T00:16:40Z" },
        });
        assert_eq!(object["status"], status);
    }

    #[test]
    fn a_budget_that_is_behind_or_one_of_several_lets_nobody_go() {
        let mut behind = budget("web", 1);
        behind.metadata.generation = Some(3);
        assert!(taken(&[behind], true).unwrap_err().contains("still being processed"));
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let several = [budget("web", 1), budget("web", 1)];
        let refusal = take(&several, "web-1", &labels, Running::Ready, now()).unwrap_err();
        assert!(!refusal.passing, "{refusal:?}");
    }

    #[test]
    fn a_pod_that_is_not_ready_goes_as_its_budget_has_it() {
        assert_eq!(taken(&[budget("web", 0)], false), Ok(false), "the others are enough");
        let mut short = budget("web", 0);
        short.status.as_mut().unwrap().current_healthy = Some(1);
        assert!(taken(&[short.clone()], false).is_err());
        short.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = Some("AlwaysAllow".to_owned());
        assert_eq!(taken(&[short.clone()], false), Ok(false));
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let young = take(&[budget("web", 0)], "web-1", &labels, Running::NotYet, now());
        assert_eq!(young, Ok(None), "one that has not started is not counted on");
    }
}
