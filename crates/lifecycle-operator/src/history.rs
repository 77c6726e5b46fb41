//! History of the operations on a Pod: its annotation after a write. Pure.

use jiff::Timestamp;
use podops_api::{
    lifecycle::PodLifecycle,
    operation_history::{OperationHistory, OperationResult},
    well_known,
};
use podops_traces::AnnotationChanges;

use crate::{
    measurements::{End, Measurements},
    observe::SlimPod,
    plan::is_requested_again,
};

/// Operations of a Pod before and after a write.
#[derive(Clone, Copy, Debug)]
pub struct Operations<'a> {
    /// As observed.
    pub before: &'a PodLifecycle,
    /// With the changes of the write.
    pub after: &'a PodLifecycle,
    /// Operations that end with the write.
    pub measured: &'a Measurements,
}

/// Returns the change of the annotation with the history. It belongs to a write that is needed for
/// another reason; there is none if the other annotations of the Pod leave no room for it, because
/// the API server would reject the write.
#[must_use]
pub fn changes(pod: &SlimPod, operations: Operations<'_>, now: Timestamp) -> AnnotationChanges {
    let Operations { before, after, measured } = operations;
    let text = pod.annotations().get(well_known::OPERATION_HISTORY);
    let known = text.map(|text| OperationHistory::parse(text)).unwrap_or_default();
    let mut history = known.clone();
    for (id, operation) in &before.operations {
        // Its labels are those of two operations.
        if !is_requested_again(operation) {
            history.observe(id, operation);
        }
    }
    for ended in &measured.ended {
        let result = match ended.end {
            End::Completed => OperationResult::Completed,
            End::Cancelled => OperationResult::Cancelled,
            End::PodDeleted => continue,
        };
        history.end(&ended.id, result, now);
    }
    for (id, operation) in &after.operations {
        history.observe(id, operation);
    }
    if history == known || !pod.has_room_for_history() {
        return AnnotationChanges::new();
    }
    let text = serde_json::to_string(&history);
    text.map(|text| (well_known::OPERATION_HISTORY.to_owned(), Some(text))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use podops_api::{
        ids::OperationId,
        lifecycle::{self, LabelKind, Labels, UPDATE, begin, finish, undo},
    };
    use serde_json::json;

    use super::*;
    use crate::{measurements::measure, observe::trim, plan};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn id() -> OperationId {
        "collaset".into()
    }

    /// A Pod in service, without a rule.
    struct Pod {
        labels: Labels,
        annotations: Labels,
        protected: bool,
    }

    impl Pod {
        fn new() -> Self {
            Self { labels: Labels::new(), annotations: Labels::new(), protected: false }
        }

        fn slim(&self) -> SlimPod {
            let gate = json!({ "type": well_known::SERVICE_READY, "status": "True" });
            let ready = json!({ "type": "ContainersReady", "status": "True" });
            let finalizers = if self.protected {
                json!([format!("{}/a", well_known::PROTECTION_FINALIZER)])
            } else {
                json!([])
            };
            let mut pod = serde_json::from_value(json!({
                "metadata": {
                    "name": "web-1", "namespace": "ns", "uid": "1", "labels": self.labels,
                    "annotations": self.annotations, "finalizers": finalizers,
                },
                "spec": { "readinessGates": [{ "conditionType": well_known::SERVICE_READY }] },
                "status": { "conditions": [gate, ready] },
            }))
            .unwrap();
            trim(&mut pod);
            pod
        }

        fn change(&mut self, changes: lifecycle::LabelChanges) {
            lifecycle::apply(&mut self.labels, changes);
        }

        /// Applies the operator's plan, as its shell does.
        fn reconcile(&mut self, now: Timestamp) {
            let pod = self.slim();
            let plan = plan::plan(&pod.view(|_| None, &[]), now).unwrap();
            let before = PodLifecycle::parse(&self.labels).unwrap();
            self.change(plan.labels);
            let after = PodLifecycle::parse(&self.labels).unwrap();
            let measured = measure(&before, &after, now);
            let operations = Operations { before: &before, after: &after, measured: &measured };
            lifecycle::apply(&mut self.annotations, changes(&pod, operations, now));
        }

        fn history(&self) -> OperationHistory {
            let text = self.annotations.get(well_known::OPERATION_HISTORY);
            OperationHistory::parse(text.map(String::as_str).unwrap_or_default())
        }
    }

    #[test]
    fn every_stage_of_an_operation_that_has_ended_is_known() {
        let mut pod = Pod::new();
        pod.protected = true;
        pod.change(begin(&pod.labels, &id(), UPDATE, at(1)));
        pod.reconcile(at(2));
        pod.protected = false;
        pod.reconcile(at(4));
        pod.change(finish(&id()));
        pod.reconcile(at(8));
        let history = pod.history();
        let [record] = history.records() else { panic!("{history:?}") };
        let times = [
            (LabelKind::Operating, 1),
            (LabelKind::PreChecked, 2),
            (LabelKind::Preparing, 2),
            (LabelKind::Operate, 4),
        ];
        for (kind, second) in times {
            assert_eq!(record.time(kind), Some(at(second)), "{kind:?}");
        }
        assert_eq!(&*record.operation_type, UPDATE);
        assert_eq!(record.end(), Some((OperationResult::Completed, at(8))));
    }

    #[test]
    fn an_operation_that_is_cancelled_ends() {
        let mut pod = Pod::new();
        pod.protected = true;
        pod.change(begin(&pod.labels, &id(), UPDATE, at(1)));
        pod.reconcile(at(2));
        pod.change(undo(&id(), UPDATE));
        pod.reconcile(at(3));
        let history = pod.history();
        assert_eq!(history.records()[0].end(), Some((OperationResult::Cancelled, at(3))));
    }

    #[test]
    fn an_operation_requested_again_has_two_records() {
        let mut pod = Pod::new();
        pod.change(begin(&pod.labels, &id(), UPDATE, at(1)));
        pod.reconcile(at(2));
        pod.change(finish(&id()));
        pod.labels.insert(well_known::POST_CHECK_GATE.to_owned() + "/rule", String::new());
        pod.reconcile(at(3));
        assert!(pod.labels.contains_key(&LabelKind::PostCheck.key(&id())));
        pod.labels.insert(LabelKind::Operating.key(&id()), "4000000000".to_owned());
        pod.reconcile(at(5));
        let history = pod.history();
        let [first, second] = history.records() else { panic!("{history:?}") };
        assert_eq!(first.end(), Some((OperationResult::Completed, at(4))));
        assert_eq!((second.time(LabelKind::Operating), second.end()), (Some(at(4)), None));
        assert_eq!(second.time(LabelKind::PostCheck), None);
    }

    #[test]
    fn a_pod_whose_annotations_leave_no_room_has_no_history() {
        let mut pod = Pod::new();
        pod.annotations.insert("large".to_owned(), "a".repeat(255 << 10));
        pod.change(begin(&pod.labels, &id(), UPDATE, at(1)));
        pod.reconcile(at(2));
        assert_eq!(pod.history(), OperationHistory::default());
        pod.annotations.insert("large".to_owned(), "a".repeat(200 << 10));
        pod.change(undo(&id(), UPDATE));
        pod.reconcile(at(3));
        assert_eq!(pod.history().records().len(), 1);
    }

    #[test]
    fn a_long_text_of_others_is_replaced() {
        let mut pod = Pod::new();
        let records = json!([{
            "id": "a".repeat(5 << 10), "type": "", "start": "2026-01-01T00:00:00.000000Z", "milliseconds": {},
        }]);
        pod.annotations.insert(well_known::OPERATION_HISTORY.to_owned(), records.to_string());
        assert_eq!(pod.history().records().len(), 1);
        pod.change(begin(&pod.labels, &id(), UPDATE, at(1)));
        pod.reconcile(at(2));
        let history = pod.history();
        assert_eq!(history.records().iter().map(|record| &record.id).collect::<Vec<_>>(), [&id()]);
    }
}
