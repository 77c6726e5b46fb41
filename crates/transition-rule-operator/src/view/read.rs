//! Converts API objects to the views that planning uses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::{ParseExpressionError, Selector};
use podops_api::{
    lifecycle::PodLifecycle,
    transition_rule::{PodTransitionRule, TransitionRule},
    well_known,
};
use serde::Deserialize;

use super::{Owner, PodView, Rule, RuleView};
use crate::rules::{Kind, cel::Expression};

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
        let is_active = |spec: &&TransitionRule| {
            !spec.disabled
                && spec.conditions.is_empty()
                && Kind::of(spec).is_some_and(|kind| !skipped.contains(kind.as_str()))
        };
        let (mut rules, mut validation_errors) = (Vec::new(), Vec::new());
        for spec in rule.spec.rules.iter().filter(is_active) {
            let mut read = |field: &str, selector: &LabelSelector| {
                let read = Selector::try_from(selector.clone());
                let field_path = format!("spec.rules[{}].{field}", spec.name);
                read.map_err(|error| validation_errors.push(format!("{field_path}: {error}"))).ok()
            };
            let filter = spec.filter.as_ref().and_then(|filter| filter.label_selector.as_ref());
            let requires = spec.label_check.as_ref().map(|check| &check.requires);
            let filter = filter.and_then(|filter| read("filter.labelSelector", filter));
            let requires = requires.and_then(|requires| read("labelCheck.requires", requires));
            let expression = spec.cel.as_ref().map(|cel| Expression::compile(&cel.expression));
            if let Some(Err(error)) = &expression {
                validation_errors
                    .push(format!("spec.rules[{}].cel.expression: {error}", spec.name));
            }
            if let Some(schedule) = &spec.schedule
                && !crate::rules::schedule::is_zone(&schedule.time_zone)
            {
                let zone = &schedule.time_zone;
                validation_errors.push(format!(
                    "spec.rules[{}].schedule.timeZone: unknown time zone {zone}",
                    spec.name
                ));
            }
            rules.push(Rule {
                stage: spec.stage.unwrap_or_default(),
                filter,
                requires,
                expression,
                spec: spec.clone(),
            });
        }
        Ok(Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            selector: Selector::try_from(rule.spec.selector.clone())?,
            rules,
            validation_errors,
            status: rule.status.clone().unwrap_or_default(),
        })
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
        let annotation = |key: &str| annotations.and_then(|a| a.get(key));
        let skipped: Option<SkippedRules> =
            annotation(well_known::SKIP_RULES).and_then(|text| serde_json::from_str(text).ok());
        let break_glass = annotation(well_known::BREAK_GLASS)
            .map(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
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
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
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
                uid: o.uid.clone(),
            }),
            deleting: metadata.deletion_timestamp.is_some(),
            ..Self::default()
        }
    }
}
