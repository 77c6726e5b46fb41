//! Groups waiting Pods by phase and reason for `status.waiting`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    availability::AvailableConditions,
    collaset::WaitingPods,
    ids::{LifecycleTime, whole_second},
    lifecycle::{self, LabelKind, Operation, Phase, PodLifecycle},
    transition_rule::{Detail, RuleStage},
    well_known,
};

use crate::{
    plan::Plan,
    view::{Observed, PodView},
};

/// How long a Pod may stay in a phase before it is reported as waiting. Operations without problems
/// take less.
const REPORT_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// Time for which a Pod may fail to start before the CollaSet is degraded.
const FAILING_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Reasons of containers that are starting as they should.
const STARTING_REASONS: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Phase of Pods whose operation has not begun.
const QUEUED: &str = "Queued";
/// Phase of Pods that have not been ready yet.
const STARTING: &str = "Starting";
/// Phase of Pods whose lifecycle labels cannot be read.
const INVALID: &str = "Invalid";
/// Maximum number of groups; bounds the size of the status.
const MAX_GROUPS: usize = 20;
/// Maximum number of Pod names in a group.
const MAX_NAMES: usize = 5;
/// Maximum number of alternatives in a reason, of which one applies to the Pod.
const MAX_ALTERNATIVES: usize = 3;

/// Waiting Pods by phase and reason.
#[derive(Default)]
pub(super) struct Waiting {
    /// The groups, ordered by phase and reason.
    pub(super) groups: Vec<WaitingPods>,
    /// Pods that have not started for too long, if there are any.
    pub(super) failing: Option<FailingPods>,
    /// Time until another Pod is reported as waiting or failing.
    pub(super) requeue_after: Option<Duration>,
}

/// Pods that have not started for [`FAILING_AFTER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailingPods {
    pub(super) count: usize,
    /// Name of the first one, and why it does not start.
    pub(super) example: String,
}

impl FailingPods {
    /// Creates the report of no Pods yet, with an example.
    fn new(example: &PodView, reason: &str) -> Self {
        Self { count: 0, example: format!("{}: {reason}", example.name) }
    }
}

/// Phase, reason and start of one Pod's wait.
struct Wait {
    phase: String,
    reason: String,
    since: Timestamp,
}

/// Groups the waiting Pods by phase and reason.
#[must_use]
pub(super) fn waiting(observed: &Observed, plan: &Plan, now: Timestamp) -> Waiting {
    let mut groups = Groups::default();
    let mut delays: Vec<SignedDuration> = Vec::new();
    let mut failing: Option<FailingPods> = None;
    for queued in &plan.queued {
        groups.add(QUEUED.to_owned(), queued.reason.clone(), &queued.pod, None);
    }
    let rules = RejectingRules::of(observed);
    for pod in observed.all() {
        let wait = operation_wait(pod, &rules).or_else(|| starting_wait(observed, pod));
        let Some(Wait { phase, mut reason, since }) = wait else { continue };
        if observed.rejected_resizes.get(&pod.uid) == Some(&pod.revision) {
            // The server's message names the Pod, so it is reported in a condition instead.
            "resources rejected by the API server; see condition Update".clone_into(&mut reason);
        }
        if let Some(reason) = failing_reason(pod) {
            let left = FAILING_AFTER - now.duration_since(since);
            if left.is_positive() {
                delays.push(left);
            } else {
                failing.get_or_insert_with(|| FailingPods::new(pod, reason)).count += 1;
            }
        }
        let left = REPORT_AFTER - now.duration_since(since);
        if left.is_positive() {
            delays.push(left);
            continue;
        }
        groups.add(phase, reason, &pod.name, Some(since));
    }
    Waiting {
        groups: groups.0.into_values().collect(),
        failing,
        requeue_after: delays.into_iter().min().and_then(|left| Duration::try_from(left).ok()),
    }
}

/// Groups of waiting Pods by phase and reason.
#[derive(Default)]
struct Groups(BTreeMap<GroupKey, WaitingPods>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    phase: String,
    reason: String,
}

