//! Employers of any kind, read down to what planning needs.

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

/// The backend that Kubernetes itself is.
pub(super) const ENDPOINTSLICE: &str = "endpointslice";

/// A kind whose objects send traffic to Pods, as the operator is told of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Told {
    /// Its group and version.
    api_version: String,
    /// Its kind.
    kind: String,
    /// Which of its objects are under control.
    #[serde(default = "under_control")]
    label_selector: LabelSelector,
    /// Where in an object its selector of Pods is: a map of labels, or a LabelSelector.
    pod_selector: String,
}

fn under_control() -> LabelSelector {
    let labels =
        BTreeMap::from([(well_known::CONTROL.to_owned(), well_known::CONTROL_ON.to_owned())]);
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

/// Reads the kinds that the operator is told of, from a YAML file.
///
/// # Errors
///
/// If the file cannot be read or makes no sense.
pub(super) fn told(path: &Path) -> anyhow::Result<Vec<Told>> {
    let here = || format!("the employers' kinds in {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", here()))?;
    let told: Vec<Told> = serde_saphyr::from_str(&text).with_context(here)?;
    refuse_twins(&told).with_context(here)?;
    told.iter().try_for_each(|told| {
        Kind::new(told.clone(), "").map(drop).with_context(|| format!("kind {}", told.kind))
    })?;
    Ok(told)
}

/// Refuses kinds of one name: what an employer puts on a Pod names its kind, and not its group.
fn refuse_twins(told: &[Told]) -> anyhow::Result<()> {
    let mut known = BTreeSet::from([consist::SERVICE]);
    let twin = told.iter().find(|told| !known.insert(&told.kind));
    twin.map_or(Ok(()), |twin| Err(anyhow::anyhow!("there are two kinds called {}", twin.kind)))
}

impl Told {
    /// What the API server knows it by.
    pub(super) fn gvk(&self) -> GroupVersionKind {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        GroupVersionKind::gvk(group, version, &self.kind)
    }
}

/// A kind whose objects send traffic to Pods.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) resource: write::Resource,
    pub(super) api: ApiResource,
    name: &'static str,
    /// The backend of those that name none.
    usual: Option<&'static str>,
    controlled: Selector,
    pods: JpQuery,
}

