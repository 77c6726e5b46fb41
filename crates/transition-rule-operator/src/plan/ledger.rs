//! Tracks the remaining capacity of budgets while the operations of one reconcile are passed.

use std::collections::BTreeMap;

use kube::core::SelectorExt as _;
use podops_api::transition_rule::PodCounts;

use crate::{
    rules::budget::{UnavailablePods, count, limits},
    view::{Observed, PodView, Rule, RuleView},
};

/// Unavailable Pods, and the capacity that they leave in each budget.
#[derive(Clone, Debug)]
pub struct BudgetLedger<'a> {
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

impl<'a> BudgetLedger<'a> {
    /// Builds the ledger from the observed state, before any operation is passed.
    #[must_use]
    pub fn new(observed: &'a Observed) -> Self {
        let unavailable = UnavailablePods::of(observed);
        let counts = observed
            .rules
            .iter()
            .map(|rule| (rule.name.as_str(), count(rule, observed, &unavailable)));
        let mut ledger = Self {
            observed,
            counts: counts.collect(),
            uncounted: vec![0; observed.budgets.len()],
            spread: BTreeMap::new(),
            unavailable: unavailable.clone(),
        };
        for (budget, uncounted) in observed.budgets.iter().zip(&mut ledger.uncounted) {
            let is_uncounted = |pod: &&PodView| {
                let selected = budget.selector.as_ref().is_some_and(|s| s.matches(&pod.labels));
                // The disruption controller counts a Pod as disrupted some time after it stops
                // being Ready.
                selected
                    && unavailable.contains(pod)
                    && !budget.disrupted_pods.contains(&pod.name)
                    && (pod.ready || pod.is_granted() && pod.version > budget.version)
            };
            *uncounted = observed.pods.iter().filter(is_uncounted).count();
        }
        for rule in &observed.rules {
            let keys = rule.rules.iter().filter_map(|r| r.spec.topology_spread.as_ref());
            for key in keys.map(|spread| spread.topology_key.as_str()) {
                let by_value = ledger.spread.entry((&rule.name, key)).or_default();
                for pod in observed
                    .pods
                    .iter()
                    .filter(|pod| rule.selects(pod) && unavailable.contains(pod))
                {
                    *by_value.entry(topology_value(observed, pod, key)).or_default() += 1;
                }
            }
        }
        ledger
    }

    /// Number of Pods that a PodTransitionRule selects, by state.
    #[must_use]
    pub fn counts(&self, owner: &RuleView) -> PodCounts {
        self.counts.get(owner.name.as_str()).copied().unwrap_or_default()
    }

    /// Returns true if a Pod is unavailable or permitted to become so.
    #[must_use]
    pub fn is_unavailable(&self, pod: &PodView) -> bool {
        self.unavailable.contains(pod)
    }

    /// Limits of an availablePolicy in Pods (maxUnavailable, minAvailable); `None` for other rules.
    #[must_use]
    pub fn limits(&self, owner: &RuleView, rule: &Rule) -> (Option<i32>, Option<i32>) {
        let policy = rule.spec.available_policy.as_ref();
        policy.map_or((None, None), |policy| limits(policy, self.counts(owner).total))
    }

    /// Number of Pods in operation above the rule's limits, according to `counts`.
    #[must_use]
    pub fn excess(&self, owner: &RuleView, rule: &Rule, counts: PodCounts) -> i32 {
        let (max, min) = self.limits(owner, rule);
        let beyond = max.map_or(0, |max| counts.unavailable - max);
        let below = min.map_or(0, |min| min - counts.available);
        let granted =
            self.observed.pods.iter().filter(|pod| owner.selects(pod) && pod.is_granted());
        beyond.max(below).clamp(0, i32::try_from(granted.count()).unwrap_or(i32::MAX))
    }

    /// Returns why the rule has no capacity for a Pod, or `None` if it has. A Pod that is
    /// unavailable already needs none.
    #[must_use]
    pub fn rejection_reason(&self, owner: &RuleView, rule: &Rule, pod: &PodView) -> Option<String> {
        if self.unavailable.contains(pod) {
            return None;
        }
        let spec = &rule.spec;
        if spec.available_policy.is_some() {
            let counts = self.counts(owner);
            let (max, min) = self.limits(owner, rule);
            if let Some(max) = max.filter(|max| counts.unavailable >= *max) {
                return Some(format!(
                    "{} of {} Pods unavailable, maxUnavailable={max}",
                    counts.unavailable, counts.total
                ));
            }
            let min = min.filter(|min| counts.available <= *min);
            return min.map(|min| {
                format!(
                    "{} of {} Pods available, minAvailable={min}",
                    counts.available, counts.total
                )
            });
        }
        if let Some(spread) = &spec.topology_spread {
            let value = topology_value(self.observed, pod, &spread.topology_key);
            let by_value = self.spread.get(&(owner.name.as_str(), spread.topology_key.as_str()));
            let unavailable = by_value.and_then(|by| by.get(value)).copied().unwrap_or_default();
            let max = usize::try_from(spread.max_unavailable).unwrap_or_default();
            return (unavailable >= max).then(|| {
                format!(
                    "{unavailable} Pods unavailable in {}={value}, maxUnavailable={max}",
                    spread.topology_key
                )
            });
        }
        spec.disruption_budget.as_ref().and_then(|_| self.disruption_budget_reason(pod))
    }

    fn disruption_budget_reason(&self, pod: &PodView) -> Option<String> {
        let budgets = self.observed.budgets.iter().zip(&self.uncounted);
        let selecting = budgets.filter(|(b, _)| {
            !b.disrupted_pods.contains(&pod.name)
                && b.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
        });
        selecting
            .map(|(budget, uncounted)| (budget, budget.disruptions_allowed, uncounted))
            .find_map(|(budget, allowed, uncounted)| match allowed {
                None => {
                    Some(format!("PodDisruptionBudget {}: status is not up to date", budget.name))
                }
                Some(allowed) if allowed <= *uncounted => Some(format!(
                    "PodDisruptionBudget {}: disruptionsAllowed={allowed}, {uncounted} consumed",
                    budget.name
                )),
                Some(_) => None,
            })
    }

    /// Consumes the capacity for a Pod in every budget that selects it.
    pub fn consume(&mut self, pod: &'a PodView) {
        if self.unavailable.contains(pod) {
            return;
        }
        self.unavailable.insert(pod);
        for rule in self.observed.rules.iter().filter(|rule| rule.selects(pod)) {
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
            let selects = budget.selector.as_ref().is_some_and(|s| s.matches(&pod.labels));
            if selects && !budget.disrupted_pods.contains(&pod.name) {
                *uncounted += 1;
            }
        }
    }
}

/// Value of a label of the Pod's node; empty if there is none.
fn topology_value<'a>(observed: &'a Observed, pod: &PodView, key: &str) -> &'a str {
    let labels = pod.node.as_ref().and_then(|node| observed.nodes.get(node));
    labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
}
