//! Reasons for which Pods wait: entries of the status, and annotations of Pods.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::{LifecycleTime, Uid, whole_second},
    transition_rule::{Detail, RejectInfo},
};

use super::{
    planner::{Planner, Rejection, WaitingPod},
    rejected::{RejectedGroup, RejectedPod},
};
use crate::view::RuleView;

/// Time that an operation waits before the reason is written to the Pod's annotation, and reported
/// by an event. The rule's status reports it at once; most Pods of a rollout wait for less than
/// this.
const ANNOTATE_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// The same for one of the Pods that wait for the same rules, without an event: CollaSets report
/// waiting Pods after five seconds, and the annotation of one names the rules for all of them.
const ANNOTATE_EXAMPLE_AFTER: SignedDuration = SignedDuration::from_secs(4);

impl<'a> Planner<'a> {
    /// Records why a Pod waits.
    pub(super) fn reject(&mut self, waiting: &WaitingPod<'a>, rejections: &[Rejection<'a>]) {
        self.count_rejections(rejections);
        let WaitingPod { pod, stage, operations } = waiting;
        let started = operations.iter().filter_map(|o| LifecycleTime::parse(&o.instance)).min();
        let since = started.map(|time| time.0);
        let mut by_owner = Vec::new();
        for owner in self.observed.selecting(pod) {
            let reject_info = own_rejections(owner, rejections);
            if reject_info.is_empty() {
                continue;
            }
            by_owner.push((owner, reject_info.clone()));
            let detail = Detail {
                name: pod.name.to_string(),
                stage: stage.as_str().to_owned(),
                passed: false,
                passed_rules: Vec::new(),
                reject_info,
                since: since.map(|at| Time(whole_second(at))),
            };
            self.add_detail(owner, detail);
        }
        if let Some(since) = since {
            self.rejected.push(RejectedPod { pod, stage: *stage, by_owner, since });
        }
    }

    /// Annotates rejected Pods once they have waited for [`ANNOTATE_AFTER`], and one of each group
    /// after [`ANNOTATE_EXAMPLE_AFTER`]: the last one, because it is likely to wait longest.
    pub(super) fn annotate_rejected(&mut self) {
        let mut rejected = std::mem::take(&mut self.rejected);
        rejected.retain(|rejected| self.has_waited(rejected, ANNOTATE_EXAMPLE_AFTER));
        let mut examples: BTreeMap<RejectedGroup<'_>, &RejectedPod<'a>> = BTreeMap::new();
        for rejected in &rejected {
            let example = examples.entry(rejected.group()).or_insert(rejected);
            if !example.is_annotated() {
                *example = rejected;
            }
        }
        let examples: BTreeSet<&Uid> = examples.values().map(|example| &example.pod.uid).collect();
        for rejected in &rejected {
            let has_waited_long = self.has_waited(rejected, ANNOTATE_AFTER);
            if !has_waited_long && !examples.contains(&rejected.pod.uid) {
                continue;
            }
            for (owner, text) in rejected.annotations(has_waited_long) {
                self.change(rejected.pod).details.insert(owner.name.clone(), Some(text));
            }
        }
    }

    /// Returns true if the Pod has waited for this long; otherwise plans to check again then.
    fn has_waited(&mut self, rejected: &RejectedPod<'_>, time: SignedDuration) -> bool {
        let at = rejected.since.saturating_add(time).unwrap_or(self.now);
        if at > self.now {
            self.requeue_at.push(at);
        }
        at <= self.now
    }
}

/// Rejections by the rules of one PodTransitionRule.
fn own_rejections(owner: &RuleView, rejections: &[Rejection<'_>]) -> Vec<RejectInfo> {
    let own = rejections.iter().filter(|rejection| rejection.defined.owner.uid == owner.uid);
    own.map(|Rejection { defined, reason }| RejectInfo {
        rule_name: defined.rule.spec.name.clone(),
        reason: reason.clone(),
    })
    .collect()
}
