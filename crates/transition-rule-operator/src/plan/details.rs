//! Why a Pod waits: entries of the status, and the annotation of a Pod that waits for long.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::{LifecycleTime, whole_second},
    transition_rule::{Detail, RejectInfo, RuleStage},
};
use serde_json::json;

use super::planner::{Planner, Rejection, WaitingPod};
use crate::view::{PodView, RuleView};

/// Time that an operation waits before the reason is written to the Pod's annotation. The rule's
/// status reports it at once; most Pods of a rollout wait for less than this.
const ANNOTATE_AFTER: SignedDuration = SignedDuration::from_secs(60);

impl<'a> Planner<'a> {
    /// Records why a Pod waits, and annotates it once it has waited for [`ANNOTATE_AFTER`].
    pub(super) fn reject(&mut self, waiting: &WaitingPod<'a>, rejections: &[Rejection<'a>]) {
        self.count_rejections(rejections);
        let WaitingPod { pod, stage, operations } = waiting;
        let started = operations.iter().filter_map(|o| LifecycleTime::parse(&o.instance)).min();
        let since = started.map(|time| time.0);
        let annotate_at =
            since.unwrap_or(self.now).saturating_add(ANNOTATE_AFTER).unwrap_or(self.now);
        for owner in self.observed.selecting(pod) {
            let reject_info = own_rejections(owner, rejections);
            if reject_info.is_empty() {
                continue;
            }
            if annotate_at > self.now {
                self.requeue_at.push(annotate_at);
            } else if !is_annotated(pod, owner, *stage, &reject_info) {
                let text = json!({
                    "stage": stage.as_str(), "passed": false, "rejectInfo": reject_info,
                });
                self.change(pod).details.insert(owner.name.clone(), Some(text.to_string()));
            }
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

/// Returns true if the Pod's annotation already names the same rejecting rules; their reasons may
/// differ. There is one annotation for both stages, so the first stage reported keeps it while the
/// Pod waits there.
fn is_annotated(
    pod: &PodView,
    owner: &RuleView,
    stage: RuleStage,
    rejecting: &[RejectInfo],
) -> bool {
    let annotation = pod.details.get(&owner.name);
    let reported: Option<Detail> = annotation.and_then(|text| serde_json::from_str(text).ok());
    let Some(reported) = reported else { return false };
    let other = match stage {
        RuleStage::PreCheck => RuleStage::PostCheck,
        RuleStage::PostCheck => RuleStage::PreCheck,
    };
    let reports_other = reported.stage == other.as_str() && !reported.passed;
    reports_other && !pod.pending_operations(other).is_empty()
        || reported.stage == stage.as_str()
            && rule_names(&reported.reject_info) == rule_names(rejecting)
}

fn rule_names(rejections: &[RejectInfo]) -> BTreeSet<&str> {
    rejections.iter().map(|info| info.rule_name.as_str()).collect()
}