impl Groups {
    fn add(&mut self, phase: String, reason: String, pod: &str, since: Option<Timestamp>) {
        let key = GroupKey { phase: phase.clone(), reason: reason.clone() };
        if self.0.len() >= MAX_GROUPS && !self.0.contains_key(&key) {
            return;
        }
        let group = self.0.entry(key).or_insert_with(|| WaitingPods {
            phase,
            reason,
            ..WaitingPods::default()
        });
        group.count += 1;
        if group.pods.len() < MAX_NAMES {
            group.pods.push(pod.to_owned());
        }
        // In whole seconds, as serialized.
        let Some(since) = since else { return };
        let since = whole_second(since);
        if group.since.as_ref().is_none_or(|known| since < known.0) {
            group.since = Some(Time(since));
        }
    }
}

/// Returns why a Pod does not start, unless it is starting as it should.
fn failing_reason(pod: &PodView) -> Option<&str> {
    let reason = pod.not_running_reason.as_deref()?;
    let is_starting = STARTING_REASONS.iter().any(|starting| reason.starts_with(starting));
    (!is_starting).then_some(reason)
}

/// Returns why a Pod without an operation is not running yet; `None` if it is not waiting.
fn starting_wait(observed: &Observed, pod: &PodView) -> Option<Wait> {
    let is_waiting = pod.ready.is_none() && !pod.deleting && !pod.terminal && !observed.deleting;
    let reason = pod.not_running_reason.clone().filter(|_| is_waiting)?;
    Some(Wait { phase: STARTING.to_owned(), reason, since: pod.created })
}

/// Returns why a Pod's operation waits; `None` if it has none.
fn operation_wait(pod: &PodView, rules: &RejectingRules) -> Option<Wait> {
    let known = match PodLifecycle::parse(&pod.labels) {
        Ok(known) => known,
        // No operator continues with such a Pod.
        Err(error) => {
            let reason = format!("{error}; fix or remove it");
            return Some(Wait { phase: INVALID.to_owned(), reason, since: pod.created });
        }
    };
    let ids = [lifecycle::COLLASET, lifecycle::POD_DELETE];
    let operation = ids.into_iter().find_map(|id| known.operations.get(id))?;
    let phase = Phase::of(operation);
    let (label, reason) = match phase {
        Phase::Requested if !pod.is_controlled() => {
            (LabelKind::Operating, format!("label {} is missing", well_known::CONTROL))
        }
        Phase::Requested => (
            LabelKind::Operating,
            "operation not started; check that lifecycle-operator is running".to_owned(),
        ),
        Phase::PreCheck | Phase::PreChecked => {
            (LabelKind::PreCheck, check_reason(pod, RuleStage::PreCheck, rules))
        }
        Phase::Preparing => (LabelKind::Preparing, drain_reason(pod)),
        Phase::Operate | Phase::Operated => (LabelKind::Operate, operate_reason(pod)),
        Phase::PostCheck | Phase::PostChecked => {
            (LabelKind::PostCheck, check_reason(pod, RuleStage::PostCheck, rules))
        }
        Phase::Completing => (LabelKind::Completing, service_reason(pod)),
    };
    let since = since(operation, label)?;
    Some(Wait { phase: phase.to_string(), reason, since })
}

fn since(operation: &Operation, label: LabelKind) -> Option<Timestamp> {
    let stamp = operation.get(label).or(operation.get(LabelKind::Operating))?;
    LifecycleTime::parse(stamp).map(|time| time.0)
}

fn check_reason(pod: &PodView, stage: RuleStage, rules: &RejectingRules) -> String {
    let named =
        pod.labels.keys().filter_map(|key| key.strip_prefix(stage.gate())?.strip_prefix('/'));
    let named: Vec<&str> = named.collect();
    if named.is_empty() {
        return "operation type label is missing".to_owned();
    }
    let by = format!("not yet permitted by {}", named.join(", "));
    if !named.contains(&well_known::TRANSITION_RULE) {
        return by;
    }
    match rules.rejecting(pod, stage) {
        Some(rules) => format!("{by}: {rules}"),
        None => by,
    }
}

