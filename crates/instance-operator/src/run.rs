//! Runs of plans: identity, start and end. Pure changes of an Instance's status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{
    ExecutionStatus, InstanceStatus, Phase, PhaseStatus, PlanRun, PlanStatus, Step, StepStatus,
};
use podops_client::event::ObjectEvent;
use sha2::{Digest as _, Sha256};

use crate::{
    conditions, reasons,
    view::{Observed, Version},
};

/// Number of ended runs that the status keeps.
const HISTORY: usize = 10;

/// Returns the identity of a run, which depends only on the input: an operator that restarts before
/// the status is written starts the same run again.
#[must_use]
pub fn identity(observed: &Observed, plan: &str, input: &str) -> String {
    let text = format!("{}\n{}\n{plan}\n{input}", observed.uid, observed.generation);
    let digest = Sha256::digest(text);
    let mut bytes: [u8; 16] = std::array::from_fn(|index| digest[index]);
    // Version 8 of RFC 9562: the other bits are application-defined.
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns the inventory's record of the run and attempt that applied an object: the run, followed
/// by the number of the attempt if it is not the first.
#[must_use]
pub fn run_and_attempt(run: &str, attempt: u32) -> String {
    match attempt {
        0 | 1 => run.to_owned(),
        attempt => format!("{run}#{attempt}"),
    }
}

/// Returns whether the inventory's record names this run, in any attempt.
#[must_use]
pub fn is_of_run(recorded: &str, run: &str) -> bool {
    let rest = recorded.strip_prefix(run);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

/// Returns the running plan; `None` if no plan runs.
#[must_use]
pub fn running(status: &InstanceStatus) -> Option<&PlanStatus> {
    status.plan_status.values().find(|plan| plan.status.is_running())
}

/// Returns the status with which a reconcile continues if the status of an earlier reconcile is not
/// stored yet. Completed steps are valid for the generation that was observed: another operator may
/// have changed the same objects for a later generation. Only the inventory's identities are kept
/// then.
#[must_use]
pub fn continued(
    stored: &InstanceStatus,
    unwritten: InstanceStatus,
    generation: i64,
) -> InstanceStatus {
    if unwritten.observed_generation == Some(generation) {
        return unwritten;
    }
    let mut status = InstanceStatus { inventory: unwritten.inventory, ..stored.clone() };
    forget_contents(&mut status);
    status
}

/// Clears the digests of applied objects, because a paused former leader may still be about to
/// change the objects. The next run then writes its annotations to each object, even without
/// another change, so that the API server rejects writes based on an earlier resourceVersion.
fn forget_contents(status: &mut InstanceStatus) {
    for entry in &mut status.inventory {
        entry.applied.clear();
    }
}

/// Returns whether a run has completed all its steps.
fn is_done(run: &PlanStatus) -> bool {
    let mut steps = run.phases.iter().flat_map(|phase| &phase.steps);
    steps.all(|step| step.status == ExecutionStatus::Complete)
}

/// Messages of a run's failed steps that are retried.
#[must_use]
pub fn errors(run: &PlanStatus) -> Vec<String> {
    let steps = run.phases.iter().flat_map(|phase| &phase.steps);
    let failing = steps.filter(|step| step.status == ExecutionStatus::Error);
    failing.map(|step| step.message.clone()).collect()
}

/// Returns why a plan failed or fails; `None` if neither.
#[must_use]
pub fn failure(status: &InstanceStatus, plan: &str) -> Option<String> {
    let found = status.plan_status.get(plan)?;
    if found.status == ExecutionStatus::FatalError {
        let last = status.history.iter().find(|run| run.uid == found.uid);
        let message = last.map(|run| run.message.as_str()).unwrap_or_default();
        return Some(format!("plan {plan} failed: {message}"));
    }
    let errors = Some(found).filter(|found| found.status.is_running()).map(errors)?;
    errors.first().map(|error| format!("plan {plan} fails: {error}"))
}

/// Returns a status in KUDO's notation, such as `IN_PROGRESS`.
#[must_use]
pub fn shown(status: ExecutionStatus) -> String {
    let text = serde_json::to_value(status).ok();
    text.and_then(|text| text.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}

/// Adds the plans, phases and steps of an OperatorVersion that the status does not have, in the
/// order of the OperatorVersion. Plans that the OperatorVersion no longer has are kept.
pub fn add_missing(status: &mut InstanceStatus, version: &Version) {
    for (name, plan) in &version.spec.plans {
        let entry = status.plan_status.entry(name.clone()).or_default();
        entry.name.clone_from(name);
        let known = std::mem::take(&mut entry.phases);
        entry.phases = plan.phases.iter().map(|phase| phase_status(phase, &known)).collect();
    }
}

/// Returns the status of a phase with all its steps: the known status of this name, or an empty
/// one.
fn phase_status(phase: &Phase, known: &[PhaseStatus]) -> PhaseStatus {
    let known = known.iter().find(|known| known.name == phase.name).cloned().unwrap_or_default();
    let steps = phase.steps.iter().map(|step| step_status(step, &known.steps)).collect();
    PhaseStatus { name: phase.name.clone(), steps, ..known }
}

/// Returns the known status of a step by name, or an empty one.
fn step_status(step: &Step, known: &[StepStatus]) -> StepStatus {
    let known = known.iter().find(|known| known.name == step.name).cloned().unwrap_or_default();
    StepStatus { name: step.name.clone(), ..known }
}

/// Identity of a run, and its reason.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    /// Name of the plan.
    pub plan: &'a str,
    /// Identity of the run.
    pub uid: String,
    /// Reason of the run.
    pub reason: &'a str,
}

/// Starts a run of a plan; replaces a running one of the same plan.
pub fn begin(
    status: &mut InstanceStatus,
    version: &Version,
    identity: Identity<'_>,
    now: Timestamp,
) {
    let Identity { plan, uid, reason } = identity;
    add_missing(status, version);
    let Some(entry) = status.plan_status.get_mut(plan) else { return };
    let is_replaced = entry.status.is_running();
    let phases = std::mem::take(&mut entry.phases);
    *entry = PlanStatus {
        name: plan.to_owned(),
        status: ExecutionStatus::Pending,
        message: String::new(),
        last_updated_timestamp: Some(Time(now)),
        phases: phases.into_iter().map(pending_phase).collect(),
        uid,
        reason: reason.to_owned(),
        started: Some(Time(now)),
        operator_version: version.identity.clone(),
    };
    if is_replaced {
        forget_contents(status);
    }
}

fn pending_phase(phase: PhaseStatus) -> PhaseStatus {
    let steps = phase.steps.into_iter().map(|step| StepStatus {
        name: step.name,
        status: ExecutionStatus::Pending,
        ..StepStatus::default()
    });
    PhaseStatus {
        status: ExecutionStatus::Pending,
        message: String::new(),
        steps: steps.collect(),
        name: phase.name,
    }
}

/// Ends the run of a plan: adds it to the history, and reports a rollout in the condition Ready.
/// Returns the event; `None` if the status does not have the plan.
#[must_use]
pub fn end(
    status: &mut InstanceStatus,
    plan: &str,
    result: ExecutionStatus,
    message: &str,
    now: Timestamp,
) -> Option<ObjectEvent> {
    let entry = status.plan_status.get_mut(plan)?;
    entry.status = result;
    entry.last_updated_timestamp = Some(Time(now));
    // By default, the message of the run is that of its failed step.
    let of_step = entry.phases.iter().flat_map(|phase| &phase.steps);
    let mut of_step = of_step.filter(|step| step.status == ExecutionStatus::FatalError);
    let message = match of_step.next() {
        Some(step) if message.is_empty() => step.message.clone(),
        _ => {
            message.clone_into(&mut entry.message);
            message.to_owned()
        }
    };
    let run = PlanRun {
        plan: plan.to_owned(),
        uid: entry.uid.clone(),
        reason: entry.reason.clone(),
        started: entry.started.clone(),
        finished: Some(Time(now)),
        status: result,
        message,
    };
    if !is_done(entry) {
        forget_contents(status);
    }
    status.history.insert(0, run);
    status.history.truncate(HISTORY);
    conditions::report_end(status, plan, result, now);
    Some(reasons::finished(plan, result))
}

#[cfg(test)]
mod tests {
    use podops_api::kudo::InventoryEntry;
    use serde_json::json;

    use super::*;

    fn version() -> Version {
        let plans = json!({
            "deploy": { "phases": [{ "name": "a", "steps": [{ "name": "x" }, { "name": "y" }] }] },
            "backup": {},
        });
        let spec = serde_json::from_value(json!({ "plans": plans })).unwrap();
        Version { identity: "v/1".to_owned(), spec, ..Version::default() }
    }

    fn deploy(uid: &str) -> Identity<'static> {
        Identity { plan: "deploy", uid: uid.to_owned(), reason: "changed" }
    }

    #[test]
    fn identities_are_uuids_that_depend_on_their_input_only() {
        let observed = Observed { uid: "u".into(), generation: 1, ..Observed::default() };
        let run = identity(&observed, "deploy", "");
        assert_eq!(run, identity(&observed, "deploy", ""));
        assert_eq!(run.len(), 36);
        assert_eq!(run.as_bytes()[14], b'8');
        let others = [
            identity(&observed, "backup", ""),
            identity(&observed, "deploy", "x"),
            identity(&Observed { generation: 2, ..observed.clone() }, "deploy", ""),
            identity(&Observed { uid: "v".into(), ..observed.clone() }, "deploy", ""),
        ];
        assert!(others.iter().all(|other| *other != run));
    }

    #[test]
    fn a_run_begins_with_every_step_pending() {
        let mut status = InstanceStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        begin(&mut status, &version(), deploy("u"), now);
        let deploy = &status.plan_status["deploy"];
        assert_eq!((deploy.status, deploy.uid.as_str()), (ExecutionStatus::Pending, "u"));
        let steps: Vec<_> = deploy.phases[0].steps.iter().map(|step| step.status).collect();
        assert_eq!(steps, [ExecutionStatus::Pending; 2]);
        assert_eq!(status.plan_status["backup"].status, ExecutionStatus::NeverRun);
        assert_eq!(running(&status).unwrap().name, "deploy");
    }

    /// Digests of applied objects, after a run has started and `change` was made.
    fn digests_after(change: impl Fn(&mut InstanceStatus)) -> Vec<String> {
        let mut status = InstanceStatus::default();
        begin(&mut status, &version(), deploy("u"), Timestamp::UNIX_EPOCH);
        let applied = "digest".to_owned();
        status.inventory = vec![InventoryEntry { applied, ..InventoryEntry::default() }];
        change(&mut status);
        status.inventory.into_iter().map(|entry| entry.applied).collect()
    }

    #[test]
    fn contents_are_known_after_runs_that_completed_all_steps() {
        let now = Timestamp::UNIX_EPOCH;
        let end_with = |result| {
            digests_after(|status| {
                for phase in &mut status.plan_status.get_mut("deploy").unwrap().phases {
                    phase.steps.iter_mut().for_each(|step| step.status = result);
                }
                let _event = end(status, "deploy", ExecutionStatus::Complete, "", now);
            })
        };
        assert_eq!(end_with(ExecutionStatus::Complete), ["digest"]);
        assert_eq!(
            end_with(ExecutionStatus::FatalError),
            [""],
            "another operator may retry the step"
        );
        assert_eq!(digests_after(|status| begin(status, &version(), deploy("v"), now)), [""]);
        let cancel = |status: &mut InstanceStatus| {
            let _event = end(status, "deploy", ExecutionStatus::FatalError, "cancelled", now);
        };
        assert_eq!(digests_after(cancel), [""]);
    }

    #[test]
    fn steps_count_for_the_generation_that_was_observed() {
        let mut stored = InstanceStatus::default();
        begin(&mut stored, &version(), deploy("u"), Timestamp::UNIX_EPOCH);
        let mut unwritten = InstanceStatus { observed_generation: Some(1), ..stored.clone() };
        unwritten.plan_status.get_mut("deploy").unwrap().phases[0].steps[0].status =
            ExecutionStatus::Complete;
        let name = "first".to_owned();
        let applied = "digest".to_owned();
        unwritten.inventory = vec![InventoryEntry { name, applied, ..InventoryEntry::default() }];
        assert_eq!(continued(&stored, unwritten.clone(), 1), unwritten);
        let continued = continued(&stored, unwritten, 2);
        assert_eq!(continued.plan_status, stored.plan_status);
        let known: Vec<_> =
            continued.inventory.iter().map(|e| (e.name.as_str(), e.applied.as_str())).collect();
        assert_eq!(known, [("first", "")]);
    }

    #[test]
    fn plans_keep_their_results_when_the_version_changes() {
        let mut status = InstanceStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        begin(&mut status, &version(), deploy("u"), now);
        let _event = end(&mut status, "deploy", ExecutionStatus::Complete, "", now);
        let plans = json!({ "deploy": { "phases": [
            { "name": "new", "steps": [] }, { "name": "a", "steps": [{ "name": "z" }, { "name": "x" }] },
        ] } });
        let spec = serde_json::from_value(json!({ "plans": plans })).unwrap();
        status.plan_status.get_mut("deploy").unwrap().phases[0].steps[0].status =
            ExecutionStatus::Complete;
        add_missing(&mut status, &Version { spec, ..Version::default() });
        let phases = &status.plan_status["deploy"].phases;
        assert_eq!(phases.iter().map(|phase| &phase.name).collect::<Vec<_>>(), ["new", "a"]);
        let steps: Vec<_> = phases[1].steps.iter().map(|s| (s.name.as_str(), s.status)).collect();
        let expected = [("z", ExecutionStatus::NeverRun), ("x", ExecutionStatus::Complete)];
        assert_eq!(steps, expected);
        assert!(status.plan_status.contains_key("backup"), "a plan that left the version stays");
    }

    #[test]
    fn the_history_has_the_last_ten_runs_with_messages() {
        let mut status = InstanceStatus::default();
        let now = Timestamp::UNIX_EPOCH;
        for n in 0..12 {
            begin(&mut status, &version(), deploy(&n.to_string()), now);
            let step = &mut status.plan_status.get_mut("deploy").unwrap().phases[0].steps[0];
            step.status = ExecutionStatus::FatalError;
            step.message = format!("failed {n}");
            let _event = end(&mut status, "deploy", ExecutionStatus::FatalError, "", now);
        }
        assert_eq!(status.history.len(), 10);
        assert_eq!(status.history[0].message, "failed 11");
        assert_eq!(status.plan_status["deploy"].message, "", "the step has it");
        assert_eq!(running(&status), None);
    }
}
