use jiff::SignedDuration;
use k8s_openapi::ByteString;
use podops_api::well_known;
use serde_json::{Value, json};

use super::*;
use crate::installation::{Object, custom_definitions, kinds};

/// Findings about all parts.
fn check(installation: &Installation) -> Findings {
    findings(super::check(installation))
}

fn object(kind: &str, value: Value) -> Object {
    let found = kinds().find(|known| known.name == kind);
    Object::new(found.unwrap_or_else(|| panic!("{kind} is not read")), value)
}

fn part(kind: &str, name: &str, fields: &Value) -> Object {
    let mut value = fields.clone();
    let labels = json!({ "app.kubernetes.io/part-of": "podops" });
    value["metadata"] = json!({ "namespace": "podops-system", "name": name, "labels": labels });
    object(kind, value)
}

/// An installation without findings.
fn installed() -> Installation {
    let mut objects = Vec::new();
    for operator in OPERATORS {
        let available = json!({ "status": { "availableReplicas": 1 } });
        objects.push(part("Deployment", operator, &available));
        objects.push(part("ServiceAccount", operator, &json!({})));
        objects.push(part("ClusterRole", operator, &json!({})));
        let subjects = json!([{ "name": operator, "namespace": "podops-system" }]);
        let binding = json!({ "roleRef": { "name": operator }, "subjects": subjects });
        objects.push(part("ClusterRoleBinding", operator, &binding));
    }
    let webhooks =
        json!({ "webhooks": [{ "failurePolicy": "Fail", "clientConfig": { "caBundle": "a" } }] });
    objects.push(part("ValidatingWebhookConfiguration", "podops-lifecycle-operator", &webhooks));
    let policy = json!({ "spec": { "policyName": "podops-readiness-gate" } });
    objects.push(part("MutatingAdmissionPolicyBinding", "podops-readiness-gate", &policy));
    objects.push(part("MutatingAdmissionPolicy", "podops-readiness-gate", &json!({})));
    let of_kudo = ["instances", "operators", "operatorversions"].map(|p| format!("{p}.kudo.dev"));
    for name in custom_definitions().chain(of_kudo) {
        let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
        let crd = json!({ "metadata": { "name": name }, "status": established });
        objects.push(object("CustomResourceDefinition", crd));
    }
    objects.push(object("CollaSet", json!({ "metadata": { "name": "web" } })));
    objects.push(pod(&json!({})));
    Installation { objects, server_minor: 36, ..Installation::default() }
}

fn pod(labels: &Value) -> Object {
    let mut labels = labels.clone();
    labels[well_known::CONTROL] = json!("true");
    let gates = json!({ "readinessGates": [{ "conditionType": well_known::SERVICE_READY }] });
    let metadata = json!({ "namespace": "shop", "name": "web-1", "labels": labels });
    object("Pod", json!({ "metadata": metadata, "spec": gates }))
}

/// Findings about an installation after a change.
fn after(change: impl FnOnce(&mut Installation)) -> Vec<String> {
    let mut installation = installed();
    change(&mut installation);
    let findings = check(&installation).0;
    findings.iter().map(|f| format!("{:?} {}: {}", f.level, f.subject, f.message)).collect()
}

fn edit(installation: &mut Installation, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let mut objects = installation.objects.iter_mut();
    let found = objects.find(|object| object.kind.name == kind && object.name == name);
    change(&mut found.unwrap_or_else(|| panic!("no {kind} {name}")).value);
}

fn absent(installation: &mut Installation, operator: &str) {
    installation.absent_operators.push(operator.to_owned());
}

#[test]
fn a_working_installation_has_no_findings() {
    assert_eq!(after(|_| ()), Vec::<String>::new());
}

#[test]
fn a_cluster_without_podops_is_no_error() {
    let absent_operators = OPERATORS.map(str::to_owned).to_vec();
    let empty = Installation { absent_operators, server_minor: 34, ..Installation::default() };
    let findings = check(&empty);
    assert!(!findings.has_errors(), "{findings}");
    assert!(findings.to_string().contains("is not installed"), "{findings}");
    assert!(findings.to_string().contains("-f install-kubernetes-1.33.yaml"), "{findings}");
    let newer = Installation { server_minor: 36, ..empty.clone() };
    assert!(check(&newer).to_string().contains("-f install.yaml"));
    let old = Installation { server_minor: 30, ..empty };
    assert!(check(&old).to_string().contains("older than 1.33"));
}

