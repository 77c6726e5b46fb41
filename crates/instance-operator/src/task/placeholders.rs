//! Placeholders for the values of Secrets: if a template renders differently with placeholders, the
//! result depends on such a value.

use std::collections::BTreeMap;

use podops_api::kudo::ParameterSource;
use serde_json::{Value, json};

use super::context::TaskContext;
use crate::redaction::secret_values;

/// Parameters with placeholders.
pub(super) struct Placeholders<'a> {
    /// Sources of the replaced values, by placeholder.
    pub(super) sources: BTreeMap<String, &'a ParameterSource>,
    /// All parameters.
    pub(super) parameters: BTreeMap<String, Value>,
}

impl<'a> Placeholders<'a> {
    /// Returns the parameters of an Instance with placeholders; `None` if no value is secret.
    pub(super) fn of(context: &TaskContext<'a>) -> Option<Self> {
        let sources: BTreeMap<String, &ParameterSource> = secret_values(context.observed)
            .map(|(source, _)| (format!("placeholder-of-parameter-{}", source.name), source))
            .collect();
        if sources.is_empty() {
            return None;
        }
        let mut parameters = context.parameters.clone();
        for (placeholder, source) in &sources {
            parameters.insert(source.name.clone(), json!(placeholder));
        }
        Some(Self { sources, parameters })
    }
}
