//! Decides which plan runs: compares the spec of an Instance with `status.observedInput`, the spec
//! that the last scheduled plans used.
//!
//! No admission webhook is involved. A permanent validation error is [`Invalid`], and nothing runs
//! until the spec is fixed.

mod changes;
mod cleanup;
mod invalid;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, InstanceStatus, ObservedInput, PlanExecution, PlanStatus};
use podops_client::event::ObjectEvent;

use self::changes::Changes;
pub use self::invalid::Invalid;
use crate::{
    plan_names::{CLEANUP, DEPLOY, is_rollout},
    reasons, run,
    values::{self, SetValues},
    view::{Finalizer, Observed, Version},
};

/// Change of the Instance itself, besides its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceChange {
    /// Adds a finalizer.
    AddFinalizer(Finalizer),
    /// Removes a finalizer, because its work is complete or there is none.
    RemoveFinalizer(Finalizer),
    /// Sets immutable parameters to their defaults, so that a later default does not change them.
    SetParameters(Vec<(String, String)>),
    /// Sets the UID of the requested run, so that a restarted operator uses the same UID.
    SetRequestUid(String),
    /// Removes the request of an ended run, once the status that reports the run is stored.
    ClearRequest,
}

impl InstanceChange {
    /// Returns whether the change must be written before anything else.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        !matches!(self, Self::ClearRequest)
    }

    /// Applies the change to an observed Instance, as the API server does.
    pub fn apply_to(&self, observed: &mut Observed) {
        match self {
            Self::AddFinalizer(finalizer) => {
                observed.finalizers.push(finalizer.as_str().to_owned());
            }
            Self::RemoveFinalizer(finalizer) => {
                observed.finalizers.retain(|known| known != finalizer.as_str());
            }
            Self::SetParameters(values) => {
                observed.spec.parameters.extend(values.clone());
                observed.generation += 1;
            }
            Self::SetRequestUid(uid) => {
                observed.spec.plan_execution.uid.clone_from(uid);
                observed.generation += 1;
            }
            Self::ClearRequest => {
                observed.spec.plan_execution = PlanExecution::default();
                observed.generation += 1;
            }
        }
    }
}

/// Result of scheduling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Status with the observed input and the started runs.
    pub status: InstanceStatus,
    /// Change of the Instance.
    pub change: Option<InstanceChange>,
    /// Values that the Instance sets.
    pub set: SetValues,
    /// Events of the runs that were ended.
    pub events: Vec<ObjectEvent>,
    /// Permanent validation error. The current run is paused; only a cancellation was accepted.
    pub invalid: Option<Invalid>,
}

/// State of one scheduling decision.
struct Scheduler<'a> {
    observed: &'a Observed,
    version: &'a Version,
    set: SetValues,
    status: InstanceStatus,
    events: Vec<ObjectEvent>,
    now: Timestamp,
}

/// Schedules the plans of an Instance.
#[must_use]
pub fn schedule(observed: &Observed, now: Timestamp) -> Schedule {
    let Some(version) = version(observed) else {
        let invalid = Some(missing_version(observed));
        return Schedule { status: observed.status.clone(), invalid, ..Schedule::default() };
    };
    let mut scheduler = Scheduler::new(observed, version, now);
    scheduler.cancel();
    let due = if observed.deleting { scheduler.clean_up() } else { scheduler.run_what_is_due() };
    let (change, invalid) = match due {
        Ok(change) => (change, None),
        Err(invalid) => {
            scheduler = Scheduler::new(observed, version, now);
            scheduler.cancel();
            (None, Some(invalid))
        }
    };
    let Scheduler { status, set, events, .. } = scheduler;
    Schedule { status, change, set, events, invalid }
}

/// Validates the spec of an Instance as [`schedule`] does, without a decision: for a client that is
/// about to write the spec.
///
/// # Errors
///
/// [`Invalid`] for a permanent validation error.
pub fn check(observed: &Observed) -> Result<(), Invalid> {
    let version = observed.version.as_deref().ok_or_else(|| missing_version(observed))?;
    let mut scheduler = Scheduler::new(observed, version, Timestamp::UNIX_EPOCH);
    scheduler.take_over();
    scheduler.schedule_changes()?;
    scheduler.schedule_request().map(drop)
}

