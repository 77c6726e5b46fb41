//! Decides the next changes of one job: of its targets, its status and itself. Pure: observed state
//! and the time in, a [`Plan`] out.
//!
//! The start of an operation is recorded in the stored status before its Pod is changed, so that a
//! restarted operator knows the operations in progress and their Pods.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    ids::PodName,
    operation_job::{self, OperationJobStatus, OperationTarget, Progress, TargetStatus},
};

use crate::{
    facts,
    status::status,
    view::{Observed, PodView},
};

pub mod action;
mod release;
mod replace;
pub mod run;
mod start;
mod successor;
mod target;

pub use action::{JobChange, PodChange, TargetChange};

use target::TargetState;

/// Maximum number of targets whose operation starts in one plan.
const TARGETS_PER_PLAN: usize = 100;

/// Changes of one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Changes of targets.
    pub targets: Vec<TargetChange>,
    /// Change of the job itself.
    pub job: Option<JobChange>,
    /// Status to report.
    pub status: OperationJobStatus,
    /// Number of targets whose operation starts.
    pub started: usize,
    /// Targets that would start, but whose Pods are not known; they have to be read from the API
    /// server, because the cache may not contain a Pod yet that was created just before its job.
    pub unknown: Vec<PodName>,
    /// Time after which to reconcile again without an event.
    pub requeue_after: Option<Duration>,
}

/// How a target is operated on: the job's action, in place or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Replace,
    Recreate,
    RestartInPlace,
}

impl Method {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Replace => "Replace",
            Self::Recreate => "Recreate",
            Self::RestartInPlace => "InPlace",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Replace, Self::Recreate, Self::RestartInPlace]
            .into_iter()
            .find(|m| m.as_str() == text)
    }
}

/// State of a plan that is shared by the targets.
struct Planner<'a> {
    observed: &'a Observed,
    now: Timestamp,
    plan: Plan,
    /// Names of the Pods that took over from targets.
    taken: BTreeSet<String>,
}

/// Plans the next changes of one job.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let taken = observed.taken_successors().into_iter().map(ToOwned::to_owned).collect();
    let mut planner = Planner { observed, now, plan: Plan::default(), taken };
    let mut targets = states(observed);
    if observed.deleting {
        cancel(&mut planner, &targets);
        return planner.plan;
    }
    if !observed.is_protected() {
        planner.plan.job = Some(JobChange::AddFinalizer);
    }
    for state in &mut targets {
        planner.advance(state);
    }
    planner.start(&mut targets);
    for state in &mut targets {
        state.finish(now);
    }
    let details = targets.into_iter().map(|state| state.status).collect();
    planner.plan.status = status(observed, details, now);
    planner.expire();
    planner.plan
}

/// Targets in the order of the spec, with their reported states.
fn states(observed: &Observed) -> Vec<TargetState<'_>> {
    let known = &observed.status.target_details;
    let states = observed.spec.targets.iter().enumerate().map(|(index, target)| {
        // Usually the status has the same order; Kuperator's may have another.
        let same = known.get(index).filter(|status| status.name == target.name);
        let status = same.or_else(|| known.iter().find(|status| status.name == target.name));
        let fresh = || TargetStatus { name: target.name.clone(), ..TargetStatus::default() };
        TargetState {
            target,
            pod: observed.pods.get(&PodName::from(target.name.as_str())).map(Arc::as_ref),
            status: status.cloned().unwrap_or_else(fresh),
        }
    });
    states.collect()
}

/// Releases the targets of a deleted job, then removes its finalizer.
fn cancel(planner: &mut Planner<'_>, targets: &[TargetState<'_>]) {
    for state in targets {
        if state.status.progress == Progress::Processing {
            planner.release(state);
        }
    }
    planner.plan.status = planner.observed.status.clone();
    if planner.plan.targets.is_empty() && planner.observed.is_protected() {
        planner.plan.job = Some(JobChange::RemoveFinalizer);
    }
}

