//! Decides if a rollout is complete, as `kubectl rollout status` does for Deployments.

use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    condition,
};

/// Progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The rollout is complete.
    Complete(String),
    /// The rollout is in progress.
    Waiting(String),
    /// The rollout is paused, and continues once a user resumes or approves it.
    WaitsForUser(String),
    /// The rollout has failed and does not complete by itself.
    Failed(String),
}

/// Reasons of the condition Progressing for which a rollout has failed.
const FAILED: [&str; 4] =
    ["ProgressDeadlineExceeded", "RolloutHalted", "RollingBack", "RolledBack"];

/// Returns the progress of a CollaSet's rollout.
#[must_use]
pub fn progress(set: &CollaSet) -> Progress {
    let name = super::name(set);
    let status = set.status.as_ref();
    let generation = set.metadata.generation;
    let observed = status.filter(|status| Some(status.observed_generation) == generation);
    let Some(status) = observed else {
        return Progress::Waiting(format!("collaset/{name}: the change is not observed yet"));
    };
    let progressing = condition::find(&status.conditions, "Progressing");
    let reason = progressing.and_then(|condition| condition.reason.as_deref()).unwrap_or_default();
    let message =
        progressing.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
    if FAILED.contains(&reason) {
        return Progress::Failed(format!("collaset/{name}: {reason}: {message}"));
    }
    if reason == "RolloutComplete" {
        let available = status.available_replicas;
        return Progress::Complete(format!(
            "collaset/{name}: complete, {available} Pods available"
        ));
    }
    if let Some(command) =
        continuation(reason, &name).filter(|_| !continues_by_itself(reason, status))
    {
        return Progress::WaitsForUser(format!(
            "collaset/{name}: {reason}: {message}; to continue: {command}"
        ));
    }
    let CollaSetStatus { replicas, updated_replicas, updated_available_replicas, .. } = status;
    let detail = if message.is_empty() { String::new() } else { format!(": {message}") };
    let causes = causes(status);
    Progress::Waiting(format!(
        "collaset/{name}: {reason}, {updated_replicas} of {replicas} Pods updated, \
         {updated_available_replicas} of them available{detail}{causes}"
    ))
}

/// Command that continues a rollout that is paused for this reason of Progressing or Paused.
pub(crate) fn continuation(reason: &str, set: &str) -> Option<String> {
    match reason {
        "Paused" | "SpecPaused" => Some(format!("kubectl podops rollout resume {set}")),
        "StepPaused" => Some(format!("kubectl podops rollout approve {set}")),
        _ => None,
    }
}

/// Returns whether the pause of a step ends without its approval.
fn continues_by_itself(reason: &str, status: &CollaSetStatus) -> bool {
    let step = status.rollout_step.as_ref().filter(|_| reason == "StepPaused");
    step.is_some_and(|step| step.continues_at.is_some())
}

/// What degrades the set, and what most Pods wait for; each begins with a semicolon.
fn causes(status: &CollaSetStatus) -> String {
    let degraded = condition::find(&status.conditions, "Degraded");
    let degraded = degraded.filter(|condition| condition.status == "True");
    let degraded = degraded.and_then(|condition| condition.message.clone());
    let waiting = status.waiting.iter().max_by_key(|group| group.count);
    let waiting =
        waiting.map(|group| format!("{} Pods, {}: {}", group.count, group.phase, group.reason));
    let causes: Vec<String> = [degraded, waiting].into_iter().flatten().collect();
    if causes.is_empty() { String::new() } else { format!("; {}", causes.join("; ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollout_that_waits_names_the_cause() {
        let set = serde_json::from_value(json!({
            "metadata": { "name": "web", "generation": 2 },
            "spec": { "selector": {}, "template": {} },
            "status": {
                "observedGeneration": 2, "replicas": 3, "updatedReplicas": 2,
                "conditions": [
                    { "type": "Progressing", "status": "True", "reason": "WaitingForPods" },
                    { "type": "Degraded", "status": "True", "message": "2 Pods do not start" },
                ],
                "waiting": [
                    { "phase": "Queued", "reason": "a limit", "count": 1 },
                    { "phase": "Starting", "reason": "CrashLoopBackOff: container c", "count": 2 },
                ],
            },
        }));
        let expected = "collaset/web: WaitingForPods, 2 of 3 Pods updated, 0 of them available; \
                        2 Pods do not start; 2 Pods, Starting: CrashLoopBackOff: container c";
        assert_eq!(progress(&set.unwrap()), Progress::Waiting(expected.to_owned()));
    }
}
