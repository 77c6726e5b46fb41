//! Decides what an employer's Pods are to hold. Pure: what was seen and the time come in, a [`Plan`]
//! goes out.
//!
//! A Pod's finalizer stands for traffic that was seen. It is put on when the Pod is to have traffic and
//! the backend was seen to send it, and taken off when the Pod is to have none and the backend was seen
//! to send none: never because somebody was told to.

use jiff::{SignedDuration, Timestamp};
use podops_api::{availability::AvailableConditions, consist};

use crate::{
    policy::Off,
    view::{EmployerState, MemberView, Observed, Traffic},
};

/// What is wanted of a backend for one Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Send it traffic.
    Serve,
    /// Send it no new traffic.
    Off,
}

/// What is wanted of an employer's backend for a Pod.
#[must_use]
pub fn want(state: EmployerState, member: &MemberView) -> Want {
    if state == EmployerState::Active
        && member.selected
        && member.ready
        && !member.addresses.is_empty()
    {
        Want::Serve
    } else {
        Want::Off
    }
}

/// What to do about an employer and its Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The employer's finalizers, if they change.
    pub finalizers: Option<Vec<String>>,
    /// Whether the employer is to say what it holds its Pods with.
    pub report_finalizer: bool,
    /// What changes on Pods.
    pub pods: Vec<PodChange>,
    /// Pods that wait for their traffic to come or go.
    pub waits: Vec<Wait>,
    /// Conditions of Pods that change.
    pub reports: Vec<Report>,
    /// When to look again without being told.
    pub requeue_after: Option<SignedDuration>,
}

/// What changes on one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodChange {
    /// The Pod's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Whether it has annotations.
    pub annotated: bool,
    /// The finalizers that it had, and those that it is to have.
    pub finalizers: Option<(Vec<String>, Vec<String>)>,
    /// Whether that lets go of it.
    pub releases: bool,
    /// The text of its available conditions before, and after.
    pub conditions: Option<(Option<String>, String)>,
}

/// A Pod that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The Pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// For what.
    pub reason: String,
    /// Whether it waits to lose its traffic, or else to get some.
    pub leaves: bool,
    /// Since when, as far as its conditions tell.
    pub since: Option<Timestamp>,
}

/// What a condition of a Pod is to say of its employer's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The Pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The condition's type: the finalizer that it explains.
    pub type_: String,
    /// Its reason and its message; nothing if it goes.
    pub says: Option<(&'static str, String)>,
}

/// How long a Pod waits before a condition says so, if its backend cannot be seen, and otherwise: a
/// write each time a backend stumbles would cost more than it tells.
const UNSEEN_PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// See [`UNSEEN_PATIENCE`].
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// How long other words for the same reason are not written.
const QUIET: SignedDuration = SignedDuration::from_secs(60);

/// Plans the next writes for an employer and its Pods.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let employs = observed.employer.state == EmployerState::Active;
    let held = observed.employer.is_held();
    let finalizer = observed.employer.finalizer();
    plan.report_finalizer =
        employs && observed.employer.reported_finalizer.as_ref() != Some(&finalizer);
    // An employer that could vanish now would leave Pods with what nobody takes off.
    if employs && !held {
        plan.finalizers = Some(clean_finalizers(observed, true));
        return plan;
    }
    for member in &observed.members {
        let waits = plan.waits.len();
        one(observed, &finalizer, member, now, &mut plan);
        plan.reports.extend(report(observed, &finalizer, member, plan.waits.get(waits), now));
    }
    let releases = !employs && plan.pods.is_empty() && plan.waits.is_empty();
    let finalizers = clean_finalizers(observed, !releases && held);
    if finalizers != observed.employer.finalizers {
        plan.finalizers = Some(finalizers);
    }
    plan
}

/// The employer's finalizers with ours, or without; the one of earlier versions goes in any case.
fn clean_finalizers(observed: &Observed, with: bool) -> Vec<String> {
    let old = format!("{}{}", consist::OLD_CLEAN_FINALIZER, observed.employer.name);
    let ours = |f: &&String| **f == consist::CLEAN_FINALIZER || **f == old;
    let others = observed.employer.finalizers.iter().filter(|f| !ours(f)).cloned();
    let own = with.then(|| consist::CLEAN_FINALIZER.to_owned());
    others.chain(own).collect()
}

fn one(
    observed: &Observed,
    finalizer: &String,
    member: &MemberView,
    now: Timestamp,
    plan: &mut Plan,
) {
    let has = member.finalizers.contains(finalizer);
    let wanted = want(observed.employer.state, member);
    let mut change = PodChange {
        name: member.name.clone(),
        uid: member.uid.clone(),
        version: member.version.clone(),
        annotated: member.annotated,
        finalizers: None,
        releases: false,
        conditions: None,
    };
    let wait = |reason: String, leaves: bool| Wait {
        pod: member.name.clone(),
        uid: member.uid.clone(),
        reason,
        leaves,
        since: if leaves { member.unready_since } else { member.ready_since },
    };
    match judge(observed, member, wanted, has, now) {
        Verdict::Stays => {}
        Verdict::Takes => {
            let mut with = member.finalizers.clone();
            with.push(finalizer.clone());
            change.finalizers = Some((member.finalizers.clone(), with));
        }
        Verdict::Released => {
            let others = member.finalizers.iter().filter(|f| *f != finalizer).cloned();
            change.finalizers = Some((member.finalizers.clone(), others.collect()));
            change.releases = true;
        }
        Verdict::Waits(reason, wake) => {
            plan.waits.push(wait(reason, wanted == Want::Off));
            let left = wake.map(|wake| wake.duration_since(now));
            plan.requeue_after = [plan.requeue_after, left].into_iter().flatten().min();
        }
    }
    change.conditions = conditions(observed, finalizer, member, has && !change.releases);
    if change.finalizers.is_some() || change.conditions.is_some() {
        plan.pods.push(change);
    }
}

