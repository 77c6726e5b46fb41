//! Results of a preview.

use instance_operator::{
    object::object_type,
    object_write::ObjectWrite,
    redaction::{REDACTED, Redaction},
};
use serde::Serialize;
use serde_json::Value;

use super::difference::{FieldChange, changes};

/// Predicted run of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewedRun {
    /// Child Instance, as `<namespace>/<name>`; empty for the Instance that is changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub child: String,
    /// Name of the plan; empty if unknown.
    pub plan: String,
    /// Reason for the run.
    pub reason: String,
    /// Steps, in order.
    pub steps: Vec<PreviewedStep>,
    /// Objects that are no longer in the templates, and would be deleted at the end.
    pub pruned: Vec<ObjectChange>,
    /// Objects that are no longer in the templates and cannot be deleted, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_pruned: Vec<String>,
    /// Error with which the run would fail, or that prevents the prediction; empty without an
    /// error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// UID of the run.
    #[serde(skip)]
    pub(super) uid: String,
}

/// Predicted step of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewedStep {
    /// Name of the phase.
    pub phase: String,
    /// Name of the step.
    pub step: String,
    /// Changes of objects, in order.
    pub objects: Vec<ObjectChange>,
    /// Objects that would be applied without a change.
    pub unchanged: Vec<String>,
    /// Conditions that the step would wait for.
    pub waits: Vec<String>,
    /// Error with which the step would stop; empty without an error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// Action on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    /// Creates the object.
    Create,
    /// Changes fields.
    Change,
    /// Removes the Pods through PodOpsLifecycle, before the object is deleted.
    ScaleToZero,
    /// Deletes the object.
    Delete,
}

/// Change of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectChange {
    /// Action on the object.
    pub action: Action,
    /// The object, such as `ConfigMap default/a`.
    pub object: String,
    /// Fields that would change.
    pub fields: Vec<FieldChange>,
}

/// Returns the change of an object by a write; `None` if no field changes.
pub(super) fn change(
    write: &ObjectWrite,
    before: Option<&Value>,
    after: Option<&Value>,
) -> Option<ObjectChange> {
    match (write, before, after) {
        (ObjectWrite::Delete { .. }, ..) => Some(ObjectChange::new(Action::Delete, write)),
        (ObjectWrite::ScaleToZero { .. }, ..) => {
            Some(ObjectChange::new(Action::ScaleToZero, write))
        }
        (ObjectWrite::Apply { .. }, Some(before), Some(after)) => {
            let mut fields = changes(before, after);
            if object_type(after).is("", "Secret") {
                fields.iter_mut().for_each(hide_value);
            }
            let change = ObjectChange::new(Action::Change, write);
            (!fields.is_empty()).then_some(ObjectChange { fields, ..change })
        }
        (ObjectWrite::Apply { .. }, ..) => Some(ObjectChange::new(Action::Create, write)),
    }
}

impl ObjectChange {
    fn new(action: Action, write: &ObjectWrite) -> Self {
        Self { action, object: write.id().to_string(), fields: Vec::new() }
    }
}

/// Redacts the value of a Secret's key.
fn hide_value(field: &mut FieldChange) {
    if field.path.starts_with("data") || field.path.starts_with("stringData") {
        for value in [&mut field.before, &mut field.after].into_iter().flatten() {
            REDACTED.clone_into(value);
        }
    }
}

impl PreviewedRun {
    pub(super) fn new(plan: &str, uid: &str, reason: &str) -> Self {
        Self {
            plan: plan.to_owned(),
            uid: uid.to_owned(),
            reason: reason.to_owned(),
            ..Self::default()
        }
    }

    /// Returns a run of a child Instance whose plans cannot be predicted.
    #[must_use]
    pub fn unknown(error: String) -> Self {
        Self { error, ..Self::default() }
    }

    /// Returns a step, which is added if it does not exist.
    pub(super) fn step_mut(&mut self, phase: &str, step: &str) -> &mut PreviewedStep {
        let known = self.steps.iter().position(|s| s.phase == phase && s.step == step);
        let index = known.unwrap_or_else(|| {
            let phase = phase.to_owned();
            let step = step.to_owned();
            self.steps.push(PreviewedStep { phase, step, ..PreviewedStep::default() });
            self.steps.len() - 1
        });
        &mut self.steps[index]
    }

    /// Returns true if the run would change an object.
    #[must_use]
    pub fn has_effect(&self) -> bool {
        let is_pruning = !self.pruned.is_empty() || !self.not_pruned.is_empty();
        is_pruning || self.steps.iter().any(|step| !step.objects.is_empty())
    }

    /// Returns true if the run would neither fail nor stop at a step.
    #[must_use]
    pub fn would_end(&self) -> bool {
        self.error.is_empty() && self.steps.iter().all(|step| step.error.is_empty())
    }

    /// Redacts the values of Secrets in all texts.
    pub(super) fn redact(&mut self, redaction: &Redaction) {
        redaction.apply(&mut self.error);
        self.not_pruned.iter_mut().for_each(|text| redaction.apply(text));
        for step in &mut self.steps {
            redaction.apply(&mut step.error);
            for wait in &mut step.waits {
                redaction.apply(wait);
            }
        }
        let of_steps = self.steps.iter_mut().flat_map(|step| &mut step.objects);
        for field in of_steps.chain(&mut self.pruned).flat_map(|object| &mut object.fields) {
            for value in [&mut field.before, &mut field.after].into_iter().flatten() {
                redaction.apply(value);
            }
        }
    }
}
