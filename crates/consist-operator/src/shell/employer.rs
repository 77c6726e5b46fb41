//! Employers of any kind, reduced to the fields that planning needs.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Context as _;
use jsonpath_rust::{
    parser::{model::JpQuery, parse_json_path},
    query::js_path_process,
};
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    Resource,
    core::{ApiResource, DynamicObject, GroupVersionKind, Selector, SelectorExt as _},
    runtime::watcher::Event,
};
use podops_api::{consist, well_known};
use podops_runtime::write;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::observe::SlimPod;
use crate::{
    backend,
    policy::DrainPolicy,
    render::SERVICES,
    view::{EmployerState, EmployerView},
};

/// Backend that is Kubernetes' own routing by EndpointSlices.
pub(super) const ENDPOINTSLICE: &str = "endpointslice";

/// Configuration of a kind of employers: one entry of the file of `--employer-kinds`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EmployerKindConfig {
    /// API group and version.
    api_version: String,
    /// Kind.
    kind: String,
    /// Selects the objects under control. Defaults to the label `kusionstack.io/control: "true"`.
    #[serde(default = "under_control")]
    label_selector: LabelSelector,
    /// JSONPath of an object's Pod selector, which is a map of labels or a LabelSelector.
    pod_selector: String,
}

fn under_control() -> LabelSelector {
    let labels =
        BTreeMap::from([(well_known::CONTROL.to_owned(), well_known::CONTROL_ON.to_owned())]);
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

/// Reads the file of `--employer-kinds`.
///
/// # Errors
///
/// If the file cannot be read, is malformed, or defines a kind twice.
pub(super) fn read_kinds(path: &Path) -> anyhow::Result<Vec<EmployerKindConfig>> {
    let file = || format!("employer kinds in {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", file()))?;
    let configs: Vec<EmployerKindConfig> = serde_saphyr::from_str(&text).with_context(file)?;
    reject_duplicates(&configs).with_context(file)?;
    configs.iter().try_for_each(|config| {
        Kind::new(config.clone(), "").map(drop).with_context(|| format!("kind {}", config.kind))
    })?;
    Ok(configs)
}

/// Rejects two kinds of one name in different groups, because finalizers and available conditions
/// on Pods contain the kind but not the group.
fn reject_duplicates(configs: &[EmployerKindConfig]) -> anyhow::Result<()> {
    let mut known = BTreeSet::from([consist::SERVICE]);
    let duplicate = configs.iter().find(|config| !known.insert(&config.kind));
    duplicate.map_or(Ok(()), |duplicate| {
        Err(anyhow::anyhow!("kind {} is defined more than once", duplicate.kind))
    })
}

impl EmployerKindConfig {
    /// Returns group, version and kind.
    pub(super) fn gvk(&self) -> GroupVersionKind {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        GroupVersionKind::gvk(group, version, &self.kind)
    }
}

/// A kind of employers.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Resource for writes.
    pub(super) resource: write::Resource,
    /// Resource for reads.
    pub(super) api: ApiResource,
    name: &'static str,
    /// Backend of employers without the backend annotation.
    default_backend: Option<&'static str>,
    /// Selects the employers under control.
    controlled: Selector,
    /// JSONPath of the Pod selector.
    pod_selector: JpQuery,
}

/// Leaks a string. The number of calls is bounded by the configured kinds.
fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

impl Kind {
    /// Returns the built-in kind, Services, with their default backend.
    pub(super) fn services(default_backend: &str) -> anyhow::Result<Self> {
        let config = EmployerKindConfig {
            api_version: "v1".to_owned(),
            kind: consist::SERVICE.to_owned(),
            label_selector: under_control(),
            pod_selector: ".spec.selector".to_owned(),
        };
        let default_backend = Some(leak(default_backend));
        Ok(Self { resource: SERVICES, default_backend, ..Self::new(config, "services")? })
    }

    /// Returns a configured kind with its plural name.
    ///
    /// # Errors
    ///
    /// If `labelSelector` or `podSelector` is invalid.
    pub(super) fn new(config: EmployerKindConfig, plural: &str) -> anyhow::Result<Self> {
        let api = ApiResource::from_gvk_with_plural(&config.gvk(), plural);
        let path = config.pod_selector.trim_start_matches('$');
        Ok(Self {
            resource: write::Resource {
                group: leak(&api.group),
                version: leak(&api.version),
                plural: leak(plural),
            },
            name: leak(&config.kind),
            default_backend: None,
            controlled: config.label_selector.try_into().context("labelSelector")?,
            pod_selector: parse_json_path(&format!("${path}")).context("podSelector")?,
            api,
        })
    }