/// Rules that Pods wait for, as transition-rule-operator names them in annotations: of a Pod that
/// waits for long, and otherwise of one of the Pods that wait for the same rules.
#[derive(Default)]
struct RejectingRules(BTreeMap<RuleStage, BTreeSet<String>>);

impl RejectingRules {
    /// Collects the rules that annotations of waiting Pods name.
    fn of(observed: &Observed) -> Self {
        let mut all = Self::default();
        for pod in observed.all() {
            for stage in [RuleStage::PreCheck, RuleStage::PostCheck] {
                if let Some(rules) = annotated_rules(pod, stage).filter(|_| waits_at(pod, stage)) {
                    all.0.entry(stage).or_default().insert(rules);
                }
            }
        }
        all
    }

    /// Rules that reject a Pod, separated by commas. Of a Pod without an annotation of its own,
    /// those of the others; if they differ, these are alternatives.
    fn rejecting(&self, pod: &PodView, stage: RuleStage) -> Option<String> {
        annotated_rules(pod, stage).or_else(|| {
            let others = self.0.get(&stage)?;
            let mut named: Vec<&str> =
                others.iter().take(MAX_ALTERNATIVES).map(String::as_str).collect();
            if others.len() > MAX_ALTERNATIVES {
                named.push("others");
            }
            Some(named.join("; or "))
        })
    }
}

/// Returns true if an operation of the Pod waits at this stage.
fn waits_at(pod: &PodView, stage: RuleStage) -> bool {
    let Ok(known) = PodLifecycle::parse(&pod.labels) else { return false };
    known.operations.values().any(|operation| {
        let phase = Phase::of(operation);
        match stage {
            RuleStage::PreCheck => phase == Phase::PreCheck,
            RuleStage::PostCheck => phase == Phase::PostCheck,
        }
    })
}

/// Rules that the annotations of a Pod name as rejecting it at a stage, each as
/// `<PodTransitionRule>/<rule>`, separated by commas; `None` if there are none.
fn annotated_rules(pod: &PodView, stage: RuleStage) -> Option<String> {
    let annotations = pod.annotations.iter().flatten();
    let details = annotations.filter_map(|(key, text)| {
        let owner = key.strip_prefix(well_known::RULE_DETAIL)?.strip_prefix('/')?;
        let detail: Detail = serde_json::from_str(text).ok()?;
        (detail.stage == stage.as_str()).then_some((owner, detail))
    });
    let rules: Vec<String> = details
        .flat_map(|(owner, detail)| {
            let rules = detail.reject_info.into_iter();
            rules.map(move |rejection| format!("{owner}/{}", rejection.rule_name))
        })
        .collect();
    (!rules.is_empty()).then(|| rules.join(", "))
}

fn drain_reason(pod: &PodView) -> String {
    let finalizers =
        pod.finalizers.iter().filter(|f| f.starts_with(well_known::PROTECTION_FINALIZER));
    let finalizers: Vec<&str> = finalizers.map(String::as_str).collect();
    if finalizers.is_empty() {
        return "readiness gate has not closed yet".to_owned();
    }
    let expected = expected_finalizers(pod);
    let employers =
        expected.iter().filter(|(_, finalizer)| finalizers.contains(&finalizer.as_str()));
    let employers: Vec<&str> = employers.map(|(employer, _)| employer.as_str()).collect();
    let of =
        if employers.is_empty() { String::new() } else { format!(" of {}", employers.join(", ")) };
    format!("traffic{of} not drained yet; blocked by finalizer {}", finalizers.join(", "))
}

fn operate_reason(pod: &PodView) -> String {
    if let Some(resize) = &pod.resize {
        return resize.to_string();
    }
    if let Some(not_running_reason) = &pod.not_running_reason {
        return not_running_reason.clone();
    }
    if pod.annotation(well_known::LAST_POD_STATUS).is_some() {
        "containers do not run the new images yet"
    } else {
        "permitted; operation not applied yet"
    }
    .to_owned()
}

fn service_reason(pod: &PodView) -> String {
    let expected = expected_finalizers(pod);
    let missing = expected.iter().filter(|(_, f)| !pod.finalizers.contains(f));
    let missing: Vec<&str> = missing.map(|(employer, _)| employer.as_str()).collect();
    if missing.is_empty() {
        return "readiness gate has not opened yet".to_owned();
    }
    format!("no traffic yet: {}", missing.join(", "))
}