/// Returns the OperatorVersion of an Instance. If it was deleted, a run in progress continues with
/// the content that it started with.
#[must_use]
pub fn version(observed: &Observed) -> Option<&Version> {
    let of_run =
        observed.version_of_run.as_deref().filter(|_| run::running(&observed.status).is_some());
    observed.version.as_deref().or(of_run)
}

/// Returns the error of an Instance without OperatorVersion. One of another namespace may exist: its
/// name is not revealed to those who may not read it.
pub(super) fn missing_version(observed: &Observed) -> Invalid {
    let key = observed.version_key();
    let or_forbidden = if observed.is_version_foreign() {
        ", or the ServiceAccount of the Instance may not get it"
    } else {
        ""
    };
    Invalid {
        reason: &reasons::OPERATOR_VERSION_INVALID,
        message: format!("OperatorVersion {key} does not exist{or_forbidden}"),
    }
}

impl<'a> Scheduler<'a> {
    fn new(observed: &'a Observed, version: &'a Version, now: Timestamp) -> Self {
        let set = values::set_values(observed);
        let status = observed.status.clone();
        Self { observed, version, set, status, events: Vec::new(), now }
    }
}

impl Scheduler<'_> {
    fn run_what_is_due(&mut self) -> Result<Option<InstanceChange>, Invalid> {
        let has_cleanup = self.version.spec.plans.contains_key(CLEANUP);
        if has_cleanup && !self.observed.has(Finalizer::Cleanup) {
            return Ok(Some(InstanceChange::AddFinalizer(Finalizer::Cleanup)));
        }
        if let Some(defaults) = self.immutable_defaults() {
            return Ok(Some(InstanceChange::SetParameters(defaults)));
        }
        self.take_over();
        self.schedule_changes()?;
        if let Some(change) = self.schedule_request()? {
            return Ok(Some(change));
        }
        self.begin_next();
        Ok(self.is_request_ended().then_some(InstanceChange::ClearRequest))
    }

    /// Defaults of immutable parameters that the Instance does not set; `None` without any.
    fn immutable_defaults(&self) -> Option<Vec<(String, String)>> {
        // New Instances only: a later OperatorVersion must not set a parameter that it makes
        // immutable.
        let is_new = self.status.observed_input.is_none() && self.status.plan_status.is_empty();
        let immutable = self.version.spec.parameters.iter().filter(|p| p.immutable == Some(true));
        let missing = immutable.filter(|p| is_new && !self.set.contains_key(&p.name));
        let defaults: Vec<_> = missing
            .filter_map(|parameter| Some((parameter.name.clone(), parameter.default.clone()?)))
            .collect();
        (!defaults.is_empty()).then_some(defaults)
    }

    /// Ends the run that `planExecution.cancel` names.
    fn cancel(&mut self) {
        let cancelled = &self.observed.spec.plan_execution.cancel;
        let running = run::running(&self.status).filter(|run| run.uid == *cancelled);
        if let Some(plan) = running.map(|run| run.name.clone()) {
            self.end(&plan, "cancelled by spec.planExecution.cancel");
        }
    }

    /// Adopts an Instance that KUDO scheduled, which has no `observedInput`. Its spec counts as
    /// observed, because KUDO's webhook scheduled every change.
    fn take_over(&mut self) {
        if self.status.observed_input.is_some() || self.status.plan_status.is_empty() {
            return;
        }
        let request = &self.observed.spec.plan_execution;
        let is_current = |plan: &PlanStatus| !request.uid.is_empty() && plan.uid == request.uid;
        // A plan cancelled in KUDO stays IN_PROGRESS indefinitely.
        let abandoned = self.status.plan_status.values().filter(|plan| plan.status.is_running());
        let abandoned: Vec<String> =
            abandoned.filter(|plan| !is_current(plan)).map(|plan| plan.name.clone()).collect();
        for plan in abandoned {
            self.end(&plan, "abandoned by KUDO");
        }
        self.status.observed_input = Some(ObservedInput {
            operator_version: self.observed.version_key(),
            parameters: self.digests(),
            immutable: self.immutable(),
            // A request that KUDO has not scheduled is new.
            requested_uid: if self.status.plan_status.values().any(is_current) {
                request.uid.clone()
            } else {
                String::new()
            },
            deployed: self.status.plan_status.values().any(|plan| {
                plan.name != DEPLOY && plan.status != ExecutionStatus::NeverRun
                    || plan.status == ExecutionStatus::Complete
            }),
        });
    }

    fn digests(&self) -> BTreeMap<String, String> {
        self.set.iter().map(|(name, set)| (name.clone(), set.digest.clone())).collect()
    }

    /// Names of the immutable parameters.
    fn immutable(&self) -> Vec<String> {
        let parameters = self.version.spec.parameters.iter();
        parameters.filter(|p| p.immutable == Some(true)).map(|p| p.name.clone()).collect()
    }

    /// Observes a changed OperatorVersion and changed parameters, and schedules their plans.
    fn schedule_changes(&mut self) -> Result<(), Invalid> {
        let changes = Changes::of(self.observed, self.version, &self.set, &self.status);
        if changes.is_empty() {
            return Ok(());
        }
        changes.check(self.observed, self.version, &self.set)?;
        let is_deployed = self.status.observed_input.as_ref().is_some_and(|input| input.deployed);
        let due = changes.plans(self.version, is_deployed)?;
        let requested_uid =
            self.status.observed_input.take().map(|input| input.requested_uid).unwrap_or_default();
        self.status.observed_input = Some(ObservedInput {
            operator_version: self.observed.version_key(),
            parameters: self.digests(),
            immutable: self.immutable(),
            requested_uid,
            deployed: is_deployed,
        });
        let reason = changes.to_string();
        let mut due = due.into_iter();
        if changes.replaces_rollout(is_deployed)
            && let Some(first) = due.next()
        {
            self.replace_rollout(&first, &reason);
        }
        for plan in due {
            self.add(&plan, &reason);
        }
        Ok(())
    }

    /// Starts a plan in place of a running rollout, or if no plan runs. After another running plan,
    /// the plan is the next.
    fn replace_rollout(&mut self, plan: &str, reason: &str) {
        let running = run::running(&self.status).map(|run| run.name.clone());
        match running {
            Some(running) if !is_rollout(&running) => {
                self.status.pending.retain(|pending| pending != plan);
                self.status.pending.insert(0, plan.to_owned());
            }
            running => {
                if let Some(running) = running.filter(|running| running != plan) {
                    self.end(&running, &format!("replaced by plan {plan}: {reason}"));
                }
                self.begin(plan, reason);
            }
        }
    }

    /// Restarts the running plan if it is the same or a rollout. A plan that the running plan does
    /// not cover starts, or is added to the pending plans.
    fn add(&mut self, plan: &str, reason: &str) {
        let running = run::running(&self.status).map(|run| run.name.clone());
        if let Some(running) = running {
            let is_part = running == plan || is_rollout(&running) && is_rollout(plan);
            // A rollout applies all parameters.
            if running == plan || is_rollout(&running) {
                self.begin(&running, reason);
            }
            if is_part {
                return;
            }
        }
        let is_idle = run::running(&self.status).is_none() && self.status.pending.is_empty();
        if is_idle {
            self.begin(plan, reason);
        } else if !self.status.pending.iter().any(|pending| pending == plan) {
            self.status.pending.push(plan.to_owned());
        }
    }

    /// Schedules the plan that a user requested. Returns a change that sets the UID, if the request
    /// has none.
    fn schedule_request(&mut self) -> Result<Option<InstanceChange>, Invalid> {
        let request = &self.observed.spec.plan_execution;
        let plan = &request.plan_name;
        let Some(input) = &mut self.status.observed_input else { return Ok(None) };
        if plan.is_empty() || (input.requested_uid == request.uid && !request.uid.is_empty()) {
            return Ok(None);
        }
        if !self.version.spec.plans.contains_key(plan) {
            let message = format!("plan {plan} does not exist");
            return Err(Invalid { reason: &reasons::PLAN_INVALID, message });
        }
        if self.observed.deleting && plan == CLEANUP {
            return Ok(None);
        }
        if self.observed.deleting {
            let message = "the Instance is being deleted, so no plan but cleanup can be requested";
            return Err(Invalid { reason: &reasons::PLAN_INVALID, message: message.to_owned() });
        }
        if plan == CLEANUP {
            let message = "plan cleanup runs when the Instance is deleted, and not on request";
            return Err(Invalid { reason: &reasons::PLAN_INVALID, message: message.to_owned() });
        }
        if request.uid.is_empty() {
            let uid = run::identity(self.observed, plan, "requested");
            return Ok(Some(InstanceChange::SetRequestUid(uid)));
        }
        input.requested_uid.clone_from(&request.uid);
        match run::running(&self.status).filter(|run| run.name == *plan) {
            // A change has just started the plan with the requested UID.
            Some(run) if run.uid == request.uid => {}
            Some(_) => self.begin(plan, "requested"),
            None if self.status.pending.contains(plan) => {}
            None => self.status.pending.push(plan.clone()),
        }
        Ok(None)
    }

    /// Starts the first pending plan if no plan runs.
    fn begin_next(&mut self) {
        self.status.pending.retain(|plan| self.version.spec.plans.contains_key(plan));
        if run::running(&self.status).is_some() || self.status.pending.is_empty() {
            return;
        }
        let plan = self.status.pending[0].clone();
        self.begin(&plan, "the plan was pending");
    }

    /// Returns whether the requested run has ended, so that the request can be removed.
    fn is_request_ended(&self) -> bool {
        let request = &self.observed.spec.plan_execution;
        let is_over = |uid: &str| {
            run::running(&self.status).is_none_or(|run| run.uid != uid)
                && !self.status.pending.contains(&request.plan_name)
        };
        let input = self.status.observed_input.as_ref();
        let is_taken_in = input.is_some_and(|input| input.requested_uid == request.uid);
        // A request without a plan, of KUDO or for a cancellation, has no further effect.
        let is_stale = request.plan_name.is_empty() && *request != PlanExecution::default();
        !request.plan_name.is_empty() && is_taken_in && is_over(&request.uid) || is_stale
    }

    /// Starts a run, with the requested UID if no run has used this UID.
    fn begin(&mut self, plan: &str, reason: &str) {
        self.status.pending.retain(|pending| pending != plan);
        let requested = self.requested_uid(plan).map(ToOwned::to_owned);
        let reason = if requested.is_some() { "requested" } else { reason };
        let uid = requested.unwrap_or_else(|| self.new_uid(plan));
        let identity = run::Identity { plan, uid, reason };
        run::begin(&mut self.status, self.version, identity, self.now);
    }

    fn requested_uid(&self, plan: &str) -> Option<&str> {
        let request = &self.observed.spec.plan_execution;
        let uid = request.uid.as_str();
        Some(uid)
            .filter(|uid| request.plan_name == plan && !uid.is_empty() && !self.is_known(plan, uid))
    }

    /// Returns whether the last run of a plan, or a run in the history, has this UID.
    fn is_known(&self, plan: &str, uid: &str) -> bool {
        self.status.plan_status.get(plan).is_some_and(|known| known.uid == uid)
            || self.status.history.iter().any(|run| run.uid == uid)
    }

    /// Returns a UID that no known run has. A value of `parametersFrom` may recur, so the same
    /// input can lead to another run.
    fn new_uid(&self, plan: &str) -> String {
        let mut input = self.input_text();
        loop {
            let uid = run::identity(self.observed, plan, &input);
            if !self.is_known(plan, &uid) {
                return uid;
            }
            input.push_str("\nagain");
        }
    }

    /// Input of a derived UID, besides generation and plan: the versions of the sources.
    fn input_text(&self) -> String {
        let sources = self.observed.sources.iter();
        let sources: Vec<_> =
            sources.map(|(name, source)| format!("{name}={}", source.version)).collect();
        sources.join("\n")
    }

    fn end(&mut self, plan: &str, message: &str) {
        let failed = ExecutionStatus::FatalError;
        self.events.extend(run::end(&mut self.status, plan, failed, message, self.now));
    }
}