    /// Returns the name of the kind.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Reduces the object of a watch event to the fields that planning needs.
    pub(super) fn slim_event(&self, event: Event<DynamicObject>) -> Event<SlimEmployer> {
        match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(self.slim(object)),
            Event::Apply(object) => Event::Apply(self.slim(object)),
            Event::Delete(object) => Event::Delete(self.slim(object)),
        }
    }

    /// Reduces an object to the fields that planning needs.
    pub(super) fn slim(&self, object: DynamicObject) -> SlimEmployer {
        let mut metadata = object.metadata;
        metadata.owner_references = None;
        if let Some(annotations) = &mut metadata.annotations {
            // Keys stay, because a JSON patch must know whether the map exists.
            let ours = |key: &str| key.starts_with("resource-consist.kusionstack.io/");
            annotations.iter_mut().filter(|(key, _)| !ours(key)).for_each(|(_, v)| v.clear());
        }
        let labels = metadata.labels.clone().unwrap_or_default();
        let (pod_selector, error) = match self.read_selector(&object.data) {
            Ok(selector) => (selector, None),
            Err(error) => (None, Some(error)),
        };
        let is_service = self.name == consist::SERVICE;
        let has = |at: &str, value: Value| is_service && object.data.pointer(at) == Some(&value);
        let publishes_unready = has("/spec/publishNotReadyAddresses", json!(true));
        let is_external = has("/spec/type", json!("ExternalName"));
        let mut employer = SlimEmployer {
            kind: self.name,
            default_backend: self.default_backend,
            controlled: self.controlled.matches(&labels),
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

    /// Returns the Pod selector of an object; `None` if it selects no Pods, such as the empty
    /// selector of a Service.
    fn read_selector(&self, object: &Value) -> Result<Option<Selector>, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", self.pod_selector);
        let found = js_path_process(&self.pod_selector, object).map_err(|error| wrong(&error))?;
        let found = match &found[..] {
            [] => return Ok(None),
            [one] => one.clone().val(),
            more => return Err(wrong(&format!("{} selectors", more.len()))),
        };
        if found.is_null() {
            return Ok(None);
        }
        let is_labels =
            found.get("matchLabels").is_none() && found.get("matchExpressions").is_none();
        let whole = if is_labels { json!({ "matchLabels": found }) } else { found.clone() };
        let read: LabelSelector = serde_json::from_value(whole).map_err(|error| wrong(&error))?;
        let selector: Selector = read.try_into().map_err(|error| wrong(&error))?;
        Ok(Some(selector).filter(|selector| !selector.selects_all()))
    }
}

