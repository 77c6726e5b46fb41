//! Budgets: counts of available Pods, and limits of an availablePolicy.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::SelectorExt as _;
use podops_api::{
    ids::Uid,
    int_or_percent::{Rounding, resolve},
    transition_rule::{AvailablePolicy, AvailableRule, ExpFunc, PodCounts},
};

use crate::view::{Observed, PodView, RuleView};

/// UIDs of the Pods that are unavailable or permitted to become so. A set, so that a Pod never
/// consumes the capacity of a budget twice.
#[derive(Clone, Debug, Default)]
pub struct UnavailablePods<'a>(BTreeSet<&'a Uid>);

impl<'a> UnavailablePods<'a> {
    /// Collects the Pods that are unavailable by their labels or have an active reservation.
    #[must_use]
    pub fn of(observed: &'a Observed) -> Self {
        let by_name: BTreeMap<&str, &PodView> =
            observed.pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
        let reservations = observed.rules.iter().flat_map(|rule| &rule.status.reservations);
        let reserved =
            reservations.filter_map(|r| by_name.get(r.pod.as_str()).filter(|p| p.has_operation(r)));
        let unavailable = observed.pods.iter().filter(|pod| !pod.is_available());
        Self(unavailable.chain(reserved.copied()).map(|pod| &pod.uid).collect())
    }

    /// Returns true if the Pod is in the set.
    #[must_use]
    pub fn contains(&self, pod: &PodView) -> bool {
        self.0.contains(&pod.uid)
    }

    /// Adds a Pod.
    pub fn insert(&mut self, pod: &'a PodView) {
        self.0.insert(&pod.uid);
    }
}

/// Counts the Pods that a PodTransitionRule selects, by state.
///
/// Pods that a CollaSet or StatefulSet has not created yet count as unavailable, so that a Pod that
/// is recreated stays in the count. A terminating Pod of one is not counted, because its
/// replacement is; one of another controller is counted until it is deleted. Terminal Pods are not
/// counted: their controllers replace them, or do not need them any more.
#[must_use]
pub fn count(
    rule: &RuleView,
    observed: &Observed,
    unavailable_pods: &UnavailablePods<'_>,
) -> PodCounts {
    let set_uids: BTreeSet<&Uid> = observed.sets.iter().map(|set| &set.uid).collect();
    let mut live: BTreeMap<&Uid, usize> = BTreeMap::new();
    let mut selected_sets: BTreeSet<&Uid> = BTreeSet::new();
    let mut total = 0;
    let mut unavailable = 0;
    for pod in observed.pods.iter().filter(|pod| !pod.terminal) {
        let set = pod.owner.as_ref().filter(|owner| set_uids.contains(&owner.uid));
        let selected = rule.selects(pod);
        if let Some(set) = set {
            *live.entry(&set.uid).or_default() += usize::from(!pod.deleting);
        }
        if selected && !(pod.deleting && set.is_some()) {
            total += 1;
            unavailable += usize::from(unavailable_pods.contains(pod));
        }
        if let Some(set) = set.filter(|_| selected) {
            selected_sets.insert(&set.uid);
        }
    }
    for set in &observed.sets {
        let uid = &set.uid;
        // By the template's labels too, because the set may have no Pod left.
        if selected_sets.contains(uid) || rule.selector.matches(&set.template_labels) {
            let missing = set.replicas.saturating_sub(live.get(uid).copied().unwrap_or_default());
            total += missing;
            unavailable += missing;
        }
    }
    PodCounts {
        total: saturated(total),
        available: saturated(total - unavailable),
        unavailable: saturated(unavailable),
        waiting: 0,
    }
}

/// Limits of an availablePolicy, in Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of unavailable Pods.
    pub max_unavailable: Option<i32>,
    /// Minimum number of available Pods.
    pub min_available: Option<i32>,
}

impl Limits {
    /// Resolves an availablePolicy for `total` Pods.
    ///
    /// Percentages of maxUnavailable are rounded up and of minAvailable down, so that a percentage
    /// of few Pods never blocks every operation. Of several limits the strictest applies.
    #[must_use]
    pub fn of(rule: &AvailableRule, total: i32) -> Self {
        let max_unavailable = [
            limit_of_value(rule.max_unavailable_value.as_ref(), total, Rounding::Up),
            limit_of_policy(rule.max_unavailable_policy.as_ref(), total, Rounding::Up),
        ];
        let min_available = [
            limit_of_value(rule.min_available_value.as_ref(), total, Rounding::Down),
            limit_of_policy(rule.min_available_policy.as_ref(), total, Rounding::Down),
        ];
        Self {
            max_unavailable: max_unavailable.into_iter().flatten().min(),
            min_available: min_available.into_iter().flatten().max(),
        }
    }
}

/// Converts a number of Pods to the type of a status.
pub(crate) fn saturated(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn limit_of_value(value: Option<&IntOrString>, total: i32, rounding: Rounding) -> Option<i32> {
    let total = usize::try_from(total).unwrap_or_default();
    value.map(|value| saturated(resolve(value, total, rounding)))
}

fn limit_of_policy(
    policy: Option<&AvailablePolicy>,
    total: i32,
    rounding: Rounding,
) -> Option<i32> {
    let function = policy?.exp_func.as_ref()?;
    Some(evaluate(function, total, rounding))
}

/// Returns `coeff · n ^ pow`, clamped to 0..=n, where n is the number of Pods.
fn evaluate(function: &ExpFunc, total: i32, rounding: Rounding) -> i32 {
    let coeff = number_or_one(function.coeff.as_deref());
    let exact = coeff * f64::from(total).powf(number_or_one(function.pow.as_deref()));
    let rounded = match rounding {
        Rounding::Up => exact.ceil(),
        Rounding::Down => exact.floor(),
    };
    // The bounds make the conversion exact.
    #[allow(clippy::cast_possible_truncation, reason = "clamped to the range of an i32")]
    let whole = rounded.clamp(0.0, f64::from(total)) as i32;
    whole
}

fn number_or_one(text: Option<&str>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(rule: serde_json::Value, total: i32, expected: (Option<i32>, Option<i32>)) {
        let rule: AvailableRule = serde_json::from_value(rule).unwrap();
        let Limits { max_unavailable, min_available } = Limits::of(&rule, total);
        assert_eq!((max_unavailable, min_available), expected);
    }

    #[test]
    fn percentages_are_rounded_to_allow_an_operation() {
        check(json!({ "maxUnavailableValue": "25%" }), 3, (Some(1), None));
        check(json!({ "minAvailableValue": "75%" }), 3, (None, Some(2)));
        check(json!({ "maxUnavailableValue": "0%" }), 3, (Some(0), None));
        check(
            json!({ "maxUnavailableValue": 5, "minAvailableValue": "50%" }),
            3,
            (Some(5), Some(1)),
        );
    }

    #[test]
    fn exp_func_limits_grow_with_the_number_of_pods() {
        let root =
            json!({ "maxUnavailablePolicy": { "expFunc": { "coeff": "1.5", "pow": "0.5" } } });
        check(root.clone(), 4, (Some(3), None));
        check(root.clone(), 100, (Some(15), None));
        check(root, 0, (Some(0), None));
        let total = json!({ "minAvailablePolicy": { "expFunc": { "coeff": "3" } } });
        check(total, 7, (None, Some(7)));
    }

    #[test]
    fn the_strictest_limit_applies() {
        let both = json!({
            "maxUnavailableValue": 3, "maxUnavailablePolicy": { "expFunc": { "coeff": "0.1" } },
        });
        check(both, 10, (Some(1), None));
    }
}
