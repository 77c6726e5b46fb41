//! Timeline of the operations on a Pod, from the times in its lifecycle labels, operation history,
//! conditions and container states, and its events.
//!
//! Traces of the same Pod at several times can be merged.

mod svg;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use podops_api::{
    ids::LifecycleTime,
    lifecycle::{LabelKind, Labels, PodLifecycle},
    operation_history::OperationHistory,
    well_known,
};
use serde::Serialize;

pub use svg::svg;

/// Subject of an entry, in the order of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Lane {
    /// The Pod is created or deleted.
    Pod,
    /// A stage of an operation.
    Operation,
    /// A condition of the Pod.
    Condition,
    /// A container starts or ends.
    Container,
    /// An event.
    Event,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 5] =
        [Self::Pod, Self::Operation, Self::Condition, Self::Container, Self::Event];

    /// Name for users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Operation => "operation",
            Self::Condition => "condition",
            Self::Container => "container",
            Self::Event => "event",
        }
    }
}

/// Something that happened to the Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Entry {
    /// When, in whole milliseconds; conditions, containers and events have whole seconds.
    pub at: Timestamp,
    /// Lane in which the entry is shown.
    pub lane: Lane,
    /// Position among the entries of one instant: stages follow each other within a millisecond.
    #[serde(skip)]
    pub stage: usize,
    /// Description, for people.
    pub text: String,
}

/// Timeline of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Name of the Pod.
    pub pod: String,
    /// Entries, in order of time.
    pub entries: BTreeSet<Entry>,
}

impl Trace {
    /// Reads the times of a Pod and its events.
    #[must_use]
    pub fn of(pod: &Pod, events: &[Event]) -> Self {
        let mut trace =
            Self { pod: pod.metadata.name.clone().unwrap_or_default(), entries: BTreeSet::new() };
        let metadata = &pod.metadata;
        trace.add(metadata.creation_timestamp.as_ref().map(|time| time.0), Lane::Pod, "created");
        // `deletionTimestamp` is the time at which the Pod is to be deleted at the latest.
        trace.add(
            metadata.deletion_timestamp.as_ref().map(|time| time.0),
            Lane::Pod,
            "deleted at the latest",
        );
        trace.add_operations(&metadata.labels.clone().unwrap_or_default());
        let annotations = metadata.annotations.as_ref();
        if let Some(text) = annotations.and_then(|all| all.get(well_known::OPERATION_HISTORY)) {
            trace.add_history(&OperationHistory::parse(text));
        }
        trace.add_status(pod);
        for event in events {
            trace.add_event(event);
        }
        trace
    }

