//! Removes values of Secrets from messages: templates and the API server may quote such values.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podops_api::kudo::{InstanceStatus, ParameterSource};
use podops_client::event::ObjectEvent;
use serde_json::json;

use crate::view::Observed;

/// Replacement for a value.
pub const REDACTED: &str = "[redacted]";
/// Minimum length in bytes at which a value is replaced wherever it occurs. A shorter value is
/// replaced only in quotes, because it may be part of other words.
const LENGTH_MIN: usize = 4;

/// Returns the references and values of non-empty parameters that come from Secrets or are
/// sensitive.
pub fn secret_values(observed: &Observed) -> impl Iterator<Item = (&ParameterSource, &String)> {
    observed.spec.parameters_from.iter().filter_map(|source| {
        let name = &source.name;
        let value = observed.sources.get(name)?.value.as_ref().filter(|value| !value.is_empty())?;
        let parameter = observed.version.as_ref().and_then(|version| version.parameter(name));
        let is_secret = source.secret_key_ref.is_some() || parameter.is_some_and(|p| p.sensitive);
        is_secret.then_some((source, value))
    })
}

/// Texts that must not appear in a message.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    texts: Vec<String>,
}

impl Redaction {
    /// Returns the texts that must not appear in the messages of an Instance: values from Secrets
    /// and of sensitive parameters, as text, in base64 and as parts of JSON.
    #[must_use]
    pub fn of(observed: &Observed) -> Self {
        let mut texts = Vec::new();
        for (_, value) in secret_values(observed) {
            let quoted = json!(value).to_string();
            let escaped = quoted.trim_matches('"').to_owned();
            let forms = [value.clone(), escaped, STANDARD.encode(value)];
            let forms = forms.into_iter().filter(|form| form.len() >= LENGTH_MIN);
            texts.extend(forms.chain([quoted]));
        }
        Self::new(texts)
    }

    fn new(mut texts: Vec<String>) -> Self {
        // A value may contain a shorter value.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts.dedup();
        Self { texts }
    }

    /// Returns the redaction for messages about two states of an Instance.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self::new(self.texts.into_iter().chain(other.texts.iter().cloned()).collect())
    }

    /// Removes the values from a text.
    pub fn apply(&self, text: &mut String) {
        for secret in &self.texts {
            if text.contains(secret.as_str()) {
                *text = text.replace(secret.as_str(), REDACTED);
            }
        }
    }

    /// Removes the values from the messages of a status.
    pub fn apply_to_status(&self, status: &mut InstanceStatus) {
        if self.texts.is_empty() {
            return;
        }
        for plan in status.plan_status.values_mut() {
            self.apply(&mut plan.message);
            for phase in &mut plan.phases {
                self.apply(&mut phase.message);
                for step in &mut phase.steps {
                    self.apply(&mut step.message);
                }
            }
        }
        for run in &mut status.history {
            self.apply(&mut run.message);
        }
        for condition in &mut status.conditions {
            self.apply(&mut condition.message);
        }
    }

    /// Removes the values from the messages of events.
    pub fn apply_to_events(&self, events: &mut [ObjectEvent]) {
        for event in events {
            self.apply(&mut event.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::SourceValue;

    fn redacted(value: &str, message: &str) -> String {
        let mut observed = Observed {
            spec: serde_json::from_value(json!({
                "parametersFrom": [{ "name": "P", "secretKeyRef": { "name": "s", "key": "k" } }],
            }))
            .unwrap(),
            ..Observed::default()
        };
        let value = SourceValue { value: Some(value.to_owned()), ..SourceValue::default() };
        observed.sources.insert("P".to_owned(), value);
        let mut text = message.to_owned();
        Redaction::of(&observed).apply(&mut text);
        text
    }

    #[test]
    fn values_are_removed_in_every_form() {
        assert_eq!(redacted("hunter2", "no hunter2, aHVudGVyMg=="), "no [redacted], [redacted]");
        assert_eq!(redacted("a\"b\nc", r#"{"p":"a\"b\nc"}"#), r#"{"p":[redacted]}"#);
        assert_eq!(redacted("yes", r#"yesterday "yes""#), "yesterday [redacted]");
        assert_eq!(redacted("", "nothing"), "nothing");
    }
}
