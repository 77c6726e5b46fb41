//! Sends what is reported about Pods that wait for their traffic: metrics and events.

use podops_client::{event::ObjectEvent, object_key::ObjectKey, shell::clock, write::Write};

use super::controller::Context;
use crate::{
    employer::SlimEmployer,
    plan::Plan,
    report::{TrafficChange, WaitingCounts, warnings},
    view::Observed,
};

impl Context {
    /// Updates the metrics of waiting Pods, and publishes events for backend errors and long waits.
    pub(super) async fn report(&self, employer: &SlimEmployer, observed: &Observed, plan: &Plan) {
        let (key, now) = (ObjectKey::of(employer), clock::now());
        let counts = WaitingCounts::new(plan, now);
        let before = self.with_state(&key, |state| std::mem::replace(&mut state.counts, counts));
        self.metrics.change_waiting(&key.namespace, before, counts);
        for warning in warnings(observed, plan, now) {
            self.publish(employer, &warning).await;
        }
    }

    /// Records how long a Pod waited until its traffic was observed to start or to end, once the
    /// write that adds or removes its finalizer succeeded.
    pub(super) fn record_duration(&self, observed: &Observed, plan: &Plan, write: &Write) {
        let (histogram, duration) =
            match TrafficChange::of_write(write, observed, plan, clock::now()) {
                Some(TrafficChange::Drained(duration)) => (&self.metrics.drain_duration, duration),
                Some(TrafficChange::Enabled(duration)) => (&self.metrics.enable_duration, duration),
                None => return,
            };
        histogram.observe(duration.as_secs_f64());
    }

    /// Publishes an event on an employer.
    pub(super) async fn publish(&self, employer: &SlimEmployer, event: &ObjectEvent) {
        self.events.publish(&employer.reference(&self.kind), event).await;
    }
}
