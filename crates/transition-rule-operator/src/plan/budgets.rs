//! Tracks the remaining capacity of budgets while the operations of one reconcile are passed.

use std::collections::BTreeMap;

use podops_api::transition_rule::{PodCounts, TopologySpreadRule};

use crate::{
    rules::available_policy::{Limits, UnavailablePods, count, saturated},
    view::{BudgetView, DefinedRule, Observed, PodView, RuleView},
};

/// Unavailable Pods, and the capacity that they leave in each budget.
#[derive(Clone, Debug)]
pub(super) struct RemainingBudgets<'a> {
    observed: &'a Observed,
    unavailable: UnavailablePods<'a>,
    /// Pod counts by name of the PodTransitionRule.
    counts: BTreeMap<&'a str, PodCounts>,
    /// Number of disruptions that each PodDisruptionBudget has not counted in its status yet, in
    /// the order of [`Observed::budgets`].
    uncounted: Vec<usize>,
    /// Number of unavailable Pods by topology value, by PodTransitionRule and topology key.
    spread: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, usize>>,
}

impl<'a> RemainingBudgets<'a> {
    /// Builds the budgets from the observed state, before any operation is passed.
    pub(super) fn new(observed: &'a Observed) -> Self {
        let unavailable = UnavailablePods::of(observed);
        let counts = observed
            .rules
            .iter()
            .map(|rule| (rule.name.as_str(), count(rule, observed, &unavailable)));
        let mut budgets = Self {
            observed,
            counts: counts.collect(),
            uncounted: observed
                .budgets
                .iter()
                .map(|budget| uncounted(observed, budget, &unavailable))
                .collect(),
            spread: BTreeMap::new(),
            unavailable,
        };
        for rule in &observed.rules {
            let keys = rule.rules.iter().filter_map(|r| r.spec.topology_spread.as_ref());
            for key in keys.map(|spread| spread.topology_key.as_str()) {
                let by_value = budgets.spread.entry((&rule.name, key)).or_default();
                for pod in observed
                    .pods
                    .iter()
                    .filter(|pod| !pod.terminal && rule.selects(pod))
                    .filter(|pod| budgets.unavailable.contains(pod))
                {
                    *by_value.entry(topology_value(observed, pod, key)).or_default() += 1;
                }
            }
        }
        budgets
    }

    /// Number of Pods that a PodTransitionRule selects, by state.
    pub(super) fn counts(&self, owner: &RuleView) -> PodCounts {
        self.counts.get(owner.name.as_str()).copied().unwrap_or_default()
    }

    /// Returns true if a Pod is unavailable or permitted to become so.
    pub(super) fn is_unavailable(&self, pod: &PodView) -> bool {
        self.unavailable.contains(pod)
    }

    /// Limits of an availablePolicy; none for other rules.
    pub(super) fn limits(&self, defined: DefinedRule<'_>) -> Limits {
        let policy = defined.rule.spec.available_policy.as_ref();
        policy.map_or_else(Limits::default, |policy| {
            Limits::of(policy, self.counts(defined.owner).total)
        })
    }

    /// Number of Pods in operation above the rule's limits, according to `counts`.
    pub(super) fn excess(&self, defined: DefinedRule<'_>, counts: PodCounts) -> i32 {
        let Limits { max_unavailable, min_available } = self.limits(defined);
        let beyond = max_unavailable.map_or(0, |max| counts.unavailable - max);
        let below = min_available.map_or(0, |min| min - counts.available);
        let pods = self.observed.pods.iter();
        let granted = pods.filter(|pod| defined.owner.selects(pod) && pod.is_granted());
        beyond.max(below).clamp(0, saturated(granted.count()))
    }

    /// Returns why the rule has no capacity for a Pod, or `None` if it has. A Pod that is
    /// unavailable already needs none.
    pub(super) fn rejection_reason(
        &self,
        defined: DefinedRule<'_>,
        pod: &PodView,
    ) -> Option<String> {
        if self.unavailable.contains(pod) {
            return None;
        }
        let spec = &defined.rule.spec;
        if spec.available_policy.is_some() {
            return self.available_policy_reason(defined);
        }
        if let Some(spread) = &spec.topology_spread {
            return self.topology_spread_reason(defined.owner, spread, pod);
        }
        spec.disruption_budget.as_ref().and_then(|_| self.disruption_budget_reason(pod))
    }

