//! Employers of any kind, reduced to the fields that planning needs.

pub mod kind;

use std::{borrow::Cow, error::Error};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Resource,
    core::{DynamicObject, Selector, SelectorExt as _},
};
use podops_api::consist;
use podops_client::error::Chain;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::kind::Kind;
use crate::{
    backends::{self, endpointslice},
    policy::{DrainPolicy, InvalidDrainPolicy},
    view::{EmployerState, EmployerView},
};

/// Prefix of the annotations of employers that this operator reads.
const ANNOTATIONS: &str = "resource-consist.kusionstack.io/";

/// Kind, namespace and name of an employer, as in the key of a Pod's available conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmployerKey<'a> {
    /// Kind.
    pub kind: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

impl<'a> EmployerKey<'a> {
    /// Parses `<kind>/<namespace>/<name>`; `None` if the text does not have this form.
    #[must_use]
    pub fn parse(key: &'a str) -> Option<Self> {
        let (kind, rest) = key.split_once('/')?;
        let (namespace, name) = rest.split_once('/')?;
        Some(Self { kind, namespace, name })
    }
}

/// An annotation of an employer that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{key}")]
pub struct InvalidAnnotation<E: Error + 'static> {
    /// Key of the annotation.
    pub key: &'static str,
    /// Error in the annotation's text.
    pub source: E,
}

/// Fields of an employer that planning needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SlimEmployer {
    /// Metadata, without the annotations of other controllers.
    pub metadata: ObjectMeta,
    /// Kind.
    #[serde(skip)]
    pub kind: &'static str,
    /// Backend of employers of this kind without the backend annotation.
    #[serde(skip)]
    default_backend: Option<&'static str>,
    /// True if the employer is under control.
    #[serde(skip)]
    controlled: bool,
    /// Pod selector; `None` if it selects no Pods.
    #[serde(skip)]
    pod_selector: Option<Selector>,
    /// Error in the spec, with the field.
    #[serde(skip)]
    error: Option<String>,
}

