//! Tells people who waits for traffic, and why: metrics and events.

use podops_runtime::{
    shell::{
        clock,
        events::Note,
        store::{Key, key},
    },
    write::{Target, Write},
};

use super::{controller::Context, employer::SlimEmployer, memory::Counts};
use crate::{
    plan::{PATIENCE, Plan, Wait},
    render::PODS,
    view::Observed,
};

impl Context {
    /// Counts who waits, and tells of those that wait for long.
    pub(super) async fn tell(&self, employer: &SlimEmployer, observed: &Observed, plan: &Plan) {
        let (key, now) = (key(employer), clock::now());
        let is_stuck = |wait: &&Wait| {
            wait.leaves && wait.since.is_some_and(|since| now.duration_since(since) > PATIENCE)
        };
        let count = |of: &dyn Fn(&&Wait) -> bool| {
            i64::try_from(plan.waits.iter().filter(of).count()).unwrap_or(i64::MAX)
        };
        let counts = Counts {
            on: count(&|wait| !wait.leaves),
            off: count(&|wait| wait.leaves),
            stuck: count(&is_stuck),
        };
        let before = self.remember(&key, |m| std::mem::replace(&mut m.counted, counts));
        self.count(&key, before, counts);
        if let Some(fault) = &observed.observation.fault {
            self.warn(employer, "BackendUnavailable", fault.clone()).await;
        }
        if let Some(unfulfilled) = &observed.observation.unfulfilled {
            self.warn(employer, "BackendRejected", unfulfilled.clone()).await;
        }
        if let Some(wait) = plan.waits.iter().find(is_stuck) {
            let message = format!("Pod {} waits for {}", wait.pod, wait.reason);
            self.warn(employer, "DrainPending", message).await;
        }
    }

    /// Counts Pods that wait, after so many were counted.
    pub(super) fn count(&self, key: &Key, before: Counts, now: Counts) {
        let waiting = |way: &str| self.metrics.waiting.with_label_values(&[key.0.as_str(), way]);
        waiting("on").add(now.on - before.on);
        waiting("off").add(now.off - before.off);
        self.metrics.stuck.with_label_values(&[&key.0]).add(now.stuck - before.stuck);
    }

    /// Notes how long a Pod waited until its traffic was seen to come, or to go.
    pub(super) fn note_moved(&self, observed: &Observed, plan: &Plan, write: &Write) {
        let Target { resource, name, subresource, .. } = write.target();
        let mut pods = plan.pods.iter().filter(|_| *resource == PODS && subresource.is_none());
        let moved = pods.find(|change| change.finalizers.is_some() && change.name == *name);
        let Some(change) = moved else { return };
        let Some(member) = observed.members.iter().find(|member| member.uid == change.uid) else {
            return;
        };
        let was_seen_off = observed.observation.off_since.contains_key(&change.uid);
        let (began, histogram) = if change.releases {
            (member.unready_since.filter(|_| was_seen_off), &self.metrics.off_seconds)
        } else {
            (member.ready_since, &self.metrics.on_seconds)
        };
        if let Some(began) = began {
            histogram.observe(clock::now().duration_since(began).as_secs_f64());
        }
    }

    /// Publishes a warning on an employer.
    pub(super) async fn warn(
        &self,
        employer: &SlimEmployer,
        reason: &'static str,
        message: String,
    ) {
        let note = Note { warning: true, reason, message };
        self.events.publish(&employer.reference(&self.kind), &note).await;
    }
}