    /// Returns true if the limits of the rule permit no Pod to be unavailable.
    pub(super) fn permits_none(&self, defined: DefinedRule<'_>) -> bool {
        let Limits { max_unavailable, min_available } = self.limits(defined);
        let total = self.counts(defined.owner).total;
        let spread = defined.rule.spec.topology_spread.as_ref();
        max_unavailable == Some(0)
            || min_available.is_some_and(|min| min >= total)
            || spread.is_some_and(|spread| spread.max_unavailable == 0)
    }

    fn available_policy_reason(&self, defined: DefinedRule<'_>) -> Option<String> {
        let counts = self.counts(defined.owner);
        let Limits { max_unavailable, min_available } = self.limits(defined);
        if let Some(max) = max_unavailable.filter(|max| counts.unavailable >= *max) {
            return Some(format!(
                "{} of {} Pods unavailable, maxUnavailable={max}",
                counts.unavailable, counts.total
            ));
        }
        let min = min_available.filter(|min| counts.available <= *min)?;
        Some(format!("{} of {} Pods available, minAvailable={min}", counts.available, counts.total))
    }

    fn topology_spread_reason(
        &self,
        owner: &RuleView,
        spread: &TopologySpreadRule,
        pod: &PodView,
    ) -> Option<String> {
        let key = spread.topology_key.as_str();
        let value = topology_value(self.observed, pod, key);
        let by_value = self.spread.get(&(owner.name.as_str(), key));
        let unavailable = by_value.and_then(|by| by.get(value)).copied().unwrap_or_default();
        let max = usize::try_from(spread.max_unavailable).unwrap_or_default();
        (unavailable >= max).then(|| {
            format!("{unavailable} Pods unavailable in {key}={value}, maxUnavailable={max}")
        })
    }

    fn disruption_budget_reason(&self, pod: &PodView) -> Option<String> {
        let budgets = self.observed.budgets.iter().zip(&self.uncounted);
        let mut limiting = budgets.filter(|(budget, _)| budget.limits(pod));
        limiting.find_map(|(budget, uncounted)| match budget.disruptions_allowed {
            None => Some(format!("PodDisruptionBudget {}: status is not up to date", budget.name)),
            Some(allowed) if allowed <= *uncounted => Some(format!(
                "PodDisruptionBudget {}: disruptionsAllowed={allowed}, {uncounted} consumed",
                budget.name
            )),
            Some(_) => None,
        })
    }

    /// Consumes the capacity for a Pod in every budget that selects it.
    pub(super) fn consume(&mut self, pod: &'a PodView) {
        if self.unavailable.contains(pod) {
            return;
        }
        self.unavailable.insert(pod);
        for rule in self.observed.selecting(pod) {
            if let Some(counts) = self.counts.get_mut(rule.name.as_str()) {
                counts.available -= 1;
                counts.unavailable += 1;
            }
            for ((name, key), by_value) in &mut self.spread {
                if *name == rule.name {
                    *by_value.entry(topology_value(self.observed, pod, key)).or_default() += 1;
                }
            }
        }
        for (budget, uncounted) in self.observed.budgets.iter().zip(&mut self.uncounted) {
            *uncounted += usize::from(budget.limits(pod));
        }
    }
}

/// Number of disruptions that a PodDisruptionBudget has not counted in its status yet. The
/// disruption controller counts a Pod as disrupted some time after it stops being Ready.
fn uncounted(observed: &Observed, budget: &BudgetView, unavailable: &UnavailablePods<'_>) -> usize {
    let uncounted = observed.pods.iter().filter(|pod| {
        budget.limits(pod)
            && unavailable.contains(pod)
            && (pod.ready || pod.is_granted() && pod.version > budget.version)
    });
    uncounted.count()
}

/// Value of a label of the Pod's node; empty if the node or the label is unknown.
fn topology_value<'a>(observed: &'a Observed, pod: &PodView, key: &str) -> &'a str {
    let labels = pod.node.as_ref().and_then(|node| observed.nodes.get(node));
    labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
}