/// There are as many of these as the operator is told of at its start.
fn forever(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

impl Kind {
    /// Services, which everybody has, and the backend of those that name none.
    pub(super) fn services(usual: &str) -> anyhow::Result<Self> {
        let told = Told {
            api_version: "v1".to_owned(),
            kind: consist::SERVICE.to_owned(),
            label_selector: under_control(),
            pod_selector: ".spec.selector".to_owned(),
        };
        let usual = Some(forever(usual));
        Ok(Self { resource: SERVICES, usual, ..Self::new(told, "services")? })
    }

    /// A kind with its plural.
    ///
    /// # Errors
    ///
    /// If its selector or its path make no sense.
    pub(super) fn new(told: Told, plural: &str) -> anyhow::Result<Self> {
        let api = ApiResource::from_gvk_with_plural(&told.gvk(), plural);
        let path = told.pod_selector.trim_start_matches('$');
        Ok(Self {
            resource: write::Resource {
                group: forever(&api.group),
                version: forever(&api.version),
                plural: forever(plural),
            },
            name: forever(&told.kind),
            usual: None,
            controlled: told.label_selector.try_into().context("labelSelector")?,
            pods: parse_json_path(&format!("${path}")).context("podSelector")?,
            api,
        })
    }

    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Reads an event about an object down to what planning needs.
    pub(super) fn slim_event(&self, event: Event<DynamicObject>) -> Event<SlimEmployer> {
        match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(self.slim(object)),
            Event::Apply(object) => Event::Apply(self.slim(object)),
            Event::Delete(object) => Event::Delete(self.slim(object)),
        }
    }

    pub(super) fn slim(&self, object: DynamicObject) -> SlimEmployer {
        let mut metadata = object.metadata;
        metadata.owner_references = None;
        if let Some(annotations) = &mut metadata.annotations {
            // That there are some decides how one is added.
            let ours = |key: &str| key.starts_with("resource-consist.kusionstack.io/");
            annotations.iter_mut().filter(|(key, _)| !ours(key)).for_each(|(_, v)| v.clear());
        }
        let labels = metadata.labels.clone().unwrap_or_default();
        let (pods, fault) = match self.selector(&object.data) {
            Ok(selector) => (selector, None),
            Err(fault) => (None, Some(fault)),
        };
        let is_service = self.name == consist::SERVICE;
        let says = |at: &str, what: Value| is_service && object.data.pointer(at) == Some(&what);
        let always = says("/spec/publishNotReadyAddresses", json!(true));
        let nowhere = says("/spec/type", json!("ExternalName"));
        let mut employer = SlimEmployer {
            kind: self.name,
            usual: self.usual,
            controlled: self.controlled.matches(&labels),
            pods: pods.filter(|_| !nowhere),
            fault,
            metadata,
        };
        if always && employer.is_by_slices() {
            let told = "spec.publishNotReadyAddresses keeps traffic on Pods";
            employer.fault.get_or_insert(told.to_owned());
        }
        employer
    }

    /// What selects an object's Pods; nothing if it selects none, as an empty selector of a Service.
    fn selector(&self, object: &Value) -> Result<Option<Selector>, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", self.pods);
        let found = js_path_process(&self.pods, object).map_err(|error| wrong(&error))?;
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

/// The parts of an employer that planning needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SlimEmployer {
    pub(super) metadata: ObjectMeta,
    /// Its kind.
    #[serde(skip)]
    pub(super) kind: &'static str,
    /// The backend of its kind.
    #[serde(skip)]
    usual: Option<&'static str>,
    /// Whether it is under control.
    #[serde(skip)]
    controlled: bool,
    /// What selects its Pods.
    #[serde(skip)]
    pods: Option<Selector>,
    /// What is wrong with it.
    #[serde(skip)]
    fault: Option<String>,
}

/// To caches: each holds objects of one kind, and asks nobody which.
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

    /// The backend that its traffic goes through, if it has one.
    pub(super) fn backend(&self) -> Option<&str> {
        self.annotation(consist::BACKEND).or(self.usual)
    }

    /// Whether it sends traffic by EndpointSlices, which Kubernetes keeps.
    fn is_by_slices(&self) -> bool {
        self.backend() == Some(ENDPOINTSLICE)
    }

    /// As its backend knows it.
    ///
    /// # Errors
    ///
    /// If what it tells its backend cannot be read.
    pub(super) fn as_asked(&self) -> Result<backend::Employer, String> {
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
            holds: false,
        })
    }

    /// Whether it is under control, or was.
    pub(super) fn is_managed_or_releasing(&self) -> bool {
        self.controlled || self.metadata.finalizers.iter().flatten().any(|f| is_ours(f))
    }

    /// Whether somebody else holds it, such as the cloud controller of its load balancer, which sends
    /// traffic until then.
    fn is_kept_by_others(&self) -> bool {
        self.is_by_slices() && !self.metadata.finalizers.iter().flatten().all(|f| is_ours(f))
    }

    /// Whether it selects a Pod; an empty selector selects none.
    pub(super) fn selects(&self, pod: &SlimPod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        self.pods.as_ref().zip(labels).is_some_and(|(selector, labels)| selector.matches(labels))
    }

    /// What events refer to.
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

    /// The employer as planning sees it.
    pub(super) fn view(&self) -> EmployerView {
        let metadata = &self.metadata;
        // Nobody keeps the slices of a Service without a selector.
        let is_plain = self.is_by_slices() && self.pods.is_none() && self.fault.is_none();
        let state = if !self.controlled || is_plain {
            EmployerState::Unmanaged
        } else if metadata.deletion_timestamp.is_none() || self.is_kept_by_others() {
            EmployerState::Active
        } else if self.is_by_slices() {
            // Its traffic ends with the Service itself, and not before.
            EmployerState::Unmanaged
        } else {
            EmployerState::Deleting
        };
        let mut faults = Vec::new();
        let drain = self.annotation(consist::DRAIN).map_or(Ok(DrainPolicy::default()), |text| {
            DrainPolicy::read(text).map_err(|error| format!("{}: {error}", consist::DRAIN))
        });
        let drain = drain.unwrap_or_else(|fault| {
            faults.push(fault);
            DrainPolicy::default()
        });
        faults.extend(self.fault.clone());
        EmployerView {
            kind: self.kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotated: metadata.annotations.is_some(),
            reported_finalizer: self.annotation(consist::FINALIZER).map(ToOwned::to_owned),
            state,
            drain,
            faults,
        }
    }
}

