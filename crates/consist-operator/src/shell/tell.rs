//! Reports Pods that wait for their traffic, and the reasons, in metrics and events.

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
    plan::{Plan, REPORT_AFTER, WaitingPod},
    render::PODS,
    view::Observed,
};

impl Context {
    /// Updates the metrics of waiting Pods, and publishes events for backend errors and long waits.
    pub(super) async fn report(&self, employer: &SlimEmployer, observed: &Observed, plan: &Plan) {
        let (key, now) = (key(employer), clock::now());
        let is_stuck = |waiting: &&WaitingPod| {
            let since = waiting.since.filter(|_| waiting.draining);
            since.is_some_and(|since| now.duration_since(since) > REPORT_AFTER)
        };
        let count = |of: &dyn Fn(&&WaitingPod) -> bool| {
            i64::try_from(plan.waiting.iter().filter(of).count()).unwrap_or(i64::MAX)
        };
        let counts = Counts {
            on: count(&|waiting| !waiting.draining),
            off: count(&|waiting| waiting.draining),
            stuck: count(&is_stuck),
        };
        let before = self.with_state(&key, |state| std::mem::replace(&mut state.counts, counts));
        self.update_gauges(&key, before, counts);
        if let Some(error) = &observed.observation.error {
            self.warn(employer, "BackendUnavailable", error.clone()).await;
        }
        if let Some(unfulfilled) = &observed.observation.unfulfilled {
            self.warn(employer, "BackendRejected", unfulfilled.clone()).await;
        }
        if let Some(waiting) = plan.waiting.iter().find(is_stuck) {
            let message = format!("Pod {}: {}", waiting.pod, waiting.reason);
            self.warn(employer, "DrainPending", message).await;
        }
    }

    /// Replaces an employer's contribution to the gauges of waiting Pods.
    pub(super) fn update_gauges(&self, key: &Key, before: Counts, now: Counts) {
        let waiting =
            |way: &str| self.metrics.waiting_pods.with_label_values(&[key.0.as_str(), way]);
        waiting("on").add(now.on - before.on);
        waiting("off").add(now.off - before.off);
        self.metrics.stuck_finalizers.with_label_values(&[&key.0]).add(now.stuck - before.stuck);
    }

    /// Records how long a Pod waited until its traffic was observed to start or to end, once the
    /// write that adds or removes its finalizer succeeded.
    pub(super) fn record_duration(&self, observed: &Observed, plan: &Plan, write: &Write) {
        let Target { resource, name, subresource, .. } = write.target();
        let mut pods = plan.pods.iter().filter(|_| *resource == PODS && subresource.is_none());
        let change = pods.find(|change| change.finalizers.is_some() && change.name == *name);
        let Some(change) = change else { return };
        let Some(member) = observed.members.iter().find(|member| member.uid == change.uid) else {
            return;
        };
        let is_drained = observed.observation.off_since.contains_key(&change.uid);
        let (since, histogram) = if change.releases {
            (member.unready_since.filter(|_| is_drained), &self.metrics.drain_duration)
        } else {
            (member.ready_since, &self.metrics.enable_duration)
        };
        if let Some(since) = since {
            histogram.observe(clock::now().duration_since(since).as_secs_f64());
        }
    }

    /// Publishes a warning event on an employer.
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
