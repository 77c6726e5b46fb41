//! Consumes one disruption of the PodDisruptionBudget that covers a Pod, as the API server does for
//! an eviction that it carries out. Here the Pod is deleted later, but must be counted at once.

use jiff::Timestamp;
use k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::Time};
use kube::core::{Selector, SelectorExt as _};
use podops_api::{ids::PodName, lifecycle::Labels};
use podops_client::write::{JsonPatch, Resource, Target, Write};
use serde_json::json;

/// Resource of policy/v1 PodDisruptionBudgets.
const BUDGETS: Resource =
    Resource { group: "policy", version: "v1", plural: "poddisruptionbudgets" };

/// Maximum number of `disruptedPods` entries; the same limit as in the API server.
const DISRUPTED_PODS_MAX: usize = 2000;

/// Readiness of a Pod, as PodDisruptionBudgets distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodReadiness {
    /// The Pod's phase is Pending: it is not counted as healthy.
    Pending,
    /// The Pod runs and is not Ready.
    Unready,
    /// The Pod is Ready.
    Ready,
}

/// Denial of an eviction, with the API server's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Message for the user.
    pub message: String,
    /// Detailed cause; may be empty.
    pub cause: String,
    /// True if the same request may succeed later.
    pub retryable: bool,
}

impl Denial {
    /// Returns the denial after this number of conflicting updates of the budget.
    #[must_use]
    pub fn conflicted(attempts: usize) -> Self {
        let message = format!("PodDisruptionBudget update conflicted {attempts} times; retry");
        Self { message, cause: String::new(), retryable: true }
    }

    /// Returns the denial by a budget that currently allows no disruption.
    fn exhausted(cause: String) -> Self {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Self { message: message.to_owned(), cause, retryable: true }
    }
}

/// Returns the write that consumes one disruption for the Pod; `None` if the Pod consumes none.
///
/// # Errors
///
/// [`Denial`] if the budget allows no disruption, is not up to date, or if several budgets cover
/// the Pod.
pub fn consume_disruption(
    budgets: &[PodDisruptionBudget],
    pod: &PodName,
    labels: &Labels,
    readiness: PodReadiness,
    now: Timestamp,
) -> Result<Option<Write>, Denial> {
    if readiness == PodReadiness::Pending {
        return Ok(None);
    }
    let mut covering = budgets.iter().filter(|budget| covers(budget, labels));
    let Some(budget) = covering.next() else { return Ok(None) };
    if covering.next().is_some() {
        let message = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        return Err(Denial { message: message.to_owned(), cause: String::new(), retryable: false });
    }
    if readiness == PodReadiness::Unready && may_evict_unready(budget) {
        return Ok(None);
    }
    consume_from(budget, pod, now)
}

