use super::*;
use crate::yaml;

/// Translates an object in YAML; compares the result with YAML.
#[track_caller]
fn check(before: &str, after: &str) {
    let mut object = yaml::read(before).unwrap();
    assert!(translate(&mut object).unwrap().is_some(), "{before}");
    assert_eq!(object, yaml::read(after).unwrap(), "{before}");
}

#[test]
fn objects_of_current_versions_stay_as_they_are() {
    for object in [
        "{apiVersion: policy/v1, kind: PodDisruptionBudget}",
        "{apiVersion: v1, kind: Service}",
        "{}",
    ] {
        let mut object = yaml::read(object).unwrap();
        let before = object.clone();
        assert_eq!(translate(&mut object), Ok(None));
        assert_eq!(object, before);
    }
}

#[test]
fn initializers_are_removed() {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "a", "initializers": {} },
        "spec": { "template": { "metadata": { "initializers": { "pending": [] }, "labels": {} } } },
    });
    assert_eq!(translate(&mut object), Ok(None));
    let expected = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "a" },
        "spec": { "template": { "metadata": { "labels": {} } } },
    });
    assert_eq!(object, expected);
}

#[test]
fn a_translation_names_both_versions() {
    let mut object = json!({ "apiVersion": "batch/v1beta1", "kind": "CronJob" });
    let translated = translate(&mut object).unwrap().unwrap();
    assert_eq!(translated.from, "batch/v1beta1 CronJob");
    assert_eq!(translated.to, "batch/v1 CronJob");
}

#[test]
fn a_budget_with_an_empty_selector_is_refused() {
    check(
        "{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, spec: {selector: {matchLabels: {a: b}}}}",
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, spec: {selector: {matchLabels: {a: b}}}}",
    );
    // Without a selector, a PodDisruptionBudget selects no Pod in either version.
    check(
        "{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, spec: {minAvailable: 1}}",
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, spec: {minAvailable: 1}}",
    );
    for selector in ["{}", "{matchLabels: {}}", "{matchExpressions: []}"] {
        let text = format!(
            "{{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {{name: a}}, spec: {{selector: {selector}}}}}"
        );
        let error = translate(&mut yaml::read(&text).unwrap()).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "policy/v1beta1 PodDisruptionBudget a: its empty selector selected no Pod"
            ),
            "{error}"
        );
    }
}

#[test]
fn a_removed_kind_is_named() {
    let mut policy = json!({ "apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy" });
    let error = translate(&mut policy).unwrap_err().to_string();
    assert_eq!(error, "policy/v1beta1 PodSecurityPolicy is no longer served, and has no successor");
}

#[test]
fn workloads_get_the_selector_that_they_had_by_default() {
    check(
        "{apiVersion: extensions/v1beta1, kind: Deployment, spec: {rollbackTo: {revision: 1}, template: {metadata: {labels: {a: b}}}}}",
        "{apiVersion: apps/v1, kind: Deployment, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}}, progressDeadlineSeconds: 2147483647, revisionHistoryLimit: 2147483647, strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 1}}}}",
    );
    check(
        "{apiVersion: apps/v1beta2, kind: StatefulSet, spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {a: b}}}}}",
        "{apiVersion: apps/v1, kind: StatefulSet, spec: {selector: {matchLabels: {c: d}}, template: {metadata: {labels: {a: b}}}}}",
    );
}

#[test]
fn workloads_are_updated_as_they_were() {
    check(
        "{apiVersion: apps/v1beta1, kind: StatefulSet, spec: {replicas: 1}}",
        "{apiVersion: apps/v1, kind: StatefulSet, spec: {replicas: 1, updateStrategy: {type: OnDelete}}}",
    );
    check(
        "{apiVersion: extensions/v1beta1, kind: Deployment, spec: {progressDeadlineSeconds: 5, revisionHistoryLimit: 1, strategy: {type: Recreate}}}",
        "{apiVersion: apps/v1, kind: Deployment, spec: {progressDeadlineSeconds: 5, revisionHistoryLimit: 1, strategy: {type: Recreate}}}",
    );
    check(
        "{apiVersion: apps/v1beta2, kind: DaemonSet, spec: {}}",
        "{apiVersion: apps/v1, kind: DaemonSet, spec: {}}",
    );
}

#[test]
fn every_user_is_a_group() {
    check(
        "{apiVersion: rbac.authorization.k8s.io/v1alpha1, kind: RoleBinding, subjects: [{kind: User, name: '*', apiVersion: x}]}",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, subjects: [{kind: Group, name: 'system:authenticated', apiGroup: rbac.authorization.k8s.io}]}",
    );
}

#[test]
fn an_average_takes_precedence_over_a_value() {
    check(
        "{apiVersion: autoscaling/v2beta1, kind: HorizontalPodAutoscaler, spec: {metrics: [{type: Object, object: {metricName: n, target: {kind: Service, name: s}, targetValue: 0, averageValue: 5}}]}}",
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {metrics: [{type: Object, object: {metric: {name: n}, describedObject: {kind: Service, name: s}, target: {type: AverageValue, averageValue: 5}}}]}}",
    );
}

#[test]
fn a_definition_keeps_unknown_fields_at_every_level() {
    check(
        "{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, spec: {group: g, scope: Cluster, versions: [{name: v1}], validation: {openAPIV3Schema: {properties: {spec: {properties: {driver: {properties: {cores: {type: integer}}}, list: {items: {properties: {a: {type: string}}}}}}}}}}}",
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {group: g, scope: Cluster, versions: [{name: v1, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {driver: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {cores: {type: integer}}}, list: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}}}}}}}}]}}",
    );
}