/// What changes about what a Pod's condition says.
fn report(
    observed: &Observed,
    finalizer: &str,
    member: &MemberView,
    wait: Option<&Wait>,
    now: Timestamp,
) -> Option<Report> {
    let fault = observed.observation.fault.as_ref();
    let patience = if fault.is_some() { UNSEEN_PATIENCE } else { PATIENCE };
    let long =
        wait.filter(|wait| wait.since.is_some_and(|since| now.duration_since(since) > patience));
    let says = long.map(|wait| {
        let reason = match (fault, wait.leaves) {
            (Some(_), _) => "BackendUnavailable",
            (None, true) => "DrainPending",
            (None, false) => "NotReceivingTraffic",
        };
        (reason, format!("{} waits for {}", observed.employer.key(), wait.reason))
    });
    let changes = match (&says, &member.told) {
        (None, None) => false,
        // It waits on, for something else by now; or it is gone before anybody could read this.
        (None, Some(_)) => wait.is_none() && !member.deleting,
        (Some(_), None) => true,
        (Some((reason, message)), Some(told)) => {
            let old = told.at.is_none_or(|at| now.duration_since(at) > QUIET);
            // What stumbles now and then is not told of each time.
            old && (told.reason != *reason || told.message != *message)
        }
    };
    changes.then(|| Report {
        pod: member.name.clone(),
        uid: member.uid.clone(),
        type_: finalizer.to_owned(),
        says,
    })
}

enum Verdict {
    Stays,
    Takes,
    Released,
    Waits(String, Option<Timestamp>),
}

fn judge(
    observed: &Observed,
    member: &MemberView,
    wanted: Want,
    has: bool,
    now: Timestamp,
) -> Verdict {
    let told = &observed.observation;
    let traffic = told.traffic.get(&member.uid).copied();
    let flows = matches!(traffic, Some(Traffic::Serving))
        || matches!(traffic, Some(Traffic::Draining(Some(left))) if left > 0);
    match (wanted, has) {
        (Want::Serve, true) => Verdict::Stays,
        // It was told to serve, and leaves before anybody saw it: it is not to be touched either. One
        // that is being deleted takes no more finalizers.
        (Want::Off, false)
            if (flows || told.fault.is_some() && told.unseen.contains(&member.uid))
                && is_employed(observed, member)
                && !member.addresses.is_empty()
                && !is_given_up(observed, member, now) =>
        {
            Verdict::Takes
        }
        (Want::Off, false) => Verdict::Stays,
        (Want::Serve, false) => match (&told.fault, traffic) {
            (_, Some(Traffic::Serving)) => Verdict::Takes,
            (Some(fault), _) => Verdict::Waits(fault.clone(), None),
            (_, Some(Traffic::Unhealthy)) => {
                Verdict::Waits("its backend to find it healthy".to_owned(), None)
            }
            _ => {
                let reason = || "its backend to send it traffic".to_owned();
                Verdict::Waits(told.unfulfilled.clone().unwrap_or_else(reason), None)
            }
        },
        (Want::Off, true) if observed.employer.state == EmployerState::Unmanaged => {
            Verdict::Released
        }
        // Nobody sends traffic to what has no address, or ended.
        (Want::Off, true) if member.addresses.is_empty() || member.terminal => Verdict::Released,
        (Want::Off, true) => {
            // Who says nothing may send it some.
            let known = traffic.filter(|_| told.fault.is_none());
            let off = told.off_since.get(&member.uid).copied();
            let begun = member.unready_since;
            match observed.employer.drain.judge(known, off, begun, now) {
                Off::Gone => Verdict::Released,
                Off::NotYet(reason, wake) => {
                    Verdict::Waits(told.fault.clone().unwrap_or(reason), wake)
                }
            }
        }
    }
}

/// Whether the Pod would be let go with its traffic, as its employer's drain policy has it.
fn is_given_up(observed: &Observed, member: &MemberView, now: Timestamp) -> bool {
    observed.employer.drain.judge(None, None, member.unready_since, now) == Off::Gone
}

/// Whether the Pod is the employer's, and there to stay: no other is to expect anything of it.
fn is_employed(observed: &Observed, member: &MemberView) -> bool {
    let employs = observed.employer.state == EmployerState::Active;
    employs && member.selected && !member.deleting && !member.terminal
}

/// The Pod's available conditions with the employer's entry, or without; if that changes them. The entry
/// of one that is still held stays: it says by whom.
fn conditions(
    observed: &Observed,
    finalizer: &String,
    member: &MemberView,
    held: bool,
) -> Option<(Option<String>, String)> {
    let expects = is_employed(observed, member);
    let key = observed.employer.key();
    // An annotation that nobody can read says nothing, and keeps the Pod from being available.
    let mut expected = member.expected.clone().ok()?;
    let known = expected.get(&key);
    let goes = !expects && known.is_some() && !member.deleting && !held;
    if expects && known != Some(finalizer) {
        expected.insert(key, finalizer.clone());
    } else if goes {
        expected.remove(&key);
    } else {
        return None;
    }
    let content = AvailableConditions { expected_finalizers: expected };
    let text = serde_json::to_string(&content).ok()?;
    Some((member.conditions.clone(), text))
}

#[cfg(test)]
mod tests;