/// Protection finalizers that the Pod is to have, by employer.
fn expected_finalizers(pod: &PodView) -> BTreeMap<String, String> {
    let annotation = pod.annotation(well_known::AVAILABLE_CONDITIONS);
    let expected: Option<AvailableConditions> =
        annotation.and_then(|text| serde_json::from_str(text).ok());
    expected.unwrap_or_default().expected_finalizers
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pod(name: &str, labels: &[(LabelKind, i64)]) -> PodView {
        let stamp = |seconds: i64| format!("{seconds}000000000");
        let labels = labels.iter().map(|(label, at)| (label.key(lifecycle::COLLASET), stamp(*at)));
        PodView { name: name.into(), labels: labels.collect(), ..PodView::default() }
    }

    fn reported(pods: Vec<PodView>) -> (Vec<String>, Option<u64>) {
        let pods = pods.into_iter().map(|pod| (pod.name.clone(), Arc::new(pod))).collect();
        let observed = Observed { pods, ..Observed::default() };
        let Waiting { groups, requeue_after, .. } =
            waiting(&observed, &Plan::default(), Timestamp::from_second(100).unwrap());
        let text = |g: &WaitingPods| {
            let since = g.since.as_ref().map_or(0, |t| t.0.as_second());
            format!("{} {} {} since {since}: {}", g.count, g.phase, g.pods.join(" "), g.reason)
        };
        (groups.iter().map(text).collect(), requeue_after.map(|wait| wait.as_secs()))
    }

    #[test]
    fn waiting_pods_are_grouped_by_phase_and_reason() {
        let mut draining = [
            pod("a", &[(LabelKind::Operating, 10), (LabelKind::Preparing, 20)]),
            pod("b", &[(LabelKind::Operating, 10), (LabelKind::Preparing, 15)]),
        ];
        for pod in &mut draining {
            pod.finalizers = vec!["prot.podopslifecycle.kusionstack.io/lb".to_owned()];
        }
        let mut checked = pod("c", &[(LabelKind::Operating, 10), (LabelKind::PreCheck, 30)]);
        checked.labels.insert(format!("{}/rules", well_known::PRE_CHECK_GATE), "1".to_owned());
        let (groups, _) = reported(draining.into_iter().chain([checked]).collect());
        assert_eq!(
            groups,
            [
                "1 PreCheck c since 30: not yet permitted by rules",
                "2 Preparing a b since 15: traffic not drained yet; blocked by finalizer \
                 prot.podopslifecycle.kusionstack.io/lb",
            ]
        );
    }

    #[test]
    fn a_label_that_cannot_be_read_is_named() {
        let mut pod = pod("a", &[(LabelKind::Operating, 10)]);
        // Without the ID of its operation.
        pod.labels.insert("operating.podopslifecycle.kusionstack.io".to_owned(), "1".to_owned());
        let (groups, _) = reported(vec![pod]);
        assert!(groups[0].starts_with("1 Invalid a since 0: "), "{groups:?}");
        assert!(groups[0].ends_with("; fix or remove it"), "{groups:?}");
    }

    #[test]
    fn the_rule_and_the_service_are_named() {
        let annotate = |mut pod: PodView, key: &str, text: &str| {
            pod.annotations = Some([(key.to_owned(), text.to_owned())].into());
            pod
        };
        let mut draining = pod("a", &[(LabelKind::Operating, 10), (LabelKind::Preparing, 20)]);
        draining.finalizers = vec!["prot.podopslifecycle.kusionstack.io/lb".to_owned()];
        let expected = r#"{"expectedFinalizers":{"Service/shop/web":"prot.podopslifecycle.kusionstack.io/lb"}}"#;
        let draining = annotate(draining, well_known::AVAILABLE_CONDITIONS, expected);
        let mut checked = pod("b", &[(LabelKind::Operating, 10), (LabelKind::PreCheck, 30)]);
        let gate = format!("{}/transition-rule", well_known::PRE_CHECK_GATE);
        checked.labels.insert(gate, "1".to_owned());
        let detail = r#"{"stage":"PreCheck","passed":false,"rejectInfo":[{"ruleName":"most","reason":"1 of 1"}]}"#;
        let checked = annotate(checked, &format!("{}/budget", well_known::RULE_DETAIL), detail);
        let (groups, _) = reported(vec![draining, checked]);
        assert_eq!(
            groups,
            [
                "1 PreCheck b since 30: not yet permitted by transition-rule: budget/most",
                "1 Preparing a since 20: traffic of Service/shop/web not drained yet; blocked by \
                 finalizer prot.podopslifecycle.kusionstack.io/lb",
            ]
        );
    }

    #[test]
    fn the_annotation_of_one_pod_names_the_rules_of_the_others() {
        let waiting = |name: &str, rule: Option<&str>| {
            let mut pod = pod(name, &[(LabelKind::Operating, 10), (LabelKind::PreCheck, 30)]);
            let gate = format!("{}/transition-rule", well_known::PRE_CHECK_GATE);
            pod.labels.insert(gate, "1".to_owned());
            let detail = |rule: &str| {
                let info = format!(r#"[{{"ruleName":"{rule}","reason":"1 of 1"}}]"#);
                format!(r#"{{"stage":"PreCheck","passed":false,"rejectInfo":{info}}}"#)
            };
            let key = format!("{}/budget", well_known::RULE_DETAIL);
            pod.annotations = rule.map(|rule| BTreeMap::from([(key, detail(rule))]));
            pod
        };
        let by = "since 30: not yet permitted by transition-rule: budget";
        let pods = || vec![waiting("a", None), waiting("b", Some("most"))];
        assert_eq!(reported(pods()).0, [format!("2 PreCheck a b {by}/most")]);
        // A Pod that waits no more is no example.
        let mut ended = waiting("c", Some("other"));
        ended.labels.retain(|key, _| !key.starts_with("pre-check."));
        assert_eq!(
            reported([pods(), vec![ended]].concat()).0[0],
            format!("2 PreCheck a b {by}/most")
        );
        let groups = reported([pods(), vec![waiting("c", Some("other"))]].concat()).0;
        let expected = [
            "1 PreCheck b {by}/most",
            "1 PreCheck a {by}/most; or budget/other",
            "1 PreCheck c {by}/other",
        ];
        assert_eq!(groups, expected.map(|text| text.replace("{by}", by)));
        // The reason stays short.
        let many = ["b", "c", "d", "e"].map(|name| waiting(name, Some(name)));
        let groups = reported([vec![waiting("a", None)], many.to_vec()].concat()).0;
        let alternatives = "/b; or budget/c; or budget/d; or others";
        assert!(groups.contains(&format!("1 PreCheck a {by}{alternatives}")), "{groups:?}");
    }

    #[test]
    fn pods_that_do_not_start_are_failing_after_half_a_minute() {
        let failing = |reason: &str, created: i64| {
            let not_running_reason = Some(reason.to_owned());
            let created = Timestamp::from_second(created).unwrap();
            let pod =
                PodView { name: "a".into(), not_running_reason, created, ..PodView::default() };
            let pods = [("a".into(), Arc::new(pod))].into();
            let observed = Observed { pods, ..Observed::default() };
            let now = Timestamp::from_second(100).unwrap();
            let found = waiting(&observed, &Plan::default(), now);
            (found.failing, found.requeue_after.map(|left| left.as_secs()))
        };
        let pull = "ImagePullBackOff: container web";
        let one = FailingPods { count: 1, example: format!("a: {pull}") };
        assert_eq!(failing(pull, 70), (Some(one), None));
        assert_eq!(failing(pull, 80), (None, Some(10)));
        assert_eq!(failing("ContainerCreating: container web", 0), (None, None));
    }

    #[test]
    fn operation_that_just_began_is_not_reported() {
        let (groups, requeue_after) = reported(vec![pod("a", &[(LabelKind::Operating, 98)])]);
        assert_eq!((groups.len(), requeue_after), (0, Some(3)));
    }
}
