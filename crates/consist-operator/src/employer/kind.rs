//! Kinds of employers: Services, and the kinds of the file of `--employer-kinds`.

use std::collections::{BTreeMap, BTreeSet};

use jsonpath_rust::{
    parser::{errors::JsonPathError, model::JpQuery, parse_json_path},
    query::js_path_process,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ApiResource, GroupVersionKind, ParseExpressionError, Selector, SelectorExt as _};
use podops_api::{consist, well_known};
use podops_client::write;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::render::SERVICES;

/// Configuration of a kind of employers: one entry of the file of `--employer-kinds`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EmployerKindConfig {
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

/// Reasons for which the configuration of kinds is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKinds {
    /// The text is not YAML of the expected form.
    #[error(transparent)]
    Malformed(#[from] serde_saphyr::Error),
    /// Two kinds have the same name in different groups: finalizers and available conditions on
    /// Pods contain the kind but not the group.
    #[error("kind {kind} is defined more than once")]
    Duplicate {
        /// Name of the kind.
        kind: String,
    },
    /// One kind is invalid.
    #[error("kind {kind}")]
    Kind {
        /// Name of the kind.
        kind: String,
        /// Its invalid field.
        source: InvalidKind,
    },
}

/// Reasons for which the configuration of one kind is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKind {
    /// `labelSelector` is not a selector.
    #[error("labelSelector")]
    LabelSelector(#[source] ParseExpressionError),
    /// `podSelector` is not a JSONPath.
    #[error("podSelector")]
    PodSelector(#[source] JsonPathError),
}

impl EmployerKindConfig {
    /// Parses the file of `--employer-kinds`.
    ///
    /// # Errors
    ///
    /// [`InvalidKinds`] if it is malformed, or defines a kind twice.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, InvalidKinds> {
        let configs: Vec<Self> = serde_saphyr::from_str(text)?;
        reject_duplicates(&configs)?;
        for config in &configs {
            Kind::new(config.clone(), "")
                .map_err(|source| InvalidKinds::Kind { kind: config.kind.clone(), source })?;
        }
        Ok(configs)
    }

    /// Returns group, version and kind.
    #[must_use]
    pub fn gvk(&self) -> GroupVersionKind {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        GroupVersionKind::gvk(group, version, &self.kind)
    }
}

fn reject_duplicates(configs: &[EmployerKindConfig]) -> Result<(), InvalidKinds> {
    let mut known = BTreeSet::from([consist::SERVICE]);
    match configs.iter().find(|config| !known.insert(&config.kind)) {
        Some(duplicate) => Err(InvalidKinds::Duplicate { kind: duplicate.kind.clone() }),
        None => Ok(()),
    }
}

/// A kind of employers.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Resource for writes.
    pub resource: write::Resource,
    /// Resource for reads.
    pub api: ApiResource,
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
    ///
    /// # Errors
    ///
    /// None: its configuration is valid.
    pub fn services(default_backend: &str) -> Result<Self, InvalidKind> {
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
    /// [`InvalidKind`] if `labelSelector` or `podSelector` is invalid.
    pub fn new(config: EmployerKindConfig, plural: &str) -> Result<Self, InvalidKind> {
        let api = ApiResource::from_gvk_with_plural(&config.gvk(), plural);
        let controlled = config.label_selector.try_into().map_err(InvalidKind::LabelSelector)?;
        let path = format!("${}", config.pod_selector.trim_start_matches('$'));
        Ok(Self {
            resource: write::Resource {
                group: leak(&api.group),
                version: leak(&api.version),
                plural: leak(plural),
            },
            name: leak(&config.kind),
            default_backend: None,
            controlled,
            pod_selector: parse_json_path(&path).map_err(InvalidKind::PodSelector)?,
            api,
        })
    }

    /// Returns the name of the kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the backend of employers without the backend annotation.
    #[must_use]
    pub fn default_backend(&self) -> Option<&'static str> {
        self.default_backend
    }

    /// Returns whether an object with these labels is under control.
    #[must_use]
    pub fn controls(&self, labels: &BTreeMap<String, String>) -> bool {
        self.controlled.matches(labels)
    }

    /// Returns the Pod selector of an object; `None` if it selects no Pods, such as the empty
    /// selector of a Service.
    ///
    /// # Errors
    ///
    /// [`InvalidSelector`] if the JSONPath finds several values, or no selector.
    pub fn read_selector(&self, object: &Value) -> Result<Option<Selector>, InvalidSelector> {
        let found = js_path_process(&self.pod_selector, object)
            .map_err(|source| self.invalid_selector(SelectorCause::Path(source)))?;
        let value = match &found[..] {
            [] => return Ok(None),
            [one] => one.clone().val(),
            more => {
                return Err(self.invalid_selector(SelectorCause::Several { count: more.len() }));
            }
        };
        if value.is_null() {
            return Ok(None);
        }
        let selector = parse_selector(value).map_err(|cause| self.invalid_selector(cause))?;
        Ok(Some(selector).filter(|selector| !selector.selects_all()))
    }

    fn invalid_selector(&self, source: SelectorCause) -> InvalidSelector {
        InvalidSelector { path: self.pod_selector.to_string(), source }
    }
}

/// Parses a map of labels or a LabelSelector.
fn parse_selector(value: &Value) -> Result<Selector, SelectorCause> {
    let is_labels = value.get("matchLabels").is_none() && value.get("matchExpressions").is_none();
    let whole = if is_labels { json!({ "matchLabels": value }) } else { value.clone() };
    let selector: LabelSelector = serde_json::from_value(whole)?;
    Ok(selector.try_into()?)
}

/// Reason for which the Pod selector of an object cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}")]
pub struct InvalidSelector {
    /// JSONPath of the selector.
    path: String,
    source: SelectorCause,
}

/// Error in a Pod selector.
#[derive(Debug, thiserror::Error)]
pub enum SelectorCause {
    /// The JSONPath does not apply to the object.
    #[error(transparent)]
    Path(#[from] JsonPathError),
    /// The JSONPath finds several values.
    #[error("{count} selectors")]
    Several {
        /// Number of values.
        count: usize,
    },
    /// The value is not a selector.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// An expression of the selector is invalid.
    #[error(transparent)]
    Expression(#[from] ParseExpressionError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_or_duplicate_kind_is_rejected_at_startup() {
        let error = |text: &str| match EmployerKindConfig::parse_all(text) {
            Ok(_) => String::new(),
            Err(InvalidKinds::Kind { kind, source }) => format!("{kind}: {source}"),
            Err(error) => error.to_string(),
        };
        let kind = |kind: &str, path: &str| {
            format!("- {{apiVersion: example.com/v1, kind: {kind}, podSelector: \"{path}\"}}\n")
        };
        let gateway = kind("Gateway", ".spec");
        let ingress = kind("Ingress", ".spec");
        assert_eq!(error(&kind("Gateway", "spec[")), "Gateway: podSelector");
        assert!(error("- kind: Gateway").contains("missing field"));
        assert_eq!(error(&format!("{gateway}{ingress}")), "");
        let twice = "kind Gateway is defined more than once";
        assert_eq!(error(&format!("{gateway}{gateway}")), twice);
        // Knative has this kind, too.
        let service = "kind Service is defined more than once";
        assert_eq!(error(&kind("Service", ".spec")), service);
    }
}