#[test]
fn a_definition_in_a_protected_group_is_unapproved() {
    let mut object = yaml::read("{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, spec: {group: sparkoperator.k8s.io, version: v1}}").unwrap();
    translate(&mut object).unwrap();
    let approval = &object["metadata"]["annotations"]["api-approved.kubernetes.io"];
    assert!(approval.as_str().unwrap().starts_with("unapproved"), "{approval}");
}

#[test]
fn subjects_get_a_group() {
    check(
        "{apiVersion: rbac.authorization.k8s.io/v1alpha1, kind: RoleBinding, subjects: [{kind: User, name: a, apiVersion: x}, {kind: ServiceAccount, name: b, apiVersion: v1}, {kind: ServiceAccount, name: c}]}",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, subjects: [{kind: User, name: a, apiGroup: rbac.authorization.k8s.io}, {kind: ServiceAccount, name: b, apiGroup: ''}, {kind: ServiceAccount, name: c}]}",
    );
}

#[test]
fn ingresses_name_services_and_ports() {
    check(
        "{apiVersion: extensions/v1beta1, kind: Ingress, spec: {backend: {serviceName: a, servicePort: 80}, rules: [{host: h, http: {paths: [{path: /, backend: {serviceName: b, servicePort: http}}, {pathType: Exact, backend: {serviceName: c, servicePort: '8080'}}]}}]}}",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {defaultBackend: {service: {name: a, port: {number: 80}}}, rules: [{host: h, http: {paths: [{path: /, pathType: ImplementationSpecific, backend: {service: {name: b, port: {name: http}}}}, {pathType: Exact, backend: {service: {name: c, port: {number: 8080}}}}]}}]}}",
    );
}

#[test]
fn metrics_of_autoscalers_have_targets() {
    check(
        "{apiVersion: autoscaling/v2beta1, kind: HorizontalPodAutoscaler, spec: {metrics: [{type: Resource, resource: {name: cpu, targetAverageUtilization: 50}}, {type: Pods, pods: {metricName: m, targetAverageValue: 1k}}, {type: Object, object: {metricName: n, target: {kind: Service, name: s}, targetValue: 3}}]}}",
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}, {type: Pods, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1k}}}, {type: Object, object: {metric: {name: n}, describedObject: {kind: Service, name: s}, target: {type: Value, value: 3}}}]}}",
    );
}

#[test]
fn webhooks_keep_their_defaults_and_side_effects_are_refused() {
    check(
        "{apiVersion: admissionregistration.k8s.io/v1beta1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, sideEffects: None}]}",
        "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, webhooks: [{name: a, sideEffects: None, failurePolicy: Ignore, matchPolicy: Exact, timeoutSeconds: 30, admissionReviewVersions: [v1beta1]}]}",
    );
    let mut unknown = yaml::read("{apiVersion: admissionregistration.k8s.io/v1beta1, kind: MutatingWebhookConfiguration, webhooks: [{name: a}]}").unwrap();
    assert!(translate(&mut unknown).unwrap_err().to_string().contains("side effects"));
}

#[test]
fn a_definition_gets_structural_schemas() {
    check(
        "
apiVersion: apiextensions.k8s.io/v1beta1
kind: CustomResourceDefinition
spec:
  group: g
  version: v1
  preserveUnknownFields: false
  subresources: {status: {}}
  additionalPrinterColumns: [{name: A, type: string, JSONPath: .spec.a}]
  validation:
    openAPIV3Schema:
      properties:
        metadata: {properties: {labels: {type: string}}}
        spec:
          required: [a]
          properties:
            a: {anyOf: [{type: integer}, {type: string}], description: d}
            b: {}
            c: {items: {properties: {x: {type: string}}}}
            d: {type: object}
            e: {oneOf: [{properties: {x: {type: string}}}]}
            f: {type: array}
            g: {type: object, additionalProperties: {type: string}}
            h: {type: object, additionalProperties: true}
            i: {type: string, anyOf: [{pattern: a}]}
",
        "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
spec:
  group: g
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: A, type: string, jsonPath: .spec.a}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          metadata: {type: object}
          spec:
            type: object
            required: [a]
            properties:
              a: {x-kubernetes-int-or-string: true, description: d}
              b: {x-kubernetes-preserve-unknown-fields: true}
              c: {type: array, items: {type: object, properties: {x: {type: string}}}}
              d: {type: object, x-kubernetes-preserve-unknown-fields: true}
              e: {x-kubernetes-preserve-unknown-fields: true}
              f: {type: array, items: {x-kubernetes-preserve-unknown-fields: true}}
              g: {type: object, additionalProperties: {type: string}}
              h: {type: object, x-kubernetes-preserve-unknown-fields: true}
              i: {type: string, anyOf: [{pattern: a}]}
",
    );
}

#[test]
fn a_definition_without_schema_preserves_all_fields() {
    check(
        "{apiVersion: apiextensions.k8s.io/v1beta1, kind: CustomResourceDefinition, spec: {scope: Cluster, version: v1, versions: [{name: v1, served: true, storage: true}], conversion: {strategy: Webhook, webhookClientConfig: {url: u}}}}",
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {scope: Cluster, conversion: {strategy: Webhook, webhook: {clientConfig: {url: u}, conversionReviewVersions: [v1beta1]}}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}",
    );
}