    /// Adds the entries of another trace of the same Pod.
    pub fn merge(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    fn add(&mut self, at: Option<Timestamp>, lane: Lane, text: impl Into<String>) {
        self.add_stage(at, lane, 0, text);
    }

    fn add_stage(
        &mut self,
        at: Option<Timestamp>,
        lane: Lane,
        stage: usize,
        text: impl Into<String>,
    ) {
        if let Some(at) = at {
            self.entries.insert(Entry { at, lane, stage, text: text.into() });
        }
    }

    fn add_operations(&mut self, labels: &Labels) {
        let available = labels.get(well_known::SERVICE_AVAILABLE);
        let available = available.and_then(|stamp| time(stamp));
        self.add_stage(available, Lane::Operation, STAGES.len() + 1, "in service");
        // Labels that cannot be parsed are explained by `explain`.
        let Ok(lifecycle) = PodLifecycle::parse(labels) else { return };
        for (id, operation) in &lifecycle.operations {
            let name = operation_name(id, operation.any_type());
            self.add_stages(&name, |kind| operation.get(kind).and_then(time));
        }
    }

    /// Adds the times of lifecycle labels that were removed, from the history annotation.
    fn add_history(&mut self, history: &OperationHistory) {
        for record in history.records() {
            let name = operation_name(&record.id, Some(&record.operation_type));
            self.add_stages(&name, |kind| record.time(kind));
            if let Some((result, at)) = record.end() {
                let text = format!("{name}: {}", result.as_str());
                self.add_stage(Some(at), Lane::Operation, STAGES.len(), text);
            }
        }
    }

    fn add_stages(&mut self, name: &str, time: impl Fn(LabelKind) -> Option<Timestamp>) {
        for (position, (kind, stage)) in STAGES.into_iter().enumerate() {
            self.add_stage(time(kind), Lane::Operation, position, format!("{name}: {stage}"));
        }
    }

    fn add_status(&mut self, pod: &Pod) {
        let Some(status) = &pod.status else { return };
        for condition in status.conditions.iter().flatten() {
            let at = condition.last_transition_time.as_ref().map(|time| time.0);
            let name = if condition.type_ == well_known::SERVICE_READY {
                "readiness gate"
            } else {
                &condition.type_
            };
            let message = condition.message.as_deref().filter(|message| !message.is_empty());
            let message = message.map(|message| format!(": {message}")).unwrap_or_default();
            let text = format!("{name} is {}{message}", condition.status);
            self.add(at, Lane::Condition, text);
        }
        let containers = status.container_statuses.iter().flatten();
        let init_containers = status.init_container_statuses.iter().flatten();
        for container in init_containers.chain(containers) {
            self.add_container(container);
        }
    }

    fn add_container(&mut self, container: &ContainerStatus) {
        let name = &container.name;
        for state in [&container.last_state, &container.state].into_iter().flatten() {
            if let Some(running) = &state.running {
                let at = running.started_at.as_ref().map(|time| time.0);
                self.add(at, Lane::Container, format!("{name} starts with {}", container.image));
            }
            let Some(ended) = &state.terminated else { continue };
            let started = ended.started_at.as_ref().map(|time| time.0);
            self.add(started, Lane::Container, format!("{name} starts"));
            let reason = ended.reason.as_deref().unwrap_or("unknown reason");
            let text = format!("{name} ends with exit status {}: {reason}", ended.exit_code);
            self.add(ended.finished_at.as_ref().map(|time| time.0), Lane::Container, text);
        }
    }

    fn add_event(&mut self, event: &Event) {
        let series = event.series.as_ref();
        let last = series.and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
        let last = last.or_else(|| event.last_timestamp.as_ref().map(|time| time.0));
        let first = event.event_time.as_ref().map(|time| time.0);
        let first = first.or_else(|| event.first_timestamp.as_ref().map(|time| time.0)).or(last);
        let count = series.and_then(|series| series.count).or(event.count).unwrap_or(1);
        let reason = event.reason.as_deref().unwrap_or_default();
        let message = event.message.as_deref().unwrap_or_default().trim();
        let repeated = match last.filter(|_| count > 1) {
            Some(last) => format!(" ({count} times until {last:.0})"),
            None => String::new(),
        };
        self.add(first, Lane::Event, format!("{reason}: {message}{repeated}"));
    }
}

/// Labels with the time at which a stage begins.
const STAGES: [(LabelKind, &str); 9] = [
    (LabelKind::Operating, "requested"),
    (LabelKind::PreCheck, "PreCheck, waits for permission"),
    (LabelKind::PreChecked, "permitted"),
    (LabelKind::Preparing, "Preparing, traffic is taken off"),
    (LabelKind::Operate, "Operate, the change may be made"),
    (LabelKind::Operated, "the change is made"),
    (LabelKind::PostCheck, "PostCheck, waits for permission"),
    (LabelKind::PostChecked, "permitted to return to service"),
    (LabelKind::Completing, "Completing, traffic is put on again"),
];

/// Name of an operation for users.
fn operation_name(id: &str, operation_type: Option<&str>) -> String {
    let known = operation_type.filter(|operation_type| !operation_type.is_empty());
    format!("{id} ({})", known.unwrap_or("no type"))
}

/// Time in a label, in whole milliseconds, as in the history.
fn time(stamp: &str) -> Option<Timestamp> {
    Timestamp::from_millisecond(LifecycleTime::parse(stamp)?.0.as_millisecond()).ok()
}

/// The trace as text: time, time since the entry before, lane and text.
#[must_use]
pub fn lines(trace: &Trace) -> Vec<String> {
    let mut lines = vec![format!("{:<24} {:>9}  {:<9}  EVENT", "TIME", "AFTER", "WHAT")];
    let mut before = None;
    for Entry { at, lane, text, .. } in &trace.entries {
        let after = before
            .map(|before: Timestamp| format!("{:.3}s", at.duration_since(before).as_secs_f64()));
        let after = after.unwrap_or_default();
        lines.push(format!("{at:<24.3} {after:>9}  {:<9}  {text}", lane.as_str()));
        before = Some(*at);
    }
    lines
}

#[cfg(test)]
mod tests {
    use podops_api::operation_history::OperationResult;
    use serde_json::{from_value, json};

