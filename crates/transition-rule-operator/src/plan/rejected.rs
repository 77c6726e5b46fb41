//! A Pod that waits because rules reject it, and the annotations that name them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::{Uid, whole_second},
    transition_rule::{Detail, RejectInfo, RuleStage},
};
use serde_json::json;

use crate::view::{PodView, RuleView};

/// Pod that rules reject at one stage.
pub(super) struct RejectedPod<'a> {
    pub(super) pod: &'a PodView,
    pub(super) stage: RuleStage,
    /// Rejections by PodTransitionRule.
    pub(super) by_owner: Vec<(&'a RuleView, Vec<RejectInfo>)>,
    /// Start of the operation.
    pub(super) since: Timestamp,
}

/// Pods of one controller that wait for the same rules: UID of the controller, and names of the
/// PodTransitionRules and rules.
pub(super) type RejectedGroup<'a> = (Option<&'a Uid>, BTreeSet<(&'a str, &'a str)>);

impl<'a> RejectedPod<'a> {
    /// Group of the Pod, of which one Pod is annotated early.
    pub(super) fn group(&self) -> RejectedGroup<'_> {
        let controller = self.pod.owner.as_ref().map(|owner| &owner.uid);
        let rules = self.by_owner.iter().flat_map(|(owner, rejections)| {
            rejections.iter().map(|info| (owner.name.as_str(), info.rule_name.as_str()))
        });
        (controller, rules.collect())
    }

    /// Returns true if annotations name all rules that reject the Pod.
    pub(super) fn is_annotated(&self) -> bool {
        self.by_owner.iter().all(|(owner, rejections)| self.reported(owner, rejections).is_some())
    }

    /// Annotations that differ from those that the Pod is to have, by PodTransitionRule. They
    /// contain the start of a wait once it is long.
    pub(super) fn annotations(
        &self,
        has_waited_long: bool,
    ) -> impl Iterator<Item = (&'a RuleView, String)> + '_ {
        self.by_owner.iter().filter_map(move |(owner, rejections)| {
            let is_current = self.reported(owner, rejections).is_some_and(|reported| {
                self.is_of_other_stage(&reported) || reported.since.is_some() || !has_waited_long
            });
            if is_current {
                return None;
            }
            let mut wanted = json!({
                "stage": self.stage.as_str(), "passed": false, "rejectInfo": rejections,
            });
            if has_waited_long {
                wanted["since"] = json!(Time(whole_second(self.since)));
            }
            Some((*owner, wanted.to_string()))
        })
    }

    /// Returns the annotation of a PodTransitionRule if it names the same rejecting rules, whatever
    /// their reasons, or those of the other stage: there is one annotation for both stages, so the
    /// first stage reported keeps it while the Pod waits there.
    fn reported(&self, owner: &RuleView, rejections: &[RejectInfo]) -> Option<Detail> {
        let annotation = self.pod.details.get(&owner.name)?;
        let reported: Detail = serde_json::from_str(annotation).ok()?;
        let is_same = reported.stage == self.stage.as_str()
            && rule_names(&reported.reject_info) == rule_names(rejections);
        (is_same || self.is_of_other_stage(&reported)).then_some(reported)
    }

    /// Returns true if the Pod also waits at the other stage, and this is the annotation for it.
    fn is_of_other_stage(&self, reported: &Detail) -> bool {
        let other = match self.stage {
            RuleStage::PreCheck => RuleStage::PostCheck,
            RuleStage::PostCheck => RuleStage::PreCheck,
        };
        reported.stage == other.as_str()
            && !reported.passed
            && !self.pod.pending_operations(other).is_empty()
    }
}

fn rule_names(rejections: &[RejectInfo]) -> BTreeSet<&str> {
    rejections.iter().map(|info| info.rule_name.as_str()).collect()
}