/// Whether an employer's finalizer is this operator's, in today's spelling or an earlier one.
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
        let told =
            format!("- apiVersion: example.com/v1\n  kind: Gateway\n  podSelector: {path}\n");
        let told: Vec<Told> = serde_saphyr::from_str(&told)?;
        Kind::new(told[0].clone(), "gateways")
    }

    #[test]
    fn w9_an_empty_selector_selects_nobody() {
        let labelled = pod(&json!({ "app": "web" }));
        let selects =
            |selector| service(&json!({}), &json!({ "selector": selector })).selects(&labelled);
        assert!(selects(json!({ "app": "web" })));
        assert!(!selects(json!({})) && !selects(json!(null)) && !selects(json!({ "app": "x" })));
    }

    #[test]
    fn a_service_that_sends_no_traffic_by_itself_employs_nobody() {
        let state = |annotations: Value, spec: Value| {
            let metadata = json!({
                "labels": { "kusionstack.io/control": "true" }, "annotations": annotations,
            });
            let employer = service(&metadata, &spec);
            (employer.view().state, employer.view().faults.len())
        };
        let selector = json!({ "app": "web" });
        assert_eq!(state(json!({}), json!({ "selector": selector })), (EmployerState::Active, 0));
        assert_eq!(state(json!({}), json!({})), (EmployerState::Unmanaged, 0));
        let external = json!({ "selector": selector, "type": "ExternalName" });
        assert_eq!(state(json!({}), external), (EmployerState::Unmanaged, 0));
        // What Kubernetes does with addresses is no matter of who drives another backend.
        let always = json!({ "selector": selector, "publishNotReadyAddresses": true });
        assert_eq!(state(json!({}), always.clone()), (EmployerState::Active, 1));
        assert_eq!(state(json!({ consist::BACKEND: "envoy" }), always), (EmployerState::Active, 0));
    }

    #[test]
    fn what_a_service_says_wrong_is_told_with_its_field() {
        let annotations = json!({ consist::DRAIN: "{", consist::BACKEND_PARAMS: "[" });
        let wrong = service(
            &json!({ "annotations": annotations }),
            &json!({ "publishNotReadyAddresses": true }),
        );
        let faults = wrong.view().faults;
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(wrong.as_asked().unwrap_err().contains(consist::BACKEND_PARAMS));
    }

    #[test]
    fn any_kind_with_a_selector_somewhere_employs_pods() {
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
        assert_eq!(plain.backend(), None, "it has to name one");
        assert!(!gateway(".spec.pods", json!({})).selects(&web));
        let garbled = gateway(".spec.pods", json!({ "pods": "web" }));
        assert!(garbled.view().faults[0].contains("pods"), "{:?}", garbled.view().faults);
    }

    #[test]
    fn a_kind_that_makes_no_sense_is_refused_at_the_start() {
        assert!(gateways("spec[").is_err());
        assert!(serde_saphyr::from_str::<Vec<Told>>("- kind: Gateway").is_err());
        let of = |kind: &str| Told {
            api_version: "example.com/v1".to_owned(),
            kind: kind.to_owned(),
            label_selector: under_control(),
            pod_selector: ".spec".to_owned(),
        };
        assert!(refuse_twins(&[of("Gateway"), of("Ingress")]).is_ok());
        assert!(refuse_twins(&[of("Gateway"), of("Gateway")]).is_err());
        assert!(refuse_twins(&[of("Service")]).is_err(), "Knative has one too");
    }
}