#[test]
fn what_is_left_without_any_operator_is_named() {
    let absent_operators = OPERATORS.map(str::to_owned).to_vec();
    let deleted = json!({ "name": "collasets.apps.kusionstack.io", "deletionTimestamp": "1" });
    let mut left = Installation { absent_operators, server_minor: 36, ..Installation::default() };
    left.objects = vec![
        object("CollaSet", json!({ "metadata": { "name": "web" } })),
        object("CustomResourceDefinition", json!({ "metadata": deleted })),
    ];
    let findings = check(&left).0;
    let found = findings.iter().map(|f| format!("{:?} {}: {}", f.level, f.subject, f.message));
    let expected = [
        "Error CustomResourceDefinition collasets.apps.kusionstack.io: is being deleted, and no operator completes it",
        "Warning 1 objects of kind CollaSet: are left, and no operator reconciles them",
    ];
    let found: Vec<String> = found.collect();
    assert_eq!(found[..2], expected);
    // Kuperator reconciles them.
    let image = json!({ "containers": [{ "image": "kusionstack/kuperator:v0.7.3" }] });
    let kuperator =
        json!({ "metadata": { "name": "kuperator" }, "spec": { "template": { "spec": image } } });
    left.objects.push(object("Deployment", kuperator));
    assert!(!check(&left).to_string().contains("of kind CollaSet"));
}

#[test]
fn instances_without_their_operator_or_definitions_are_named() {
    let missing = after(|installation| {
        installation.objects.retain(|object| object.name != "instance-operator");
        absent(installation, "instance-operator");
        installation.objects.push(object("Instance", json!({ "metadata": { "name": "app" } })));
    });
    let expected = "Error instance-operator: is not running, and there are 1 Instances: their plans do not run";
    assert_eq!(missing, [expected]);
    let undefined = after(|installation| {
        installation.objects.retain(|object| object.name != "operators.kudo.dev");
    });
    assert_eq!(undefined, ["Error CustomResourceDefinition operators.kudo.dev: is missing"]);
}

#[test]
fn operators_that_do_not_work_are_named() {
    let unavailable = after(|installation| {
        edit(installation, "Deployment", "consist-operator", |d| d["status"] = json!({}));
    });
    assert_eq!(
        unavailable,
        ["Error Deployment podops-system/consist-operator: has no available Pod"]
    );
    let skewed = after(|installation| {
        edit(installation, "Deployment", "consist-operator", |deployment| {
            deployment["metadata"]["labels"]["app.kubernetes.io/version"] = json!("v2");
        });
    });
    assert!(skewed[0].contains("different versions (unknown: "), "{skewed:?}");
    let leaderless = after(|installation| absent(installation, "operationjob-operator"));
    assert!(leaderless[0].contains("none of its Pods renews the Lease"), "{leaderless:?}");
    let unbound = after(|installation| {
        edit(installation, "ClusterRoleBinding", "consist-operator", |b| b["subjects"] = json!([]));
    });
    assert!(unbound[0].contains("has no ClusterRole"), "{unbound:?}");
    let elsewhere = after(|installation| {
        edit(installation, "ClusterRoleBinding", "consist-operator", |binding| {
            binding["subjects"][0]["namespace"] = json!("default");
        });
    });
    assert!(elsewhere[0].contains("has no ClusterRole"), "{elsewhere:?}");
    let without_role = after(|installation| {
        let role = |object: &Object| {
            object.kind.name == "ClusterRole" && object.name == "consist-operator"
        };
        installation.objects.retain(|object| !role(object));
    });
    let expected = "Error ClusterRoleBinding consist-operator: grants the ClusterRole consist-operator, \
                    which does not exist";
    assert_eq!(without_role, [expected]);
    let unenforced = after(|installation| {
        let rule = object("PodTransitionRule", json!({ "metadata": { "name": "web" } }));
        installation.objects.push(rule);
        installation.objects.retain(|object| object.name != "transition-rule-operator");
        absent(installation, "transition-rule-operator");
    });
    let expected = "1 PodTransitionRules: their rules are not enforced";
    assert!(unenforced.iter().any(|finding| finding.contains(expected)), "{unenforced:?}");
    let missing = after(|installation| {
        installation.objects.retain(|object| object.name != "collaset-operator");
        absent(installation, "collaset-operator");
    });
    assert!(missing[0].contains("CollaSets are neither created nor updated"), "{missing:?}");
}

