//! Rules that count: who passes takes a place from others.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::SelectorExt as _;
use podops_api::{
    int_or_percent::{Rounding, resolve},
    transition_rule::{AvailablePolicy, AvailableRule, ExpFunc, PodCounts},
};

use crate::view::{Observed, PodView, RuleView};

/// The Pods that are out of service, or have been given leave to go out, by UID: nobody's budget is
/// spent on one of them twice.
#[derive(Clone, Debug, Default)]
pub struct UnavailablePods<'a>(BTreeSet<&'a str>);

impl<'a> UnavailablePods<'a> {
    /// Those that are out by what their labels say, or by a reservation that still holds.
    #[must_use]
    pub fn of(observed: &'a Observed) -> Self {
        let by_name: BTreeMap<&str, &PodView> =
            observed.pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
        let reserved = observed.rules.iter().flat_map(|rule| &rule.status.reservations);
        let reserved = reserved.filter_map(|r| by_name.get(r.pod.as_str()).filter(|p| p.holds(r)));
        let out = observed.pods.iter().filter(|pod| !pod.is_available());
        Self(out.chain(reserved.copied()).map(|pod| pod.uid.as_str()).collect())
    }

    /// Whether this Pod is out.
    #[must_use]
    pub fn has(&self, pod: &PodView) -> bool {
        self.0.contains(pod.uid.as_str())
    }

    /// Notes that a Pod goes out.
    pub fn add(&mut self, pod: &'a PodView) {
        self.0.insert(&pod.uid);
    }
}

/// How many of the Pods that a PodTransitionRule selects are what.
///
/// A Pod that a CollaSet has yet to make is one that is not available: a Pod that is deleted to be
/// made anew does not leave the count meanwhile. A Pod of a CollaSet that is being deleted is counted
/// by what takes its place; one of anybody else is counted until it is gone.
#[must_use]
pub fn count(rule: &RuleView, observed: &Observed, out: &UnavailablePods<'_>) -> PodCounts {
    let known: BTreeSet<&str> = observed.sets.iter().map(|set| set.uid.as_str()).collect();
    let mut live: BTreeMap<&str, usize> = BTreeMap::new();
    let mut concerned: BTreeSet<&str> = BTreeSet::new();
    let (mut total, mut unavailable) = (0, 0);
    for pod in &observed.pods {
        let set = pod.owner.as_ref().filter(|owner| known.contains(owner.uid.as_str()));
        let selected = rule.selects(pod);
        if let Some(set) = set {
            *live.entry(&set.uid).or_default() += usize::from(!pod.deleting);
        }
        if selected && !(pod.deleting && set.is_some()) {
            total += 1;
            unavailable += usize::from(out.has(pod));
        }
        if let Some(set) = set.filter(|_| selected) {
            concerned.insert(&set.uid);
        }
    }
    for set in &observed.sets {
        let uid = set.uid.as_str();
        // A set may have no Pod left that could tell.
        if concerned.contains(uid) || rule.selector.matches(&set.template_labels) {
            let missing = set.replicas.saturating_sub(live.get(uid).copied().unwrap_or_default());
            total += missing;
            unavailable += missing;
        }
    }
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    PodCounts {
        total: number(total),
        available: number(total - unavailable),
        unavailable: number(unavailable),
        waiting: 0,
    }
}

/// An availablePolicy in numbers: how many may be unavailable, and how many must be available.
///
/// The rounding rule: what may be unavailable is rounded up, what must be available down, so that a
/// share of few Pods never forbids every operation. Of several limits the strictest counts.
#[must_use]
pub fn limits(rule: &AvailableRule, all: i32) -> (Option<i32>, Option<i32>) {
    let total = usize::try_from(all).unwrap_or_default();
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let value = |value: &Option<IntOrString>, rounding| {
        value.as_ref().map(|value| number(resolve(value, total, rounding)))
    };
    let function = |policy: &Option<AvailablePolicy>, rounding| {
        let function = policy.as_ref().and_then(|policy| policy.exp_func.as_ref());
        function.map(|function| at(function, all, rounding))
    };
    let most = [
        value(&rule.max_unavailable_value, Rounding::Up),
        function(&rule.max_unavailable_policy, Rounding::Up),
    ];
    let least = [
        value(&rule.min_available_value, Rounding::Down),
        function(&rule.min_available_policy, Rounding::Down),
    ];
    (most.into_iter().flatten().min(), least.into_iter().flatten().max())
}

/// `coeff · n ^ pow`, between 0 and n.
fn at(function: &ExpFunc, total: i32, rounding: Rounding) -> i32 {
    let number = |text: &Option<String>| {
        text.as_deref().and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0)
    };
    let exact = number(&function.coeff) * f64::from(total).powf(number(&function.pow));
    let whole = match rounding {
        Rounding::Up => exact.ceil(),
        Rounding::Down => exact.floor(),
    };
    // The bounds make the conversion exact.
    #[allow(clippy::cast_possible_truncation, reason = "it is between 0 and an i32")]
    let whole = whole.clamp(0.0, f64::from(total)) as i32;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(rule: serde_json::Value, total: i32, expected: (Option<i32>, Option<i32>)) {
        let rule: AvailableRule = serde_json::from_value(rule).unwrap();
        assert_eq!(limits(&rule, total), expected);
    }

    #[test]
    fn shares_are_rounded_so_that_something_may_always_go() {
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
    fn a_function_grows_with_the_number_of_pods() {
        let root =
            json!({ "maxUnavailablePolicy": { "expFunc": { "coeff": "1.5", "pow": "0.5" } } });
        check(root.clone(), 4, (Some(3), None));
        check(root.clone(), 100, (Some(15), None));
        check(root, 0, (Some(0), None));
        let total = json!({ "minAvailablePolicy": { "expFunc": { "coeff": "3" } } });
        check(total, 7, (None, Some(7)));
    }

    #[test]
    fn of_several_limits_the_strictest_counts() {
        let both = json!({
            "maxUnavailableValue": 3, "maxUnavailablePolicy": { "expFunc": { "coeff": "0.1" } },
        });
        check(both, 10, (Some(1), None));
    }
}
