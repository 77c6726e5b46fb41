//! A CollaSet with its revisions and Pods, as lines of text. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podops_api::{
    collaset::{CollaSetStatus, REPLICAS},
    lifecycle::{Operation, Phase, PodLifecycle},
    well_known,
};
use podops_terminal::fit::fit;
use serde::Serialize;

use crate::{
    explain::{self, Facts, age},
    pods::{has_condition, has_failed, is_in_service, is_owned, label, labels, name},
};

/// Cells of the progress bar.
const BAR: usize = 20;
/// Maximum number of Pods of a revision that wait for nothing and are listed one by one.
const MAX_IDLE: usize = 10;
/// Maximum number of Pods of a revision that wait for the same and are listed one by one.
const MAX_SAME: usize = 3;

/// A CollaSet with its revisions.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// `collaset/<name>`.
    pub subject: String,
    /// Number of desired Pods.
    pub desired: i32,
    /// Number of Pods in service, counted now: the status is up to a second older.
    pub available: usize,
    /// Number of Pods at the updated revision, counted now.
    pub updated: usize,
    /// Reason of the condition Progressing.
    pub progress: String,
    /// Revisions that Pods run, the updated one first.
    pub revisions: Vec<RevisionNode>,
    /// Time of the observation.
    #[serde(skip)]
    pub now: Timestamp,
}

/// Pods of one revision.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionNode {
    /// Name of the ControllerRevision.
    pub name: String,
    /// True if this is the updated revision.
    pub is_updated: bool,
    /// Pods of the revision: waiting Pods first, sorted by cause.
    pub pods: Vec<PodNode>,
}

/// One Pod.
#[allow(clippy::struct_excessive_bools, reason = "each is a field of the output of its own")]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNode {
    /// Name.
    pub name: String,
    /// Phase of its operation, if it has one.
    pub phase: Option<String>,
    /// Since when it has been in this phase, or has waited, if that is known.
    pub since: Option<Timestamp>,
    /// True if the Pod is in service.
    pub is_in_service: bool,
    /// True if the Pod has failed, or a container does not start.
    pub has_failed: bool,
    /// True if the Pod is Ready.
    pub is_ready: bool,
    /// True if the Pod's readiness gate permits traffic.
    pub is_gate_open: bool,
    /// Cause of the wait; empty without one.
    pub waits_for: String,
}

/// Returns the tree of a CollaSet; `None` if it is not among the facts.
#[must_use]
pub fn tree(facts: &Facts, set: &str) -> Option<Tree> {
    let set = facts.sets.iter().find(|known| known.metadata.name.as_deref() == Some(set))?;
    let status = set.status.clone().unwrap_or_default();
    let mut by_revision: BTreeMap<&str, Vec<PodNode>> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| is_owned(pod, set)) {
        let revision = label(pod, well_known::REVISION).unwrap_or_default();
        by_revision.entry(revision).or_default().push(node(facts, pod));
    }
    let mut revisions: Vec<RevisionNode> = by_revision
        .into_iter()
        .map(|(name, mut pods)| {
            pods.sort_by_cached_key(|pod| {
                (pod.waits_for.is_empty(), pod.waits_for.clone(), pod.name.clone())
            });
            RevisionNode {
                name: name.to_owned(),
                is_updated: name == status.updated_revision,
                pods,
            }
        })
        .collect();
    revisions.sort_by_key(|revision| !revision.is_updated);
    let updated = revisions.iter().find(|revision| revision.is_updated);
    Some(Tree {
        subject: format!("collaset/{}", crate::rollout::name(set)),
        desired: set.spec.replicas.unwrap_or(REPLICAS),
        available: revisions.iter().map(RevisionNode::in_service).sum(),
        updated: updated.map_or(0, |revision| revision.pods.len()),
        progress: progress(&status, &revisions),
        revisions,
        now: facts.now,
    })
}

impl RevisionNode {
    fn in_service(&self) -> usize {
        self.pods.iter().filter(|pod| pod.is_in_service).count()
    }
}

/// Reason of a completed rollout.
const COMPLETE: &str = "RolloutComplete";

/// Reason of the condition Progressing. A status from before the present operations has the reason
/// of the rollout before.
fn progress(status: &CollaSetStatus, revisions: &[RevisionNode]) -> String {
    let progressing = podops_api::condition::find(&status.conditions, "Progressing");
    let reason = progressing.and_then(|condition| condition.reason.clone()).unwrap_or_default();
    let mut pods = revisions.iter().flat_map(|revision| &revision.pods);
    if reason == COMPLETE && pods.any(|pod| pod.phase.is_some()) {
        return "Updating".to_owned();
    }
    reason
}

