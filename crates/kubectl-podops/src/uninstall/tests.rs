use podops_api::{consist, well_known};
use serde_json::{Value, json};

use super::*;
use crate::installation::kinds;

fn object(kind: &str, metadata: &Value) -> Object {
    let found = kinds().find(|known| known.name == kind);
    let kind = found.unwrap_or_else(|| panic!("{kind} is not read"));
    Object::new(kind, json!({ "metadata": metadata }))
}

fn absent() -> Vec<String> {
    OPERATORS.map(str::to_owned).to_vec()
}

fn installed(kind: &str, name: &str) -> Object {
    let labels = json!({ "app.kubernetes.io/part-of": "podops" });
    let mut metadata = json!({ "name": name, "labels": labels });
    if matches!(kind, "Deployment" | "Pod") {
        metadata["namespace"] = json!("podops-system");
    }
    object(kind, &metadata)
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

fn installation(objects: Vec<Object>) -> Installation {
    Installation {
        objects,
        absent_operators: absent(),
        operator_namespace: "podops-system".to_owned(),
        ..Installation::default()
    }
}

/// Applies the steps until nothing is left; returns the changed and deleted objects in their order.
fn uninstall(mut installation: Installation, workloads: Workloads) -> Vec<String> {
    let mut log = Vec::new();
    for _ in 0..20 {
        let steps = match next(&installation, workloads) {
            Ok(Next::Steps(steps)) => steps,
            Ok(Next::Wait(message)) => {
                log.push(message);
                installation.absent_operators = absent();
                continue;
            }
            Ok(Next::Done) => return log,
            Err(refusal) => return vec![refusal.to_string()],
        };
        for Step { object, change } in steps {
            let known = installation.objects.iter_mut().find(|known| {
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
        installation.objects.retain(|object| {
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
    let running = Installation { absent_operators: absent().split_off(1), ..installation(objects) };
    let log = uninstall(running, Workloads::Keep);
    let expected = [
        "delete validatingwebhookconfiguration/podops-lifecycle-operator",
        "delete deployment/collaset-operator in namespace podops-system",
        "waiting for the Leases of collaset-operator in namespace podops-system to expire",
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
fn a_finalizer_of_another_controller_is_named() {
    let mut left = set();
    left.value["metadata"]["deletionTimestamp"] = json!("now");
    left.value["metadata"]["finalizers"] = json!(["example.com/audit"]);
    let name = json!({ "name": "collasets.apps.kusionstack.io", "deletionTimestamp": "now" });
    let waiting = installation(vec![left, object("CustomResourceDefinition", &name)]);
    let Ok(Next::Wait(message)) = next(&waiting, Workloads::Keep) else { panic!() };
    let expected = "waiting until the finalizer example.com/audit of collaset/web in namespace shop is \
                    removed by its own controller";
    assert_eq!(message, expected);
}

#[test]
fn only_what_podops_has_written_is_removed() {
    let released = next(&installation(vec![pod()]), Workloads::Keep);
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
    assert_eq!(next(&installation(vec![foreign]), Workloads::Keep), Ok(Next::Done));
}

#[test]
fn services_keep_what_their_user_wrote() {
    let annotations = json!({ consist::BACKEND: "haproxy", consist::FINALIZER: "prot" });
    let finalizers = json!([consist::CLEAN_FINALIZER]);
    let service = object(
        "Service",
        &json!({ "name": "web", "annotations": annotations, "finalizers": finalizers }),
    );
    let released = next(&installation(vec![service]), Workloads::Keep);
    let Ok(Next::Steps(steps)) = released else { panic!("{released:?}") };
    let Change::Patch(patch) = &steps[0].change else { panic!("{steps:?}") };
    assert_eq!(patch["metadata"]["annotations"], json!({ consist::FINALIZER: null }));
    assert_eq!(patch["metadata"]["finalizers"], json!([]));
}

#[test]
fn pods_are_deleted_only_by_running_operators() {
    let absent = vec!["lifecycle-operator".to_owned()];
    let installation =
        Installation { absent_operators: absent, ..installation(vec![set(), pod()]) };
    let refusal = next(&installation, Workloads::Delete);
    assert!(matches!(refusal, Err(Refusal::OperatorAbsent { operator: "lifecycle-operator", .. })));
}

#[test]
fn pods_of_operators_end_before_anything_is_released() {
    let deployed = installation(vec![installed("Pod", "collaset-operator-1"), pod()]);
    let waiting = next(&deployed, Workloads::Keep);
    assert_eq!(waiting, Ok(Next::Wait("waiting for 1 Pod of operators to end".to_owned())));
}

#[test]
fn labels_that_a_controller_may_select_are_kept() {
    let mut pod = pod();
    pod.value["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": true }]);
    pod.value["metadata"]["labels"][well_known::SERVICE_AVAILABLE] = json!("1");
    let released = next(&installation(vec![pod]), Workloads::Keep);
    let Ok(Next::Steps(steps)) = released else { panic!("{released:?}") };
    let Change::Patch(patch) = &steps[0].change else { panic!("{steps:?}") };
    let labels = &patch["metadata"]["labels"];
    assert_eq!(*labels, json!({ well_known::SERVICE_AVAILABLE: null }));
    assert!(patch["metadata"].get("ownerReferences").is_none(), "{patch}");
}

#[test]
fn what_would_strand_something_is_refused() {
    let refusal = |object: Object| next(&installation(vec![object]), Workloads::Keep).unwrap_err();
    let containers =
        |container: Value| json!({ "template": { "spec": { "containers": [container] } } });
    let mut deployment = installed("Deployment", "consist-operator");
    deployment.value["spec"] = containers(json!({ "args": ["--employer-kinds=/etc/kinds.yaml"] }));
    assert!(matches!(refusal(deployment.clone()), Refusal::OtherEmployers(_)));
    deployment.namespace = Some("elsewhere".to_owned());
    assert!(matches!(refusal(deployment), Refusal::OtherNamespace { .. }));
    let mut kuperator = object("Deployment", &json!({ "name": "controller" }));
    kuperator.value["spec"] = containers(json!({ "image": "kusionstack/kuperator:v0.7.3" }));
    assert!(matches!(refusal(kuperator), Refusal::Kuperator(_)));
}

#[test]
fn a_gate_in_a_template_prevents_the_uninstallation() {
    let mut deployment = object("Deployment", &json!({ "namespace": "shop", "name": "api" }));
    let gates = json!([{ "conditionType": well_known::SERVICE_READY }]);
    deployment.value["spec"] = json!({ "template": { "spec": { "readinessGates": gates } } });
    let refusal = next(&installation(vec![deployment]), Workloads::Keep);
    let expected = Refusal::GateInTemplate("deployment/api in namespace shop".to_owned());
    assert_eq!(refusal, Err(expected));
}

#[test]
fn instances_with_finalizers_are_not_stranded() {
    let finalizers = json!(["kudo.dev/cluster-objects"]);
    let metadata = json!({ "namespace": "shop", "name": "app", "finalizers": finalizers });
    let instance = object("Instance", &metadata);
    let of_kudo = installation(vec![instance.clone()]);
    assert!(next(&of_kudo, Workloads::Keep).is_ok(), "another program runs its plans");
    let deployment = installed("Deployment", "instance-operator");
    let refusal = next(&installation(vec![instance, deployment.clone()]), Workloads::Keep);
    assert!(matches!(refusal, Err(Refusal::Instances { count: 1, .. })), "{refusal:?}");
    let plain = object("Instance", &json!({ "namespace": "shop", "name": "app" }));
    assert!(next(&installation(vec![plain, deployment]), Workloads::Keep).is_ok());
}