/// Fields of an employer that planning needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SlimEmployer {
    pub(super) metadata: ObjectMeta,
    /// Kind.
    #[serde(skip)]
    pub(super) kind: &'static str,
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
    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the name of the backend that routes its traffic.
    pub(super) fn backend(&self) -> Option<&str> {
        self.annotation(consist::BACKEND).or(self.default_backend)
    }

    /// Returns whether its traffic is routed by EndpointSlices, which Kubernetes maintains.
    fn uses_endpoint_slices(&self) -> bool {
        self.backend() == Some(ENDPOINTSLICE)
    }

    /// Returns the employer as passed to its backend.
    ///
    /// # Errors
    ///
    /// If the annotation with the backend's parameters is not JSON.
    pub(super) fn for_backend(&self) -> Result<backend::Employer, String> {
        let params = self.annotation(consist::BACKEND_PARAMS).map_or(Ok(Value::Null), |text| {
            serde_json::from_str(text)
                .map_err(|error| format!("{}: {error}", consist::BACKEND_PARAMS))
        })?;
        let metadata = &self.metadata;
        Ok(backend::Employer {
            kind: self.kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            params,
            protects_pods: false,
        })
    }

    /// Returns whether the employer is under control, or was and still has this operator's
    /// finalizer.
    pub(super) fn is_managed_or_releasing(&self) -> bool {
        self.controlled || self.metadata.finalizers.iter().flatten().any(|f| is_ours(f))
    }

    /// Returns whether another controller's finalizer keeps an employer that uses EndpointSlices,
    /// such as that of a cloud's load balancer, which routes traffic until then.
    fn has_other_finalizers(&self) -> bool {
        self.uses_endpoint_slices()
            && !self.metadata.finalizers.iter().flatten().all(|f| is_ours(f))
    }

    /// Returns whether the employer selects a Pod. An empty selector selects none.
    pub(super) fn selects(&self, pod: &SlimPod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        self.pod_selector
            .as_ref()
            .zip(labels)
            .is_some_and(|(selector, labels)| selector.matches(labels))
    }

    /// Returns the reference for events.
    pub(super) fn reference(&self, kind: &Kind) -> ObjectReference {
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

    /// Returns the input of planning.
    pub(super) fn view(&self) -> EmployerView {
        let metadata = &self.metadata;
        // Kubernetes maintains no EndpointSlices for a Service without a selector.
        let has_no_slices =
            self.uses_endpoint_slices() && self.pod_selector.is_none() && self.error.is_none();
        let state = if !self.controlled || has_no_slices {
            EmployerState::Unmanaged
        } else if metadata.deletion_timestamp.is_none() || self.has_other_finalizers() {
            EmployerState::Active
        } else if self.uses_endpoint_slices() {
            // Traffic ends only when the Service object is deleted.
            EmployerState::Unmanaged
        } else {
            EmployerState::Deleting
        };
        let mut validation_errors = Vec::new();
        let drain = self.annotation(consist::DRAIN).map_or(Ok(DrainPolicy::default()), |text| {
            DrainPolicy::parse(text).map_err(|error| format!("{}: {error}", consist::DRAIN))
        });
        let drain = drain.unwrap_or_else(|error| {
            validation_errors.push(error);
            DrainPolicy::default()
        });
        validation_errors.extend(self.error.clone());
        EmployerView {
            kind: self.kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            has_annotations: metadata.annotations.is_some(),
            reported_finalizer: self.annotation(consist::FINALIZER).map(ToOwned::to_owned),
            state,
            drain,
            validation_errors,
        }
    }
}

/// Returns whether an employer's finalizer is this operator's, by its current or a former name.
fn is_ours(finalizer: &str) -> bool {
    finalizer.starts_with(consist::OLD_CLEAN_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(metadata: &Value, spec: &Value) -> SlimEmployer {
        let whole = json!({ "metadata": metadata, "spec": spec });
        Kind::services(ENDPOINTSLICE).unwrap().slim(serde_json::from_value(whole).unwrap())
    }

    fn pod(labels: &Value) -> SlimPod {
        serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap()
    }

    fn gateways(path: &str) -> anyhow::Result<Kind> {
        let text =
            format!("- apiVersion: example.com/v1\n  kind: Gateway\n  podSelector: {path}\n");
        let configs: Vec<EmployerKindConfig> = serde_saphyr::from_str(&text)?;
        Kind::new(configs[0].clone(), "gateways")
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
        assert!(wrong.for_backend().unwrap_err().contains(consist::BACKEND_PARAMS));
    }

    #[test]
    fn a_configured_kind_selects_pods_by_its_json_path() {
        let gateway = |path: &str, spec: Value| {
            let labels = json!({ well_known::CONTROL: "true" });
            let whole = json!({ "metadata": { "labels": labels }, "spec": spec });
            gateways(path).unwrap().slim(serde_json::from_value(whole).unwrap())
        };
        let (web, other) = (pod(&json!({ "app": "web" })), pod(&json!({ "app": "x" })));
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

    #[test]
    fn an_invalid_or_duplicate_kind_is_rejected_at_startup() {
        assert!(gateways("spec[").is_err());
        assert!(serde_saphyr::from_str::<Vec<EmployerKindConfig>>("- kind: Gateway").is_err());
        let config = |kind: &str| EmployerKindConfig {
            api_version: "example.com/v1".to_owned(),
            kind: kind.to_owned(),
            label_selector: under_control(),
            pod_selector: ".spec".to_owned(),
        };
        assert!(reject_duplicates(&[config("Gateway"), config("Ingress")]).is_ok());
        assert!(reject_duplicates(&[config("Gateway"), config("Gateway")]).is_err());
        assert!(reject_duplicates(&[config("Service")]).is_err(), "Knative has this kind, too");
    }
}