/// For caches. Each contains objects of one kind and does not use group, version and kind.
impl Resource for SlimEmployer {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Employer".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "employers".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl SlimEmployer {
    /// Reduces an object to the fields that planning needs.
    #[must_use]
    pub fn new(kind: &Kind, object: DynamicObject) -> Self {
        let mut metadata = object.metadata;
        metadata.owner_references = None;
        if let Some(annotations) = &mut metadata.annotations {
            // The map stays, because a JSON patch must know whether it exists.
            annotations.retain(|key, _| key.starts_with(ANNOTATIONS));
        }
        let (pod_selector, error) = match kind.read_selector(&object.data) {
            Ok(selector) => (selector, None),
            Err(error) => (None, Some(Chain(&error).to_string())),
        };
        let is_service = kind.name() == consist::SERVICE;
        let spec = &object.data["spec"];
        let is_external = is_service && spec["type"] == json!("ExternalName");
        let publishes_unready = is_service && spec["publishNotReadyAddresses"] == json!(true);
        let mut employer = Self {
            kind: kind.name(),
            default_backend: kind.default_backend(),
            controlled: kind.controls(&metadata.labels.clone().unwrap_or_default()),
            pod_selector: pod_selector.filter(|_| !is_external),
            error,
            metadata,
        };
        if publishes_unready && employer.uses_endpoint_slices() {
            let error = "spec.publishNotReadyAddresses: true is not supported, because unready \
                         Pods keep receiving traffic";
            employer.error.get_or_insert(error.to_owned());
        }
        employer
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the name of the backend that routes its traffic.
    #[must_use]
    pub fn backend(&self) -> Option<&str> {
        self.annotation(consist::BACKEND).or(self.default_backend)
    }

    /// Returns whether its traffic is routed by EndpointSlices, which Kubernetes maintains: the
    /// backend only observes the traffic, and a Pod that is Ready receives it.
    #[must_use]
    pub fn uses_endpoint_slices(&self) -> bool {
        self.backend() == Some(endpointslice::NAME)
    }

    /// Returns the employer as passed to its backend.
    ///
    /// # Errors
    ///
    /// [`InvalidAnnotation`] if the annotation with the backend's parameters is not JSON.
    pub fn for_backend(&self) -> Result<backends::Employer, InvalidAnnotation<serde_json::Error>> {
        let key = consist::BACKEND_PARAMS;
        let params = match self.annotation(key) {
            Some(text) => {
                serde_json::from_str(text).map_err(|source| InvalidAnnotation { key, source })?
            }
            None => Value::Null,
        };
        let metadata = &self.metadata;
        Ok(backends::Employer {
            kind: self.kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            labels: metadata.labels.clone().unwrap_or_default(),
            params,
            protects_pods: false,
        })
    }

    /// Returns whether the employer is under control, or was and still has this operator's
    /// finalizer.
    #[must_use]
    pub fn is_managed_or_releasing(&self) -> bool {
        self.controlled || self.metadata.finalizers.iter().flatten().any(|f| is_ours(f))
    }

    /// Returns whether another controller's finalizer keeps an employer that uses EndpointSlices,
    /// such as that of a cloud's load balancer, which routes traffic until then.
    fn has_other_finalizers(&self) -> bool {
        self.uses_endpoint_slices()
            && !self.metadata.finalizers.iter().flatten().all(|f| is_ours(f))
    }

    /// Returns whether the employer selects a Pod with this metadata. An empty selector selects
    /// none.
    #[must_use]
    pub fn selects(&self, pod: &ObjectMeta) -> bool {
        let labels = pod.labels.as_ref();
        self.pod_selector
            .as_ref()
            .zip(labels)
            .is_some_and(|(selector, labels)| selector.matches(labels))
    }

    /// Returns the reference for events.
    #[must_use]
    pub fn reference(&self, kind: &Kind) -> ObjectReference {
        ObjectReference {
            api_version: Some(kind.api.api_version.clone()),
            kind: Some(self.kind.to_owned()),
            name: self.metadata.name.clone(),
            namespace: self.metadata.namespace.clone(),
            uid: self.metadata.uid.clone(),
            resource_version: self.metadata.resource_version.clone(),
            field_path: None,
        }
    }

    /// Returns the state of the employer.
    fn state(&self) -> EmployerState {
        // Kubernetes maintains no EndpointSlices for a Service without a selector.
        let has_no_slices =
            self.uses_endpoint_slices() && self.pod_selector.is_none() && self.error.is_none();
        if !self.controlled || has_no_slices {
            EmployerState::Unmanaged
        } else if self.metadata.deletion_timestamp.is_none() || self.has_other_finalizers() {
            EmployerState::Active
        } else if self.uses_endpoint_slices() {
            // Traffic ends only when the Service object is deleted.
            EmployerState::Unmanaged
        } else {
            EmployerState::Deleting
        }
    }

    fn drain_policy(&self) -> Result<DrainPolicy, InvalidAnnotation<InvalidDrainPolicy>> {
        let key = consist::DRAIN;
        match self.annotation(key) {
            Some(text) => {
                DrainPolicy::parse(text).map_err(|source| InvalidAnnotation { key, source })
            }
            None => Ok(DrainPolicy::default()),
        }
    }

    /// Returns the input of planning.
    #[must_use]
    pub fn view(&self) -> EmployerView {
        let metadata = &self.metadata;
        let (drain, error) = match self.drain_policy() {
            Ok(drain) => (drain, None),
            Err(error) => (DrainPolicy::default(), Some(Chain(&error).to_string())),
        };
        EmployerView {
            kind: self.kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            has_annotations: metadata.annotations.is_some(),
            reported_finalizer: self.annotation(consist::FINALIZER).map(ToOwned::to_owned),
            state: self.state(),
            drain,
            validation_errors: error.into_iter().chain(self.error.clone()).collect(),
        }
    }
}

/// Returns whether an employer's finalizer is this operator's, by its current or a former name.
fn is_ours(finalizer: &str) -> bool {
    finalizer.starts_with(consist::OLD_CLEAN_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::{kind::EmployerKindConfig, *};
    use podops_api::well_known;

    fn service(metadata: &Value, spec: &Value) -> SlimEmployer {
        let whole = json!({ "metadata": metadata, "spec": spec });
        let kind = Kind::services(endpointslice::NAME).unwrap();
        SlimEmployer::new(&kind, serde_json::from_value(whole).unwrap())
    }

    fn pod(labels: &Value) -> ObjectMeta {
        serde_json::from_value(json!({ "labels": labels })).unwrap()
    }

    fn gateways(path: &str) -> Kind {
        let text =
            format!("- apiVersion: example.com/v1\n  kind: Gateway\n  podSelector: {path}\n");
        let configs = EmployerKindConfig::parse_all(&text).unwrap();
        Kind::new(configs[0].clone(), "gateways").unwrap()
    }

    /// Kuperator's known defect W9 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn an_empty_selector_selects_no_pods() {
        let labelled = pod(&json!({ "app": "web" }));
        let selects =
            |selector| service(&json!({}), &json!({ "selector": selector })).selects(&labelled);
        assert!(selects(json!({ "app": "web" })));
        assert!(!selects(json!({})) && !selects(json!(null)) && !selects(json!({ "app": "x" })));
    }

    #[test]
    fn a_service_without_endpoint_slices_is_unmanaged() {
        let state = |annotations: Value, spec: Value| {
            let metadata = json!({
                "labels": { "kusionstack.io/control": "true" }, "annotations": annotations,
            });
            let employer = service(&metadata, &spec);
            (employer.view().state, employer.view().validation_errors.len())
        };
        let selector = json!({ "app": "web" });
        assert_eq!(state(json!({}), json!({ "selector": selector })), (EmployerState::Active, 0));
        assert_eq!(state(json!({}), json!({})), (EmployerState::Unmanaged, 0));
        let external = json!({ "selector": selector, "type": "ExternalName" });
        assert_eq!(state(json!({}), external), (EmployerState::Unmanaged, 0));
        // The field affects EndpointSlices only, not other backends.
        let unready = json!({ "selector": selector, "publishNotReadyAddresses": true });
        assert_eq!(state(json!({}), unready.clone()), (EmployerState::Active, 1));
        let envoy = json!({ consist::BACKEND: "envoy" });
        assert_eq!(state(envoy, unready), (EmployerState::Active, 0));
    }

    #[test]
    fn validation_errors_name_the_field() {
        let annotations = json!({ consist::DRAIN: "{", consist::BACKEND_PARAMS: "[" });
        let wrong = service(
            &json!({ "annotations": annotations }),
            &json!({ "publishNotReadyAddresses": true }),
        );
        let errors = wrong.view().validation_errors;
        assert_eq!(errors.len(), 2, "{errors:?}");
        let error = Chain(&wrong.for_backend().unwrap_err()).to_string();
        assert!(error.starts_with(consist::BACKEND_PARAMS) && error.contains("EOF"), "{error}");
    }

    #[test]
    fn a_configured_kind_selects_pods_by_its_json_path() {
        let gateway = |path: &str, spec: Value| {
            let labels = json!({ well_known::CONTROL: "true" });
            let whole = json!({ "metadata": { "labels": labels }, "spec": spec });
            SlimEmployer::new(&gateways(path), serde_json::from_value(whole).unwrap())
        };
        let web = pod(&json!({ "app": "web" }));
        let other = pod(&json!({ "app": "x" }));
        let plain = gateway(".spec.pods", json!({ "pods": { "app": "web" } }));
        assert!(plain.selects(&web) && !plain.selects(&other) && plain.is_managed_or_releasing());
        let expressions = json!([{ "key": "app", "operator": "In", "values": ["web"] }]);
        let deep = json!({ "pools": [{ "pods": { "matchExpressions": expressions } }] });
        let deep = gateway("$.spec.pools[0].pods", deep);
        assert!(deep.selects(&web) && !deep.selects(&other));
        assert_eq!(plain.backend(), None, "configured kinds have no default backend");
        assert!(!gateway(".spec.pods", json!({})).selects(&web));
        let errors = gateway(".spec.pods", json!({ "pods": "web" })).view().validation_errors;
        assert!(errors[0].contains("pods"), "{errors:?}");
    }
}