#[test]
fn definitions_are_there_and_stay() {
    let name = "collasets.apps.kusionstack.io";
    let missing = after(|installation| {
        installation.objects.retain(|object| object.name != name);
    });
    assert_eq!(missing, [format!("Error CustomResourceDefinition {name}: is missing")]);
    let deleting = after(|installation| {
        edit(installation, "CustomResourceDefinition", name, |crd| {
            crd["metadata"]["deletionTimestamp"] = json!("now");
        });
    });
    assert!(deleting[0].contains("is being deleted"), "{deleting:?}");
    let pending = after(|installation| {
        edit(installation, "CustomResourceDefinition", name, |crd| crd["status"] = json!({}));
    });
    assert!(pending[0].contains("is not established"), "{pending:?}");
}

#[test]
fn webhooks_without_server_are_errors_if_they_reject() {
    let uncertified = after(|installation| {
        let name = "podops-lifecycle-operator";
        edit(installation, "ValidatingWebhookConfiguration", name, |configuration| {
            configuration["webhooks"][0]["clientConfig"] = json!({});
        });
    });
    assert!(uncertified[0].contains("has no CA bundle"), "{uncertified:?}");
    let without_server = after(|installation| absent(installation, "lifecycle-operator"));
    let expected = "Error ValidatingWebhookConfiguration podops-lifecycle-operator: calls \
         lifecycle-operator, which is not running: requests are rejected";
    assert!(without_server.iter().any(|finding| finding == expected), "{without_server:?}");
    let ungated = after(|installation| {
        installation.objects.retain(|object| object.name != "podops-readiness-gate");
    });
    assert!(ungated[0].starts_with("Warning Readiness gates"), "{ungated:?}");
    let without_policy = after(|installation| {
        installation.objects.retain(|object| object.kind.name != "MutatingAdmissionPolicy");
    });
    let expected = "Error MutatingAdmissionPolicyBinding podops-readiness-gate: applies the policy \
                    podops-readiness-gate, which does not exist";
    assert_eq!(without_policy, [expected]);
}

#[test]
fn certificates_that_are_not_renewed_are_named() {
    let expiring_in = |days: i64| {
        after(|installation| {
            let expires = installation.now + SignedDuration::from_hours(days * 24);
            let expires = ByteString(expires.to_string().into_bytes());
            let secret = part(
                "Secret",
                "lifecycle-operator-admission",
                &json!({ "data": { "expires": expires } }),
            );
            installation.objects.push(secret);
        })
    };
    assert_eq!(expiring_in(40), Vec::<String>::new());
    let late = expiring_in(20);
    assert!(
        late[0].starts_with("Warning Certificate of lifecycle-operator: expires at"),
        "{late:?}"
    );
    let expired = expiring_in(-1);
    assert!(
        expired[0].starts_with("Error Certificate of lifecycle-operator: expired"),
        "{expired:?}"
    );
}

#[test]
fn pods_that_nothing_continues_are_named() {
    let rule_gate = format!("{}/transition-rule", well_known::PRE_CHECK_GATE);
    let audit_gate = format!("{}/audit", well_known::POST_CHECK_GATE);
    let operating = "operating.podopslifecycle.kusionstack.io";
    let cases = [
        (
            json!({ rule_gate: "1" }),
            "transition-rule-operator",
            "Error 1 Pods: have gates of rules",
        ),
        (
            json!({
                audit_gate: "1",
                "operated.podopslifecycle.kusionstack.io/a": "1",
                "post-check.podopslifecycle.kusionstack.io/a": "1",
            }),
            "",
            "Warning 1 Pods: wait for audit in their operations",
        ),
        (
            json!({ format!("{operating}/a"): "1" }),
            "lifecycle-operator",
            "Error 1 Pods: are in operations",
        ),
        (json!({ operating: "1" }), "", "Error 1 Pods: invalid label"),
    ];
    for (labels, operator, expected) in cases {
        let findings = after(|installation| {
            installation.objects.retain(|object| object.kind.name != "Pod");
            installation.objects.push(pod(&labels));
            absent(installation, operator);
        });
        let found = findings.iter().any(|finding| finding.starts_with(expected));
        assert!(found, "{expected}: {findings:#?}");
        assert!(findings.iter().any(|finding| finding.ends_with("(shop/web-1)")), "{findings:#?}");
    }
    let ungated =
        after(|installation| edit(installation, "Pod", "web-1", |pod| pod["spec"] = json!({})));
    assert!(ungated[0].contains("without the readiness gate"), "{ungated:?}");
}

