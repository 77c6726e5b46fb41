//! Situations, and how they are explained.

use std::sync::Arc;

use podops_api::{lifecycle::LabelKind, well_known};
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_000;

fn stamp(seconds: i64) -> String {
    format!("{seconds}000000000")
}

/// Pod `web-1` of the CollaSet `web`, in service at the updated revision, after an edit.
fn pod(edit: impl FnOnce(&mut Value)) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {
            "name": "web-1", "namespace": "ns",
            "labels": {
                well_known::CONTROL: "true", well_known::INSTANCE_ID: "1",
                well_known::SERVICE_AVAILABLE: "1", well_known::REVISION: "web-b",
            },
            "annotations": {},
            "ownerReferences": [{ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
                "name": "web", "uid": "set", "controller": true }],
        },
        "spec": { "containers": [], "readinessGates": [{ "conditionType": well_known::SERVICE_READY }] },
        "status": { "conditions": [
            { "type": "Ready", "status": "True" }, { "type": "ContainersReady", "status": "True" },
            { "type": well_known::SERVICE_READY, "status": "True" },
        ] },
    });
    edit(&mut pod);
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// Adds labels of an operation of the CollaSet, and takes the Pod out of service.
fn operate(pod: &mut Value, kinds: &[LabelKind]) {
    let labels = &mut pod["metadata"]["labels"];
    for kind in kinds {
        labels[kind.key("collaset")] = json!(stamp(NOW - 252));
    }
    labels[LabelKind::OperationType.key("collaset")] = json!("update");
    labels[well_known::SERVICE_AVAILABLE].take();
    labels.as_object_mut().unwrap().remove(well_known::SERVICE_AVAILABLE);
    pod["status"]["conditions"][0]["status"] = json!("False");
}

fn set(spec: Value, status: Value) -> CollaSet {
    let template =
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } });
    let mut set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web", "namespace": "ns", "uid": "set" },
        "spec": { "replicas": 3, "selector": {}, "template": template },
        "status": { "updatedRevision": "web-b" },
    });
    for (part, fields) in [("spec", spec), ("status", status)] {
        for (field, value) in fields.as_object().unwrap() {
            set[part][field] = value.clone();
        }
    }
    serde_json::from_value(set).unwrap()
}

fn facts(pod: Arc<Pod>) -> Facts {
    Facts {
        sets: vec![set(json!({}), json!({}))],
        pods: vec![pod],
        now: Timestamp::from_second(NOW).unwrap(),
        ..Facts::default()
    }
}

/// Asserts that the explanation of Pod `web-1` contains this text.
#[track_caller]
fn assert_explained(facts: &Facts, text: &str) {
    let explanation = explain_pod(facts, "web-1").unwrap().to_string();
    assert!(explanation.contains(text), "{explanation}");
}

#[test]
fn a_pod_in_service_waits_for_nothing() {
    let explanation = explain_pod(&facts(pod(|_| ())), "web-1").unwrap();
    assert_eq!(explanation.to_string(), "pod/web-1 is in service and waits for nothing\n");
    assert_eq!(explain_pod(&Facts::default(), "web-1"), None);
}

#[test]
fn a_rule_is_named_with_the_pods_that_use_its_budget() {
    let waiting = pod(|pod| {
        operate(pod, &[LabelKind::Operating, LabelKind::PreCheck]);
        let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
        pod["metadata"]["labels"][gate] = json!("1");
    });
    let failing = pod(|pod| {
        pod["metadata"]["name"] = json!("web-7");
        pod["metadata"]["labels"].as_object_mut().unwrap().remove(well_known::SERVICE_AVAILABLE);
        let state = json!({ "waiting": { "reason": "ImagePullBackOff" } });
        pod["status"]["containerStatuses"] = json!([{ "name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": state }]);
    });
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "web", "namespace": "ns" }, "spec": { "selector": {}, "rules": [
            { "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "approval", "stage": "PostCheck",
                "labelCheck": { "requires": { "matchLabels": { "approved": "yes" } } } },
        ] },
        "status": { "targets": ["web-1", "web-7"], "details": [{ "name": "web-1", "stage": "PreCheck",
            "rejectInfo": [{ "ruleName": "budget", "reason": "1 of 3 Pods unavailable, maxUnavailable=1" }] }] },
    });
    let mut facts = facts(waiting);
    facts.pods.push(failing);
    facts.rules = vec![serde_json::from_value(rule).unwrap()];
    let explanation = explain_pod(&facts, "web-1").unwrap().to_string();
    let expected = "\
pod/web-1 is out of service
  operation collaset (update) is in phase PreCheck (for 4m12s)
    rule budget of PodTransitionRule web rejects it: 1 of 3 Pods unavailable, maxUnavailable=1
      Pod web-7 is out of service
        container c does not run: ImagePullBackOff
          To continue: fix the image in the template
      To continue: bring the unavailable Pods back into service; as a last resort, change the rule: kubectl edit ptr web