/// Returns whether the budget's selector matches a Pod with these labels.
fn covers(budget: &PodDisruptionBudget, labels: &Labels) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    selector
        .and_then(|selector| Selector::try_from(selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}

/// Numbers of healthy Pods in a budget's status.
#[derive(Clone, Copy, Default)]
struct HealthyPods {
    desired: i32,
    current: i32,
}

impl HealthyPods {
    fn of(budget: &PodDisruptionBudget) -> Self {
        budget.status.as_ref().map_or_else(Self::default, |status| Self {
            desired: status.desired_healthy.unwrap_or_default(),
            current: status.current_healthy.unwrap_or_default(),
        })
    }
}

/// Returns whether an unready Pod may be evicted without consuming a disruption.
fn may_evict_unready(budget: &PodDisruptionBudget) -> bool {
    let policy = budget.spec.as_ref().and_then(|s| s.unhealthy_pod_eviction_policy.as_deref());
    let HealthyPods { desired, current } = HealthyPods::of(budget);
    policy == Some("AlwaysAllow") || desired > 0 && current >= desired
}

fn consume_from(
    budget: &PodDisruptionBudget,
    pod: &PodName,
    now: Timestamp,
) -> Result<Option<Write>, Denial> {
    let metadata = &budget.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let current = budget.status.as_ref().filter(|s| s.observed_generation >= metadata.generation);
    let Some(status) = current else {
        return Err(Denial::exhausted(format!(
            "The disruption budget {name} is still being processed by the server."
        )));
    };
    let mut disrupted = status.disrupted_pods.clone().unwrap_or_default();
    if disrupted.contains_key(&**pod) {
        return Ok(None);
    }
    let allowed = status.disruptions_allowed.unwrap_or_default();
    if allowed < 1 || disrupted.len() >= DISRUPTED_PODS_MAX {
        let HealthyPods { desired, current } = HealthyPods::of(budget);
        return Err(Denial::exhausted(format!(
            "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
        )));
    }
    disrupted.insert(pod.to_string(), Time(now));
    let change = JsonPatch::default()
        .test(&["metadata", "resourceVersion"], json!(metadata.resource_version))
        .add(&["status", "disruptionsAllowed"], json!(allowed - 1))
        .add(&["status", "disruptedPods"], json!(disrupted));
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let target = Target::new(BUDGETS, namespace, &name).subresource("status");
    Ok(Some(Write::Patch { target, change: change.build() }))
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

    /// Returns whether an eviction of `web-1` consumes a disruption, or the cause of the denial.
    fn consumes(budgets: &[PodDisruptionBudget], ready: bool) -> Result<bool, String> {
        let readiness = if ready { PodReadiness::Ready } else { PodReadiness::Unready };
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let consumed = consume_disruption(budgets, &"web-1".into(), &labels, readiness, now());
        consumed.map(|write| write.is_some()).map_err(|denial| denial.cause)
    }

    #[test]
    fn one_disruption_is_consumed_once_per_pod_if_allowed() {
        assert_eq!(consumes(&[budget("web", 1), budget("other", 0)], true), Ok(true));
        let exhausted = "The disruption budget b needs 2 healthy pods and has 2 currently";
        assert_eq!(consumes(&[budget("web", 0)], true), Err(exhausted.to_owned()));
        let mut listed = budget("web", 0);
        let disrupted = [("web-1".to_owned(), Time(now()))];
        listed.status.as_mut().unwrap().disrupted_pods = Some(disrupted.into());
        assert_eq!(consumes(&[listed], true), Ok(false));
        assert_eq!(consumes(&[budget("other", 0)], true), Ok(false));
    }

    #[test]
    fn a_consumed_disruption_is_written_as_by_the_api_server() {
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let write = consume_disruption(
            &[budget("web", 1)],
            &"web-1".into(),
            &labels,
            PodReadiness::Ready,
            now(),
        )
        .unwrap()
        .unwrap();
        let Write::Patch { target, change: podops_client::write::Change::Json(patch) } = write
        else {
            unreachable!("disruptions are consumed by a JSON patch")
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
    fn stale_or_multiple_budgets_deny_the_eviction() {
        let mut stale = budget("web", 1);
        stale.metadata.generation = Some(3);
        assert!(consumes(&[stale], true).unwrap_err().contains("still being processed"));
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let several = [budget("web", 1), budget("web", 1)];
        let denial =
            consume_disruption(&several, &"web-1".into(), &labels, PodReadiness::Ready, now())
                .unwrap_err();
        assert!(!denial.retryable, "{denial:?}");
    }

    #[test]
    fn unready_pods_follow_the_unhealthy_pod_eviction_policy() {
        assert_eq!(consumes(&[budget("web", 0)], false), Ok(false), "enough healthy Pods remain");
        let mut too_few = budget("web", 0);
        too_few.status.as_mut().unwrap().current_healthy = Some(1);
        assert!(consumes(&[too_few.clone()], false).is_err());
        too_few.spec.as_mut().unwrap().unhealthy_pod_eviction_policy =
            Some("AlwaysAllow".to_owned());
        assert_eq!(consumes(&[too_few.clone()], false), Ok(false));
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let pending = consume_disruption(
            &[budget("web", 0)],
            &"web-1".into(),
            &labels,
            PodReadiness::Pending,
            now(),
        );
        assert_eq!(pending, Ok(None), "pending Pods consume no disruption");
    }
}
