//! The places that rules which count have left, while they are given away.

use std::collections::BTreeMap;

use kube::core::SelectorExt as _;
use podops_api::transition_rule::PodCounts;

use crate::{
    rules::budget::{UnavailablePods, count, limits},
    view::{Observed, PodView, Rule, RuleView},
};

/// Who is out, and what that leaves to each rule.
#[derive(Clone, Debug)]
pub struct BudgetLedger<'a> {
    observed: &'a Observed,
    out: UnavailablePods<'a>,
    /// Of each PodTransitionRule, by name.
    counts: BTreeMap<&'a str, PodCounts>,
    /// Pods that are about to be disrupted by each PodDisruptionBudget, which has not counted them.
    uncounted: Vec<usize>,
    /// Of each PodTransitionRule and topology key: how many are out by value.
    spread: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, usize>>,
}

impl<'a> BudgetLedger<'a> {
    /// The places as they stand before anybody is let through.
    #[must_use]
    pub fn new(observed: &'a Observed) -> Self {
        let out = UnavailablePods::of(observed);
        let counts =
            observed.rules.iter().map(|rule| (rule.name.as_str(), count(rule, observed, &out)));
        let mut ledger = Self {
            observed,
            counts: counts.collect(),
            uncounted: vec![0; observed.budgets.len()],
            spread: BTreeMap::new(),
            out: out.clone(),
        };
        for (budget, uncounted) in observed.budgets.iter().zip(&mut ledger.uncounted) {
            let is_uncounted = |pod: &&PodView| {
                let selected = budget.selector.as_ref().is_some_and(|s| s.matches(&pod.labels));
                // Its own controller counts a Pod out when it stops being Ready, and a little later.
                selected
                    && out.has(pod)
                    && !budget.given.contains(&pod.name)
                    && (pod.ready || pod.is_granted() && pod.version > budget.version)
            };
            *uncounted = observed.pods.iter().filter(is_uncounted).count();
        }
        for rule in &observed.rules {
            let keys = rule.rules.iter().filter_map(|r| r.spec.topology_spread.as_ref());
            for key in keys.map(|spread| spread.topology_key.as_str()) {
                let by_value = ledger.spread.entry((&rule.name, key)).or_default();
                for pod in observed.pods.iter().filter(|pod| rule.selects(pod) && out.has(pod)) {
                    *by_value.entry(value(observed, pod, key)).or_default() += 1;
                }
            }
        }
        ledger
    }

    /// How many of the Pods that a PodTransitionRule selects are what.
    #[must_use]
    pub fn counts(&self, owner: &RuleView) -> PodCounts {
        self.counts.get(owner.name.as_str()).copied().unwrap_or_default()
    }

    /// Whether a Pod is out, or was given leave to go.
    #[must_use]
    pub fn is_out(&self, pod: &PodView) -> bool {
        self.out.has(pod)
    }

    /// An availablePolicy in numbers, as far as the rule is one.
    #[must_use]
    pub fn limits(&self, owner: &RuleView, rule: &Rule) -> (Option<i32>, Option<i32>) {
        let policy = rule.spec.available_policy.as_ref();
        policy.map_or((None, None), |policy| limits(policy, self.counts(owner).total))
    }

    /// How many Pods more are out by operations than the rule would have let out, going by `counts`.
    #[must_use]
    pub fn over(&self, owner: &RuleView, rule: &Rule, counts: PodCounts) -> i32 {
        let (most, least) = self.limits(owner, rule);
        let beyond = most.map_or(0, |most| counts.unavailable - most);
        let below = least.map_or(0, |least| least - counts.available);
        let granted =
            self.observed.pods.iter().filter(|pod| owner.selects(pod) && pod.is_granted());
        beyond.max(below).clamp(0, i32::try_from(granted.count()).unwrap_or(i32::MAX))
    }

    /// Why the rule has no place for a Pod; a Pod that is out already needs none.
    #[must_use]
    pub fn refusal(&self, owner: &RuleView, rule: &Rule, pod: &PodView) -> Option<String> {
        if self.out.has(pod) {
            return None;
        }
        let spec = &rule.spec;
        if spec.available_policy.is_some() {
            let counts = self.counts(owner);
            let (most, least) = self.limits(owner, rule);
            if let Some(most) = most.filter(|most| counts.unavailable >= *most) {
                return Some(format!("no more than {most} Pods may be unavailable"));
            }
            let least = least.filter(|least| counts.available <= *least);
            return least.map(|least| format!("at least {least} Pods must be available"));
        }
        if let Some(spread) = &spec.topology_spread {
            let value = value(self.observed, pod, &spread.topology_key);
            let by_value = self.spread.get(&(owner.name.as_str(), spread.topology_key.as_str()));
            let out = by_value.and_then(|by| by.get(value)).copied().unwrap_or_default();
            let most = usize::try_from(spread.max_unavailable).unwrap_or_default();
            return (out >= most).then(|| {
                format!(
                    "no more than {most} Pods of {}={value} may be unavailable",
                    spread.topology_key
                )
            });
        }
        spec.disruption_budget.as_ref().and_then(|_| self.disruption(pod))
    }

    fn disruption(&self, pod: &PodView) -> Option<String> {
        let budgets = self.observed.budgets.iter().zip(&self.uncounted);
        let selecting = budgets.filter(|(b, _)| {
            !b.given.contains(&pod.name)
                && b.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
        });
        selecting.map(|(budget, uncounted)| (budget, budget.allowed, uncounted)).find_map(
            |(budget, allowed, uncounted)| match allowed {
                None => {
                    Some(format!("the PodDisruptionBudget {} was not counted yet", budget.name))
                }
                Some(allowed) if allowed <= *uncounted => Some(format!(
                    "the PodDisruptionBudget {} has no disruption to give",
                    budget.name
                )),
                Some(_) => None,
            },
        )
    }

    /// Gives a Pod its places.
    pub fn take(&mut self, pod: &'a PodView) {
        if self.out.has(pod) {
            return;
        }
        self.out.add(pod);
        for rule in self.observed.rules.iter().filter(|rule| rule.selects(pod)) {
            if let Some(counts) = self.counts.get_mut(rule.name.as_str()) {
                counts.available -= 1;
                counts.unavailable += 1;
            }
            for ((name, key), by_value) in &mut self.spread {
                if *name == rule.name {
                    *by_value.entry(value(self.observed, pod, key)).or_default() += 1;
                }
            }
        }
        for (budget, uncounted) in self.observed.budgets.iter().zip(&mut self.uncounted) {
            let selects = budget.selector.as_ref().is_some_and(|s| s.matches(&pod.labels));
            if selects && !budget.given.contains(&pod.name) {
                *uncounted += 1;
            }
        }
    }
}

/// The value of a label of the node that a Pod is on; empty if there is none.
fn value<'a>(observed: &'a Observed, pod: &PodView, key: &str) -> &'a str {
    let labels = pod.node.as_ref().and_then(|node| observed.nodes.get(node));
    labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
}
