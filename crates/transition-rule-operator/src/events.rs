//! Events for users: objects, reasons and messages. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use podops_api::{
    ids::{PodName, Uid},
    transition_rule::{Detail, PodTransitionRule, RejectInfo, RuleStage},
    well_known,
};
use podops_client::event::ObjectEvent;

use crate::{
    observe::InvalidRule,
    plan::{Plan, PodChange, RuleDecision},
    reasons,
    status::evaluation_errors,
    view::{Observed, PodView, RuleView},
};

/// Event and the object that it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetedEvent {
    /// Object to publish the event on.
    pub object: ObjectReference,
    /// Reason and message.
    pub event: ObjectEvent,
}

/// Event on a rule that cannot be read.
#[must_use]
pub fn invalid_rule(invalid: &InvalidRule) -> TargetedEvent {
    let message = format!(
        "invalid PodTransitionRule; all operations in this namespace are blocked until it is \
         fixed: {}",
        invalid.error
    );
    TargetedEvent {
        object: invalid.object.object_ref(&()),
        event: reasons::POD_TRANSITION_RULE_INVALID.with(message),
    }
}

/// Events of one reconcile: rules with errors, overridden rules, invalid break-glass annotations
/// and Pods that wait.
#[must_use]
pub fn events(namespace: &str, observed: &Observed, plan: &Plan) -> Vec<TargetedEvent> {
    let decided =
        observed.rules.iter().filter_map(|rule| Some((rule, plan.rules.get(&rule.name)?)));
    let rules =
        decided.filter_map(|(rule, decision)| rule_errors(namespace, observed, rule, decision));
    let overridden = plan.pods.iter().filter(|change| !change.overridden_rules.is_empty());
    let overrides = overridden.map(|change| overridden_rules(namespace, observed, change));
    let annotations =
        observed.pods.iter().filter_map(|pod| invalid_break_glass(namespace, observed, pod));
    let waiting = plan.pods.iter().filter_map(|change| waiting_for_rule(namespace, change));
    rules.chain(overrides).chain(annotations).chain(waiting).collect()
}

/// Event on a Pod that has waited for so long that its annotation has the start of the wait from
/// now on.
fn waiting_for_rule(namespace: &str, change: &PodChange) -> Option<TargetedEvent> {
    let mut causes = Vec::new();
    let mut stage = String::new();
    for (owner, text) in &change.details {
        let detail: Option<Detail> = text.as_deref().and_then(|t| serde_json::from_str(t).ok());
        let Some(detail) = detail.filter(|detail| detail.since.is_some()) else { continue };
        causes.extend(detail.reject_info.iter().map(|RejectInfo { rule_name, reason }| {
            format!("rule {rule_name} of PodTransitionRule {owner}: {reason}")
        }));
        stage = detail.stage;
    }
    (!causes.is_empty()).then(|| TargetedEvent {
        object: pod_reference(namespace, &change.pod, &change.uid),
        event: reasons::WAITING_FOR_RULE
            .with(format!("operation waits in {stage} for {}", causes.join("; "))),
    })
}

fn rule_errors(
    namespace: &str,
    observed: &Observed,
    rule: &RuleView,
    decision: &RuleDecision,
) -> Option<TargetedEvent> {
    let errors = evaluation_errors(observed, rule, decision);
    (!errors.is_empty()).then(|| TargetedEvent {
        object: ObjectReference {
            api_version: Some(PodTransitionRule::api_version(&()).into_owned()),
            kind: Some(PodTransitionRule::kind(&()).into_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(rule.name.clone()),
            uid: Some(rule.uid.to_string()),
            ..ObjectReference::default()
        },
        event: reasons::RULE_EVALUATION_FAILED.with(errors.join("; ")),
    })
}

fn overridden_rules(namespace: &str, observed: &Observed, change: &PodChange) -> TargetedEvent {
    let pod = observed.pods.iter().find(|pod| pod.uid == change.uid);
    let (until, specified_reason) = match pod.and_then(|pod| pod.break_glass.as_ref()) {
        Some(Ok(o)) => (o.until.to_string(), o.reason.as_str()),
        Some(Err(_)) | None => (String::new(), ""),
    };
    let reason = if specified_reason.is_empty() { "no reason specified" } else { specified_reason };
    let message = format!(
        "operation permitted without {}, overridden by break-glass until {until}: {reason}",
        change.overridden_rules.join(", ")
    );
    TargetedEvent {
        object: pod_reference(namespace, &change.pod, &change.uid),
        event: reasons::RULE_OVERRIDDEN.with(message),
    }
}

fn invalid_break_glass(
    namespace: &str,
    observed: &Observed,
    pod: &PodView,
) -> Option<TargetedEvent> {
    let annotation = pod.break_glass.as_ref()?;
    if pod.pending_operations(RuleStage::PreCheck).is_empty() {
        return None;
    }
    let message = match annotation {
        Err(error) => format!("ignoring invalid annotation {}: {error}", well_known::BREAK_GLASS),
        Ok(overrides) => {
            let defined = observed.selecting(pod).flat_map(RuleView::defined_rules);
            let defined: BTreeSet<&str> =
                defined.map(|defined| defined.rule.spec.name.as_str()).collect();
            let unknown = overrides.rules.iter().find(|name| !defined.contains(name.as_str()))?;
            format!(
                "annotation {} names the rule {unknown}, which no PodTransitionRule that selects \
                 the Pod defines",
                well_known::BREAK_GLASS
            )
        }
    };
    Some(TargetedEvent {
        object: pod_reference(namespace, &pod.name, &pod.uid),
        event: reasons::BREAK_GLASS_INVALID.with(message),
    })
}

fn pod_reference(namespace: &str, name: &PodName, uid: &Uid) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_string()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}