    use super::*;

    fn pod() -> Pod {
        let label =
            |kind: LabelKind, seconds: i64| (kind.key("collaset"), format!("{seconds}000000001"));
        let labels = [
            label(LabelKind::Operating, 100),
            label(LabelKind::Preparing, 102),
            (LabelKind::OperationType.key("collaset"), "update".to_owned()),
        ];
        from_value(json!({
            "metadata": {
                "name": "web-1", "creationTimestamp": "1970-01-01T00:00:10Z",
                "labels": labels.into_iter().collect::<Labels>(),
            },
            "status": {
                "conditions": [{ "type": well_known::SERVICE_READY, "status": "False",
                    "lastTransitionTime": "1970-01-01T00:01:43Z", "message": "Service web" }],
                "containerStatuses": [{
                    "name": "web", "image": "nginx:1", "imageID": "", "ready": true, "restartCount": 1,
                    "state": { "running": { "startedAt": "1970-01-01T00:00:12Z" } },
                    "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled",
                        "finishedAt": "1970-01-01T00:00:11Z" } },
                }],
            },
        }))
        .unwrap()
    }

    fn event() -> Event {
        from_value(json!({
            "metadata": {}, "involvedObject": {}, "reason": "WaitingForRule", "message": "most",
            "count": 3, "firstTimestamp": "1970-01-01T00:01:41Z", "lastTimestamp": "1970-01-01T00:02:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn entries_are_in_the_order_of_time() {
        let lines = lines(&Trace::of(&pod(), &[event()]));
        let expected = [
            "1970-01-01T00:00:10.000Z            Pod        created",
            "1970-01-01T00:00:11.000Z    1.000s  container  web ends with exit status 137: OOMKilled",
            "1970-01-01T00:00:12.000Z    1.000s  container  web starts with nginx:1",
            "1970-01-01T00:01:40.000Z   88.000s  operation  collaset (update): requested",
            "1970-01-01T00:01:41.000Z    1.000s  event      WaitingForRule: most (3 times until \
             1970-01-01T00:02:00Z)",
            "1970-01-01T00:01:42.000Z    1.000s  operation  collaset (update): Preparing, traffic is \
             taken off",
            "1970-01-01T00:01:43.000Z    1.000s  condition  readiness gate is False: Service web",
        ];
        assert_eq!(lines[1..], expected);
    }

    #[test]
    fn a_later_trace_adds_what_it_knows() {
        let mut trace = Trace::of(&pod(), &[]);
        let count = trace.entries.len();
        let mut later = pod();
        let labels = later.metadata.labels.get_or_insert_default();
        labels.remove(&LabelKind::Preparing.key("collaset"));
        labels.insert(LabelKind::Operate.key("collaset"), "104000000000".to_owned());
        trace.merge(Trace::of(&later, &[]));
        assert_eq!(trace.entries.len(), count + 1);
    }

    #[test]
    fn operations_that_have_ended_are_known_from_the_history() {
        let mut pod = pod();
        let id = "collaset".into();
        let labels = pod.metadata.labels.take().unwrap();
        let mut history = OperationHistory::default();
        history.observe(&id, &PodLifecycle::parse(&labels).unwrap().operations[&id]);
        history.end(&id, OperationResult::Completed, Timestamp::from_second(109).unwrap());
        let text = serde_json::to_string(&history).unwrap();
        pod.metadata.annotations = Some([(well_known::OPERATION_HISTORY.to_owned(), text)].into());
        let trace = Trace::of(&pod, &[]);
        let lines = lines(&trace).join("\n");
        for stage in ["requested", "Preparing", "completed"] {
            assert!(lines.contains(&format!("collaset (update): {stage}")), "{lines}");
        }
        // The times of labels, before they were removed, are the same.
        pod.metadata.labels = Some(labels);
        assert_eq!(Trace::of(&pod, &[]), trace);
    }

    #[test]
    fn the_drawing_has_every_entry_and_escapes_text() {
        let mut trace = Trace::of(&pod(), &[event()]);
        trace.add(Some(Timestamp::from_second(200).unwrap()), Lane::Event, "<b> & \"c\"");
        let drawing = svg(&trace);
        assert_eq!(drawing.matches("<circle").count(), trace.entries.len());
        assert!(drawing.contains("&lt;b&gt; &amp; &quot;c&quot;"), "{drawing}");
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"), "{drawing}");
    }
}