";
    assert_eq!(explanation, expected);
    let status = facts.rules[0].status.as_mut().unwrap();
    status.details[0].reject_info[0].rule_name = "approval".to_owned();
    assert_explained(&facts, "To continue: kubectl label pod web-1 approved=yes --overwrite; as");
    facts.rules.clear();
    facts.absent_operators = vec!["transition-rule-operator".to_owned()];
    assert_explained(&facts, "transition-rule-operator is not running");
}

#[test]
fn a_resize_is_explained_by_what_the_kubelet_reports() {
    let resized = |type_: &str, reason: Option<&str>| {
        pod(|pod| {
            operate(pod, &[LabelKind::Operating, LabelKind::PreChecked, LabelKind::Operate]);
            pod["metadata"]["annotations"][well_known::LAST_POD_STATUS] = json!("{}");
            let condition =
                json!({ "type": type_, "status": "True", "reason": reason, "message": "cpu" });
            pod["status"]["conditions"].as_array_mut().unwrap().push(condition);
        })
    };
    for (type_, reason, text) in [
        ("PodResizePending", Some("Infeasible"), "the node can never provide the resources: cpu"),
        ("PodResizePending", Some("Deferred"), "the node lacks free resources: cpu"),
        ("PodResizeInProgress", Some("Error"), "the kubelet failed to apply the resources"),
        ("PodResizeInProgress", None, "the kubelet is applying the resources"),
        ("Other", None, "the kubelet has not applied the new images or resources yet"),
    ] {
        assert_explained(&facts(resized(type_, reason)), text);
    }
}

#[test]
fn protection_is_explained_by_its_employer_and_its_report() {
    let finalizer = "prot.podopslifecycle.kusionstack.io/1";
    let draining = |is_reported: bool| {
        pod(|pod| {
            operate(pod, &[LabelKind::Operating, LabelKind::PreChecked, LabelKind::Preparing]);
            pod["metadata"]["finalizers"] = json!([finalizer]);
            let expected = json!({ "expectedFinalizers": { "Service/ns/web": finalizer } });
            pod["metadata"]["annotations"][well_known::AVAILABLE_CONDITIONS] =
                json!(expected.to_string());
            if is_reported {
                let report = json!({ "type": finalizer, "status": "False", "reason": "DrainPending",
                    "message": "3 requests in flight" });
                pod["status"]["conditions"].as_array_mut().unwrap().push(report);
            }
        })
    };
    assert_explained(
        &facts(draining(true)),
        "traffic has not ended: the Pod is protected by Service/ns/web\n      DrainPending: 3 requests in flight",
    );
    let mut facts = facts(draining(false));
    facts.absent_operators = vec!["consist-operator".to_owned()];
    assert_explained(&facts, "consist-operator is not running: its Lease is not renewed");
}

#[test]
fn an_operation_without_type_names_its_requester() {
    let incomplete = pod(|pod| {
        pod["metadata"]["labels"][LabelKind::Operating.key("mytool")] = json!("yes");
    });
    assert_explained(&facts(incomplete), "fix the program that uses the operation ID mytool");
}

#[test]
fn labels_that_keep_a_pod_from_the_lifecycle_are_named() {
    let invalid = pod(|pod| {
        pod["metadata"]["labels"]["operating.podopslifecycle.kusionstack.io"] = json!("1");
    });
    assert_explained(&facts(invalid), "lifecycle-operator does not reconcile the Pod");
    let uncontrolled = pod(|pod| {
        pod["metadata"]["labels"].as_object_mut().unwrap().remove(well_known::CONTROL);
    });
    assert_explained(&facts(uncontrolled), "it has lost the label kusionstack.io/control=true");
    let offline = pod(|pod| {
        let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove(well_known::SERVICE_AVAILABLE);
        labels.insert(well_known::STAY_OFFLINE.to_owned(), json!("1"));
    });
    assert_explained(&facts(offline), "keeps it out of service");
    let ungated = pod(|pod| pod["spec"]["readinessGates"] = json!([]));
    assert_explained(&facts(ungated), "it has no readiness gate pod.kusionstack.io/service-ready");
}

#[test]
fn a_pod_that_is_not_updated_names_what_keeps_its_revision() {
    let outdated = || pod(|pod| pod["metadata"]["labels"][well_known::REVISION] = json!("web-a"));
    let with = |spec: Value, status: Value| {
        let mut facts = facts(outdated());
        facts.sets = vec![set(spec, status)];
        facts
    };
    let rolling = |rolling: Value| json!({ "updateStrategy": { "rollingUpdate": rolling } });
    assert_explained(
        &with(rolling(json!({ "byPartition": { "partition": 2 } })), json!({})),
        "rollingUpdate.byPartition.partition keeps 2 Pods at their revision",
    );
    assert_explained(
        &with(rolling(json!({ "byLabel": {} })), json!({})),
        "kubectl label pod web-1 collaset.kusionstack.io/update-included=true",
    );
    let halted = json!([{ "type": "Progressing", "status": "False", "reason": "RolloutHalted",
        "message": "5 Pods of revision web-b have failed" }]);
    assert_explained(
        &with(json!({}), json!({ "conditions": halted })),
        "RolloutHalted: 5 Pods of revision web-b have failed",
    );
    let queued = json!([
        { "phase": "Queued", "reason": "maxUnavailable", "count": 1, "pods": ["web-1"] },
        { "phase": "Starting", "reason": "ImagePullBackOff", "count": 1, "pods": ["web-1"] },
    ]);
    assert_explained(
        &with(json!({}), json!({ "waiting": queued })),
        "as many Pods are updated as maxUnavailable allows",
    );
}

