//! Sends the metrics and events of Pods that wait for their traffic.

use podops_client::{event::ObjectEvent, object_key::ObjectKey, shell::clock, write::Write};

use super::reconcile::EmployerController;
use crate::{
    employer::SlimEmployer,
    local_state::LocalState,
    plan::Plan,
    report::{TrafficChange, WaitingCounts, warnings},
    view::Observed,
};

impl EmployerController {
    /// Updates the metrics of waiting Pods, and publishes events for backend errors and long waits.
    pub(super) async fn report(
        &self,
        employer: &SlimEmployer,
        observed: &Observed,
        plan: &Plan,
        state: &mut LocalState,
    ) {
        let namespace = &observed.employer.namespace;
        let now = clock::now();
        let counts = WaitingCounts::new(plan, now);
        let before = std::mem::replace(&mut state.counts, counts);
        self.metrics.change_waiting(namespace, before, counts);
        for warning in warnings(observed, plan, now) {
            self.publish(employer, &warning).await;
        }
    }

    /// Records how long a Pod waited until its traffic was observed to start or to end, once the
    /// write that adds or removes its finalizer succeeded.
    pub(super) fn record_change(&self, observed: &Observed, plan: &Plan, write: &Write) {
        let now = clock::now();
        let metrics = &self.metrics;
        let (histogram, duration, span) = match TrafficChange::of_write(write, observed, plan, now)
        {
            Some(TrafficChange::Drained(duration)) => (&metrics.drain_duration, duration, "drain"),
            Some(TrafficChange::Enabled(duration)) => {
                (&metrics.enable_duration, duration, "enable")
            }
            None => return,
        };
        histogram.observe(duration.as_secs_f64());
        if self.traces.are_recorded() {
            let target = write.target();
            let pod = self.pods.get(&ObjectKey::new(&target.namespace, &target.name));
            let employer = observed.employer.key();
            let spans = pod.iter().flat_map(|pod| pod.spans(span, &employer, now - duration, now));
            self.traces.record(spans);
        }
    }

    /// Publishes an event on an employer.
    pub(super) async fn publish(&self, employer: &SlimEmployer, event: &ObjectEvent) {
        self.events.publish(&employer.reference(&self.kind), event).await;
    }
}
