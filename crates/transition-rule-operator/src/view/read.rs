//! Converts API objects to the views that planning uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::{ParseExpressionError, Selector};
use podops_api::{
    lifecycle::PodLifecycle,
    transition_rule::{PodTransitionRule, TransitionRule},
    well_known,
};
use serde::Deserialize;

use super::{InvalidOverride, Owner, PodView, Rule, RuleView};
use crate::rules::{cel, kind::Kind, schedule::is_zone};

impl RuleView {
    /// Reads a PodTransitionRule, without the rules of the kinds in `skipped`.
    ///
    /// # Errors
    ///
    /// If `spec.selector` is invalid; the API server rejects such objects.
    pub fn read(
        rule: &PodTransitionRule,
        skipped: &BTreeSet<String>,
    ) -> Result<Self, ParseExpressionError> {
        let metadata = &rule.metadata;
        let mut rules = Vec::new();
        let mut validation_errors = Vec::new();
        for spec in rule.spec.rules.iter().filter(|spec| is_active(spec, skipped)) {
            rules.push(Rule::compile(spec, &mut validation_errors));
        }
        Ok(Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            version: metadata.resource_version.clone().unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            selector: Selector::try_from(rule.spec.selector.clone())?,
            rules,
            validation_errors,
            status: rule.status.clone().unwrap_or_default(),
        })
    }
}

/// Returns true if the rule is enabled and of a known kind that is not in `skipped`.
fn is_active(spec: &TransitionRule, skipped: &BTreeSet<String>) -> bool {
    !spec.disabled
        && spec.conditions.is_empty()
        && Kind::of(spec).is_some_and(|kind| !skipped.contains(kind.as_str()))
}

impl Rule {
    /// Compiles the selectors and the expression of a rule. Adds the errors to `validation_errors`,
    /// each with its field.
    fn compile(spec: &TransitionRule, validation_errors: &mut Vec<String>) -> Self {
        let mut errors = FieldErrors { rule: &spec.name, texts: validation_errors };
        let filter = spec.filter.as_ref().and_then(|filter| filter.label_selector.as_ref());
        let requires = spec.label_check.as_ref().map(|check| &check.requires);
        let filter_selector =
            filter.and_then(|selector| errors.selector("filter.labelSelector", selector));
        let required_labels =
            requires.and_then(|selector| errors.selector("labelCheck.requires", selector));
        let expression = spec.cel.as_ref().map(|spec| cel::compile(&spec.expression));
        if let Some(Err(error)) = &expression {
            errors.add("cel.expression", error);
        }
        if let Some(schedule) = &spec.schedule
            && !is_zone(&schedule.time_zone)
        {
            let error = format!("unknown time zone {}", schedule.time_zone);
            errors.add("schedule.timeZone", &error);
        }
        Self {
            stage: spec.stage.unwrap_or_default(),
            filter: filter_selector,
            requires: required_labels,
            expression,
            spec: spec.clone(),
        }
    }
}

/// Errors in the fields of one rule.
struct FieldErrors<'a> {
    rule: &'a str,
    texts: &'a mut Vec<String>,
}

impl FieldErrors<'_> {
    fn add(&mut self, field: &str, error: &impl fmt::Display) {
        self.texts.push(format!("spec.rules[{}].{field}: {error}", self.rule));
    }

    /// Converts a selector. Returns `None` and adds the error if it is invalid.
    fn selector(&mut self, field: &str, selector: &LabelSelector) -> Option<Selector> {
        Selector::try_from(selector.clone()).map_err(|error| self.add(field, &error)).ok()
    }
}

/// Returns the resourceVersion as a number; numbers of one API server are comparable.
pub(crate) fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}

/// Value of the skip annotation.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SkippedRules {
    skip_rules: BTreeSet<String>,
}

impl PodView {
    /// Reads the metadata of a Pod; node, readiness and full object stay unset.
    #[must_use]
    pub fn read(metadata: &ObjectMeta) -> Self {
        let labels = metadata.labels.clone().unwrap_or_default();
        let annotations = metadata.annotations.as_ref();
        let skipped: Option<SkippedRules> = annotations
            .and_then(|all| all.get(well_known::SKIP_RULES))
            .and_then(|text| serde_json::from_str(text).ok());
        let break_glass = annotations
            .and_then(|all| all.get(well_known::BREAK_GLASS))
            .map(|text| serde_json::from_str(text).map_err(|error| InvalidOverride(error.into())));
        let details: BTreeMap<String, String> = annotations
            .into_iter()
            .flatten()
            .filter_map(|(key, text)| {
                let rule = key.strip_prefix(well_known::RULE_DETAIL)?.strip_prefix('/')?;
                Some((rule.to_owned(), text.clone()))
            })
            .collect();
        let owner = metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        Self {
            name: metadata.name.clone().unwrap_or_default().into(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            version: version(metadata),
            // Operators ignore Pods with invalid lifecycle labels.
            lifecycle: PodLifecycle::parse(&labels).unwrap_or_default(),
            labels,
            skipped_rules: skipped.unwrap_or_default().skip_rules,
            break_glass,
            details,
            has_annotations: annotations.is_some(),
            owner: owner.map(|o| Owner {
                kind: o.kind.clone(),
                name: o.name.clone(),
                uid: o.uid.as_str().into(),
            }),
            deleting: metadata.deletion_timestamp.is_some(),
            ..Self::default()
        }
    }
}