fn node(facts: &Facts, pod: &Pod) -> PodNode {
    let lifecycle = PodLifecycle::parse(&labels(pod)).unwrap_or_default();
    let phase = lifecycle.operations.values().find_map(phase);
    let is_idle = phase.is_none() && is_in_service(pod);
    let explanation = (!is_idle).then(|| explain::explain_pod(facts, name(pod))).flatten();
    let cause = explanation.and_then(|explanation| explanation.causes.into_iter().next());
    let since = cause.as_ref().and_then(|cause| cause.since);
    let waits_for = cause.map(|cause| match cause.because.into_iter().next() {
        Some(first) => first.message,
        None => cause.message,
    });
    PodNode {
        name: name(pod).to_owned(),
        phase,
        since,
        is_in_service: is_in_service(pod),
        has_failed: has_failed(pod),
        is_ready: has_condition(pod, "Ready"),
        is_gate_open: has_condition(pod, well_known::SERVICE_READY),
        waits_for: waits_for.unwrap_or_default(),
    }
}

fn phase(operation: &Operation) -> Option<String> {
    (!operation.is_empty()).then(|| Phase::of(operation).to_string())
}

/// Returns the lines of a tree; those longer than `width` characters are wrapped.
#[must_use]
pub fn lines(tree: &Tree, width: usize) -> Vec<String> {
    let Tree { subject, desired, available, updated, progress, revisions, now } = tree;
    let mut lines = vec![
        format!("{subject}  {progress}"),
        format!(
            "{}  {updated} of {desired} updated, {available} available",
            bar(*updated, *desired)
        ),
    ];
    for (index, revision) in revisions.iter().enumerate() {
        let is_last = index + 1 == revisions.len();
        let (branch, indent) = if is_last { ("└─", "  ") } else { ("├─", "│ ") };
        let updated = if revision.is_updated { " (updated)" } else { "" };
        let count = revision.pods.len();
        lines.push(format!("{branch} {}{updated}: {count} Pods", revision.name));
        let pods = pod_lines(revision, *now).into_iter();
        lines.extend(pods.map(|line| format!("{indent} {line}")));
    }
    fit(lines, width)
}

fn pod_lines(revision: &RevisionNode, now: Timestamp) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for same in revision.pods.chunk_by(|pod, next| pod.waits_for == next.waits_for) {
        let is_idle = same.iter().all(|pod| pod.waits_for.is_empty());
        let (most, rest) =
            if is_idle { (MAX_IDLE, "in service") } else { (MAX_SAME, "wait for the same") };
        // A line for one Pod would not be shorter.
        let shown = if same.len() == most + 1 { same.len() } else { same.len().min(most) };
        lines.extend(same.iter().take(shown).map(|pod| pod_line(pod, now)));
        if shown < same.len() {
            lines.push(format!("… {} more {rest}", same.len() - shown));
        }
    }
    let last = lines.len().saturating_sub(1);
    let lines = lines.into_iter().enumerate().map(|(index, line)| {
        let branch = if index == last { "└─" } else { "├─" };
        format!("{branch} {line}")
    });
    lines.collect()
}

fn pod_line(pod: &PodNode, now: Timestamp) -> String {
    let PodNode { name, phase, since, is_ready, is_gate_open, waits_for, .. } = pod;
    let PodNode { is_in_service, has_failed, .. } = pod;
    let mark = match (has_failed, is_in_service) {
        (true, _) => "✖",
        (false, true) => "✔",
        (false, false) => "…",
    };
    let phase = phase.as_deref().unwrap_or(if *is_in_service { "in service" } else { "" });
    let age = since.map(|since| age(since, now)).unwrap_or_default();
    let state = match (is_ready, is_gate_open) {
        _ if *is_in_service && waits_for.is_empty() => "",
        (true, _) => "ready",
        (false, true) => "not ready",
        (false, false) => "no traffic",
    };
    format!("{mark} {name}  {phase:<10}  {age:<6}  {state:<10}  {waits_for}").trim_end().to_owned()
}

