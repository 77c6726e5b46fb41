use podops_api::{consist, well_known};
use serde_json::{Value, json};

use super::*;

fn object(kind: &str, metadata: &Value) -> Object {
    let found = kinds().find(|known| known.name == kind);
    let kind = found.unwrap_or_else(|| panic!("{kind} is not read"));
    Object::new(kind, json!({ "metadata": metadata }))
}

fn installed(kind: &str, name: &str) -> Object {
    object(kind, &json!({ "name": name, "labels": { PART_OF: PODOPS } }))
}

fn set() -> Object {
    let finalizers = json!([well_known::PRE_RECLAIM, "example.com/audit"]);
    object("CollaSet", &json!({ "namespace": "shop", "name": "web", "finalizers": finalizers }))
}

fn pod() -> Object {
    let owner = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet" });
    let mut pod = object(
        "Pod",
        &json!({
            "namespace": "shop", "name": "web-1", "resourceVersion": "7",
            "labels": { "app": "web", well_known::CONTROL: "true" },
            "finalizers": ["prot.podopslifecycle.kusionstack.io/1", "example.com/audit"],
            "ownerReferences": [owner],
        }),
    );
    pod.value["spec"] =
        json!({ "readinessGates": [{ "conditionType": well_known::SERVICE_READY }] });
    pod
}

fn remains(objects: Vec<Object>) -> Remains {
    Remains { objects, operator_namespace: "podops-system".to_owned(), ..Remains::default() }
}

/// Applies the steps until nothing is left; returns the changed and deleted objects in their order.
fn uninstall(mut remains: Remains, workloads: Workloads) -> Vec<String> {
    let mut log = Vec::new();
    for _ in 0..20 {
        let steps = match next(&remains, workloads) {
            Ok(Next::Steps(steps)) => steps,
            Ok(Next::Wait(message)) => {
                log.push(message);
                remains.running_operators = 0;
                continue;
            }
            Ok(Next::Done) => return log,
            Err(refusal) => return vec![refusal.to_string()],
        };
        for Step { object, change } in steps {
            let known = remains.objects.iter_mut().find(|known| {
                (known.kind, &known.namespace, &known.name)
                    == (object.kind, &object.namespace, &object.name)
            });
            let Some(known) = known else { continue };
            match change {
                Change::Delete => {
                    log.push(format!("delete {object}"));
                    known.value["metadata"]["deletionTimestamp"] = json!("now");
                }
                Change::Patch(patch) => {
                    log.push(format!("change {object}"));
                    json_patch::merge(&mut known.value, &patch);
                }
                Change::PatchStatus(patch) => {
                    log.push(format!("open {object}"));
                    json_patch::merge(&mut known.value, &patch);
                }
            }
        }
        remains.objects.retain(|object| {
            let finalizers = &object.value["metadata"]["finalizers"];
            let is_blocked = finalizers.to_string().contains(well_known::PRE_RECLAIM);
            !object.is_deleting() || is_blocked
        });
    }
    panic!("not finished: {log:#?}");
}

#[test]
fn pods_are_released_before_their_sets_are_deleted() {
    let mut objects = vec![installed("Namespace", "podops-system"), set(), pod()];
    objects.push(installed("ValidatingWebhookConfiguration", "podops-lifecycle-operator"));
    objects.push(installed("Deployment", "collaset-operator"));
    objects.push(object(
        "CustomResourceDefinition",
        &json!({ "name": "collasets.apps.kusionstack.io" }),
    ));
    objects.push(object("CustomResourceDefinition", &json!({ "name": "others.example.com" })));
    let log = uninstall(Remains { running_operators: 1, ..remains(objects) }, Workloads::Keep);
    let expected = [
        "delete validatingwebhookconfiguration/podops-lifecycle-operator",
        "delete deployment/collaset-operator",
        "waiting for the Leases of 1 operators to expire",
        "change pod/web-1 in namespace shop",
        "open pod/web-1 in namespace shop",
        "change collaset/web in namespace shop",
        "delete collaset/web in namespace shop",
        "delete namespace/podops-system",
        "delete customresourcedefinition/collasets.apps.kusionstack.io",
    ];
    assert_eq!(log, expected);
}

#[test]
fn only_what_podops_has_written_is_removed() {
    let released = next(&remains(vec![pod()]), Workloads::Keep);
    let Ok(Next::Steps(steps)) = released else { panic!("{released:?}") };
    let Change::Patch(patch) = &steps[0].change else { panic!("{steps:?}") };
    let expected = json!({ "metadata": {
        "resourceVersion": "7",
        "labels": { well_known::CONTROL: null },
        "finalizers": ["example.com/audit"],
        "ownerReferences": [],
    } });
    assert_eq!(*patch, expected);
    let foreign = object("Pod", &json!({ "name": "a", "labels": { "notkusionstack.io/b": "c" } }));
    assert_eq!(next(&remains(vec![foreign]), Workloads::Keep), Ok(Next::Done));
}

#[test]
fn services_keep_what_their_user_wrote() {
    let annotations = json!({ consist::BACKEND: "haproxy", consist::FINALIZER: "prot" });
    let finalizers = json!([consist::CLEAN_FINALIZER]);
    let service = object(
        "Service",
        &json!({ "name": "web", "annotations": annotations, "finalizers": finalizers }),
    );
    let released = next(&remains(vec![service]), Workloads::Keep);
    let Ok(Next::Steps(steps)) = released else { panic!("{released:?}") };
    let Change::Patch(patch) = &steps[0].change else { panic!("{steps:?}") };
    assert_eq!(patch["metadata"]["annotations"], json!({ consist::FINALIZER: null }));
    assert_eq!(patch["metadata"]["finalizers"], json!([]));
}

#[test]
fn pods_are_deleted_only_by_running_operators() {
    let absent = vec!["lifecycle-operator".to_owned()];
    let remains = Remains { absent_operators: absent, ..remains(vec![set(), pod()]) };
    let refusal = next(&remains, Workloads::Delete);
    assert!(matches!(refusal, Err(Refusal::OperatorAbsent { operator: "lifecycle-operator", .. })));
}

#[test]
fn a_gate_in_a_template_prevents_the_uninstallation() {
    let mut deployment = object("Deployment", &json!({ "namespace": "shop", "name": "api" }));
    let gates = json!([{ "conditionType": well_known::SERVICE_READY }]);
    deployment.value["spec"] = json!({ "template": { "spec": { "readinessGates": gates } } });
    let refusal = next(&remains(vec![deployment]), Workloads::Keep);
    let expected = Refusal::GateInTemplate("deployment/api in namespace shop".to_owned());
    assert_eq!(refusal, Err(expected));
}