#[test]
fn a_decoration_names_what_keeps_its_revision() {
    let decorated = |revision: Option<&str>| {
        let key = format!("{}log", well_known::DECORATION_LABEL_PREFIX);
        pod(|pod| pod["metadata"]["labels"][key] = json!(revision.unwrap_or("log-b")))
    };
    let with = |revision: Option<&str>, strategy: Value, condition: &str| {
        let conditions = json!([{ "type": condition, "status": "True", "reason": "DecorationConflict",
            "message": "CollaSet web: two containers log" }]);
        let decoration = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
            "metadata": { "name": "log", "namespace": "ns" },
            "spec": { "selector": {}, "updateStrategy": { "rollingUpdate": strategy } },
            "status": { "updatedRevision": "log-b", "conditions": conditions },
        });
        let decorations = vec![serde_json::from_value(decoration).unwrap()];
        Facts { decorations, ..facts(decorated(revision)) }
    };
    let old = Some("log-a");
    let none = json!({ "partition": 0 });
    let partition = json!({ "partition": 2 });
    assert_explained(
        &with(old, partition.clone(), "Ready"),
        "it has revision log-a of PodDecoration log, not log-b\n    rollingUpdate.partition keeps 2 Pods",
    );
    let selector = json!({ "selector": { "matchLabels": { "canary": "yes" } } });
    assert_explained(&with(old, selector, "Ready"), "rollingUpdate.selector does not select it");
    assert_explained(&with(old, partition.clone(), "Degraded"), "CollaSet web: two containers log");
    let mut paused = with(old, none, "Ready");
    let conditions =
        json!([{ "type": "Paused", "status": "True", "message": "spec.paused is true" }]);
    paused.sets = vec![set(json!({ "paused": true }), json!({ "conditions": conditions }))];
    assert_explained(&paused, "spec.paused is true");
    assert_explained(&with(None, partition, "Ready"), "is in service and waits for nothing");
}

#[test]
fn a_job_that_has_not_begun_is_named() {
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "name": "restart", "namespace": "ns" },
        "spec": { "action": "Restart", "targets": [{ "name": "web-1" }] },
    });
    let mut facts = facts(pod(|_| ()));
    facts.jobs = vec![serde_json::from_value(job).unwrap()];
    facts.absent_operators = vec!["operationjob-operator".to_owned()];
    assert_explained(
        &facts,
        "Restart of OperationJob restart has not begun\n    operationjob-operator is not running",
    );
    facts.jobs[0].status =
        Some(serde_json::from_value(json!({ "progress": "Succeeded" })).unwrap());
    assert_explained(&facts, "waits for nothing");
}

#[test]
fn a_set_is_explained_by_its_conditions_and_waiting_pods() {
    let conditions = json!([
        { "type": "Update", "status": "False", "reason": "TemplateRejected", "message": "no memory" },
        { "type": "Degraded", "status": "True", "reason": "TemplateRejected", "message": "no memory" },
        { "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable" },
    ]);
    let waiting =
        json!([{ "phase": "Starting", "reason": "Unschedulable", "count": 2, "pods": ["a", "b"] }]);
    let mut facts = facts(pod(|_| ()));
    facts.sets = vec![set(json!({}), json!({ "conditions": conditions, "waiting": waiting }))];
    let explanation = explain_set(&facts, "web").unwrap().to_string();
    let expected = "\
collaset/web has 0 of 3 Pods available, 0 of them at the updated revision
  Update=False TemplateRejected: no memory
  2 Pods in Starting: Unschedulable (a, b)
";
    assert_eq!(explanation, expected);
}

/// The status of a CollaSet is up to some seconds older than its Pods.
#[test]
fn a_wait_is_explained_before_the_status_names_it() {
    let waiting = pod(|pod| operate(pod, &[LabelKind::Operating, LabelKind::PreCheck]));
    let mut facts = facts(waiting);
    let explanation = explain_set(&facts, "web").unwrap();
    assert_eq!(explanation.causes[0].message, "1 Pod waiting (web-1)");
    let of_pod = explain_pod(&facts, "web-1").unwrap().causes.remove(0);
    let reason = of_pod.because.first().unwrap_or(&of_pod);
    assert_eq!(explanation.causes[0].because.first(), Some(reason));
    facts.pods = vec![pod(|_| ())];
    assert_eq!(explain_set(&facts, "web").unwrap().causes, []);
}

#[test]
fn ages_have_two_units() {
    let age = |seconds: i64| {
        let second = |seconds| Timestamp::from_second(seconds).unwrap();
        super::age(second(0), second(seconds))
    };
    assert_eq!([0, 59, 252, 3_600, 90_061].map(age), ["0s", "59s", "4m12s", "1h", "1d1h"]);
}