fn bar(done: usize, total: i32) -> String {
    let total = usize::try_from(total).unwrap_or_default();
    let filled = (done * BAR).checked_div(total).unwrap_or(BAR).min(BAR);
    format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn pod(edit: impl FnOnce(&mut PodNode)) -> String {
        let mut pod = PodNode {
            name: "web-1".to_owned(),
            phase: None,
            since: None,
            is_in_service: true,
            has_failed: false,
            is_ready: true,
            is_gate_open: true,
            waits_for: String::new(),
        };
        edit(&mut pod);
        pod_line(&pod, Timestamp::from_second(72).unwrap())
    }

    /// Pod of the CollaSet `web` at a revision, in service or in the phase Operate, whose container
    /// waits.
    fn owned(revision: &str, waiting: Option<&str>) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": format!("web-{revision}-{}", waiting.unwrap_or_default().to_lowercase()),
                "labels": { well_known::REVISION: revision, well_known::SERVICE_AVAILABLE: "1" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "CollaSet", "name": "web", "uid": "1" }],
            },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        if let Some(reason) = waiting {
            let labels = json!({
                well_known::REVISION: revision,
                "operating.podopslifecycle.kusionstack.io/collaset": "1",
                "operate.podopslifecycle.kusionstack.io/collaset": "1",
            });
            pod["metadata"]["labels"] = labels;
            pod["status"] = json!({ "containerStatuses": [{
                "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": { "reason": reason } },
            }] });
        }
        serde_json::from_value(pod).unwrap()
    }

    /// Tree of `web` with the status of the rollout before.
    fn tree_of(pods: Vec<Pod>) -> Vec<String> {
        let set = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "1" },
            "spec": { "replicas": 3, "selector": {}, "template": {} },
            "status": {
                "updatedRevision": "new", "availableReplicas": 3, "updatedAvailableReplicas": 3,
                "conditions": [{ "type": "Progressing", "status": "True", "reason": COMPLETE }],
            },
        });
        let facts = Facts {
            sets: vec![serde_json::from_value(set).unwrap()],
            pods: pods.into_iter().map(Arc::new).collect(),
            ..Facts::default()
        };
        lines(&tree(&facts, "web").unwrap(), 100)
    }

    #[test]
    fn the_header_counts_the_pods_below_it() {
        let creating = owned("new", Some("ContainerCreating"));
        let broken = owned("new", Some("ImagePullBackOff"));
        let lines = tree_of(vec![owned("new", None), creating, broken]);
        assert_eq!(lines[0], "collaset/web  Updating");
        assert!(lines[1].ends_with("  3 of 3 updated, 1 available"), "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.contains("… web-new-containercreating")),
            "{lines:#?}"
        );
        assert!(lines.iter().any(|line| line.contains("✖ web-new-imagepullbackoff")), "{lines:#?}");
        let lines = tree_of(vec![owned("new", None), owned("old", None)]);
        assert_eq!(lines[0], "collaset/web  RolloutComplete");
        assert!(lines[1].ends_with("  1 of 3 updated, 2 available"), "{lines:#?}");
    }

    #[test]
    fn pods_that_wait_for_the_same_are_folded() {
        let waiting = |count: usize| -> Vec<Pod> {
            let numbered = (0..count).map(|number| {
                let mut pod = owned("new", Some("ContainerCreating"));
                pod.metadata.name = Some(format!("web-{number}"));
                pod
            });
            numbered.collect()
        };
        let folded = |count: usize| {
            let lines = tree_of(waiting(count));
            let pods = lines.iter().filter(|line| line.contains("… web-")).count();
            let rest = lines.iter().find(|line| line.contains("more wait for the same"));
            (pods, rest.map(|line| line.trim_start_matches(['├', '└', '─', ' ']).to_owned()))
        };
        assert_eq!(folded(4), (4, None));
        assert_eq!(folded(18), (3, Some("… 15 more wait for the same".to_owned())));
    }

    #[test]
    fn a_pod_has_its_phase_age_readiness_and_cause() {
        assert_eq!(pod(|_| ()), "✔ web-1  in service");
        let queued = |pod: &mut PodNode| {
            pod.phase = Some("PreCheck".to_owned());
            pod.since = Some(Timestamp::UNIX_EPOCH);
            pod.waits_for = "a rule".to_owned();
        };
        assert_eq!(pod(queued), "✔ web-1  PreCheck    1m12s   ready       a rule");
        let stopped = |pod: &mut PodNode| {
            queued(pod);
            (pod.is_in_service, pod.is_ready) = (false, false);
        };
        assert_eq!(pod(stopped), "… web-1  PreCheck    1m12s   not ready   a rule");
        let drained = |pod: &mut PodNode| {
            stopped(pod);
            pod.is_gate_open = false;
        };
        assert_eq!(pod(drained), "… web-1  PreCheck    1m12s   no traffic  a rule");
        let failed = |pod: &mut PodNode| {
            drained(pod);
            pod.has_failed = true;
        };
        assert_eq!(pod(failed), "✖ web-1  PreCheck    1m12s   no traffic  a rule");
    }
}