#[test]
fn conditions_that_need_a_user_are_named() {
    let condition = |type_: &str, message: &str| json!([{ "type": type_, "status": "True", "message": message }]);
    let findings = after(|installation| {
        let selector = json!({ "matchLabels": { "app": "web" } });
        for (name, stalled) in
            [("a", condition("Stalled", "2 Pods of revision a-1 have failed")), ("b", json!([]))]
        {
            let metadata = json!({ "namespace": "shop", "name": name });
            let (spec, status) =
                (json!({ "selector": selector }), json!({ "conditions": stalled }));
            let set = json!({ "metadata": metadata, "spec": spec, "status": status });
            installation.objects.push(object("CollaSet", set));
        }
        let status =
            json!({ "conditions": condition("Degraded", "rule cel: undeclared reference") });
        let metadata = json!({ "namespace": "shop", "name": "freeze" });
        let rule = json!({ "metadata": metadata, "status": status });
        installation.objects.push(object("PodTransitionRule", rule));
    });
    let expected = [
        "Warning CollaSets a, b in namespace shop: have the same selector, so one may adopt the Pods of the other",
        "Warning collaset/a in namespace shop: is stalled: 2 Pods of revision a-1 have failed",
        "Warning podtransitionrule/freeze in namespace shop: is degraded: rule cel: undeclared reference",
    ];
    assert_eq!(findings, expected);
}

#[test]
fn each_checked_part_is_named_with_its_versions() {
    let text = |installation: &Installation| {
        super::check(installation).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut installation = installed();
    assert_eq!(text(&installation)[0], "✔ Kubernetes 1.36");
    assert!(text(&installation)[1].contains("lifecycle-operator of unknown version"));
    assert_eq!(
        text(&installation)[4..],
        ["✔ 1 Pod", "✔ 0 Services", "✔ 1 CollaSet, 0 PodTransitionRules"]
    );
    installation.server_minor = 30;
    assert_eq!(text(&installation)[0], "✖ Kubernetes 1.30");
}

#[test]
fn services_that_send_traffic_to_pods_in_operations_are_named() {
    let service = |labels: &Value, selector: &Value| {
        let metadata = json!({ "namespace": "shop", "name": "web", "labels": labels });
        object("Service", json!({ "metadata": metadata, "spec": { "selector": selector } }))
    };
    let found = |service: Object, is_absent: bool| {
        after(|installation| {
            installation.objects.retain(|object| object.kind.name != "Pod");
            installation.objects.push(pod(&json!({ "app": "web" })));
            installation.objects.push(service);
            if is_absent {
                absent(installation, "consist-operator");
            }
        })
    };
    let web = json!({ "app": "web" });
    let expected = "Warning service/web in namespace shop: selects 1 Pod under control, whose operations do \
                    not wait for its traffic";
    assert_eq!(found(service(&json!({}), &web), false), [expected]);
    assert!(found(service(&json!({ well_known::CONTROL: "true" }), &web), false).is_empty());
    assert!(found(service(&json!({}), &json!({ "app": "db" })), false).is_empty());
    assert!(found(service(&json!({}), &json!({})), false).is_empty());
    let without = found(service(&json!({}), &web), true);
    assert!(!without.concat().contains("service/web"), "{without:?}");
}

#[test]
fn operations_without_a_type_are_named() {
    let found = after(|installation| {
        installation.objects.retain(|object| object.kind.name != "Pod");
        let operating = "operating.podopslifecycle.kusionstack.io/mine";
        installation.objects.push(pod(&json!({ operating: "1" })));
    });
    let expected =
        "Warning 1 Pods: have an operation mine without a type, which does not begin (shop/web-1)";
    assert_eq!(found, [expected]);
}