impl<'a> Planner<'a> {
    /// Advances a target whose operation has started.
    fn advance(&mut self, state: &mut TargetState<'a>) {
        match state.status.progress {
            Progress::Pending | Progress::Succeeded => {}
            Progress::Failed => {
                if !state.has(facts::RELEASED) && !self.release(state) {
                    state.set(facts::RELEASED, "true");
                }
            }
            Progress::Processing => {
                if self.is_overdue(state) {
                    let seconds = self.observed.spec.active_deadline_seconds;
                    let waiting = state.get(facts::WAITING).map(ToOwned::to_owned);
                    let waiting = waiting.map(|waiting| format!("; it waits for {waiting}"));
                    let message = format!(
                        "the operation did not succeed within {seconds} seconds{}",
                        waiting.unwrap_or_default()
                    );
                    state.fail("DeadlineExceeded", message);
                    if !self.release(state) {
                        state.set(facts::RELEASED, "true");
                    }
                    return;
                }
                self.run(state);
            }
        }
    }

    /// Returns whether the deadline of a target is over; otherwise another reconcile is due then.
    fn is_overdue(&mut self, state: &TargetState<'_>) -> bool {
        let Some(started) = &state.status.start_time else { return false };
        let seconds = i64::from(self.observed.spec.active_deadline_seconds);
        self.is_over(started.0, seconds)
    }

    /// Returns whether a time is over; otherwise another reconcile is due then.
    fn is_over(&mut self, since: Timestamp, seconds: i64) -> bool {
        let until = since.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        match Duration::try_from(until.duration_since(self.now)) {
            Ok(left) if !left.is_zero() => {
                self.requeue_after(left);
                false
            }
            _ => true,
        }
    }

    /// Requests another reconcile after at most this time.
    fn requeue_after(&mut self, wait: Duration) {
        let known = self.plan.requeue_after;
        self.plan.requeue_after = Some(known.map_or(wait, |known| known.min(wait)));
    }

    fn change(&mut self, pod: &PodView, change: PodChange) {
        self.plan.targets.push(TargetChange { pod: pod.name.clone(), change });
    }

    /// Starts the operations on further targets, within partition and parallelism.
    fn start(&mut self, targets: &mut [TargetState<'_>]) {
        let spec = &self.observed.spec;
        let begun =
            targets.iter().filter(|state| state.status.progress != Progress::Pending).count();
        let running =
            targets.iter().filter(|state| state.status.progress == Progress::Processing).count();
        let left = limit(spec.partition).unwrap_or(usize::MAX).saturating_sub(begun);
        let free = self.parallelism().saturating_sub(running);
        let left = left.min(free);
        if spec.pause {
            return;
        }
        let pending = targets.iter_mut().filter(|s| s.status.progress == Progress::Pending);
        for state in pending.take(left.min(TARGETS_PER_PLAN)) {
            self.start_target(state);
        }
    }

    /// Number of targets that are operated on at the same time. By default one, unless each Pod has
    /// its replacement before it leaves, because the targets may be all Pods of a workload.
    fn parallelism(&self) -> usize {
        let spec = &self.observed.spec;
        let keeps_capacity = spec.action == operation_job::REPLACE || spec.dry_run;
        let default = if keeps_capacity { usize::MAX } else { 1 };
        limit(spec.parallelism).unwrap_or(default)
    }

    /// Deletes a job whose time to live is over.
    fn expire(&mut self) {
        let Some(ended) = self.plan.status.end_time.clone() else { return };
        let released = self.plan.status.target_details.iter().all(|target| {
            target.progress != Progress::Failed || target.extra_info.contains_key(facts::RELEASED)
        });
        let seconds = i64::from(self.observed.spec.ttl_seconds_after_finished);
        if released && self.plan.targets.is_empty() && self.is_over(ended.0, seconds) {
            self.plan.job = Some(JobChange::Delete);
        }
    }
}

fn limit(number: Option<i32>) -> Option<usize> {
    number.map(|number| usize::try_from(number).unwrap_or_default())
}

/// Names of the containers of a target that are restarted: those that it names, or else all.
fn containers_of<'a>(target: &'a OperationTarget, pod: &'a PodView) -> Vec<&'a str> {
    if target.containers.is_empty() {
        return pod.containers.iter().map(|container| container.name.as_str()).collect();
    }
    target.containers.iter().map(String::as_str).collect()
}

/// Returns whether this operator carries out the action.
fn is_known(action: &str) -> bool {
    [operation_job::REPLACE, operation_job::RESTART, operation_job::RECREATE].contains(&action)
}

#[cfg(test)]
mod tests;
