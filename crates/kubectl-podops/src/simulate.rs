//! The changed object that `simulate` sends as a dry run, and the output of `simulate`.

use podops_simulation::{End, Method, Prediction};
use serde_json::{Value, json};

/// Returns the merge patch with which `kubectl apply` would change an object: fields of the
/// manifest are set, and those that only the manifest applied last has are removed.
#[must_use]
pub fn apply_patch(last_applied: Option<&Value>, manifest: &Value) -> Value {
    let mut patch = manifest.clone();
    if let Some(last_applied) = last_applied {
        remove_fields(last_applied, &mut patch);
    }
    patch
}

/// Sets the fields of objects in `patch` to null that only `old` has.
fn remove_fields(old: &Value, patch: &mut Value) {
    let (Some(old), Some(patch)) = (old.as_object(), patch.as_object_mut()) else { return };
    for (field, value) in old {
        remove_fields(value, patch.entry(field.clone()).or_insert(json!(null)));
    }
}

/// Formats the prediction for people: the Pods that change, in order, the writes, and the end.
#[must_use]
pub fn text(prediction: &Prediction) -> String {
    let mut text = format!(
        "collaset/{} would be at revision {}\n\n",
        prediction.set, prediction.updated_revision
    );
    let (changed, unchanged): (Vec<_>, Vec<_>) =
        prediction.pods.iter().partition(|pod| pod.method != Method::None);
    let width = changed.iter().map(|pod| pod.pod.len()).max().unwrap_or_default().max("POD".len());
    if !changed.is_empty() {
        line(&mut text, &format!("BATCH  {:<width$}  {:<9}  CHANGED FIELDS", "POD", "METHOD"));
    }
    for pod in changed {
        let batch = pod.batch.unwrap_or_default();
        let name = &pod.pod;
        let method = format!("{:?}", pod.method);
        let fields = pod.changed_fields.join(", ");
        line(&mut text, &format!("{batch:<5}  {name:<width$}  {method:<9}  {fields}"));
    }
    if !unchanged.is_empty() {
        line(&mut text, &format!("Pods that do not change: {}", unchanged.len()));
    }
    text.push('\n');
    let total: usize = prediction.pod_writes.values().sum();
    let by_operator: Vec<String> = prediction
        .pod_writes
        .iter()
        .map(|(operator, count)| format!("{operator} {count}"))
        .collect();
    let by_operator =
        if total == 0 { String::new() } else { format!(": {}", by_operator.join(", ")) };
    line(&mut text, &format!("Writes to Pods: {total}{by_operator}"));
    for claim in &prediction.deleted_claims {
        line(&mut text, &format!("PersistentVolumeClaim {claim} is deleted, with its data"));
    }
    for claim in &prediction.released_claims {
        line(&mut text, &format!("PersistentVolumeClaim {claim} is kept, but leaves the CollaSet"));
    }
    for rule in &prediction.rules_left_out {
        line(&mut text, &format!("Webhook rule {rule} is not evaluated"));
    }
    match &prediction.end {
        End::Complete => line(&mut text, "The rollout completes"),
        End::Waiting { reasons } => {
            line(&mut text, "The rollout does not complete:");
            for reason in reasons {
                line(&mut text, &format!("  {reason}"));
            }
        }
        End::Unfinished { seconds, reasons } => {
            let hours = seconds / 3600;
            line(&mut text, &format!("The rollout is not complete after {hours} hours:"));
            for reason in reasons {
                line(&mut text, &format!("  {reason}"));
            }
        }
    }
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use podops_simulation::PodPrediction;

    use super::*;

    #[test]
    fn fields_that_are_no_longer_applied_are_removed() {
        let last = json!({ "spec": { "paused": true, "replicas": 3, "template": { "a": 1 } } });
        let manifest = json!({ "spec": { "template": { "a": 2 } } });
        let patch = apply_patch(Some(&last), &manifest);
        let expected =
            json!({ "spec": { "paused": null, "replicas": null, "template": { "a": 2 } } });
        assert_eq!(patch, expected);
        // An autoscaler has set the replicas.
        assert_eq!(apply_patch(None, &manifest), manifest);
    }

    #[test]
    fn pods_are_listed_by_batch_and_the_end_is_explained() {
        let pod = |name: &str, method, batch| PodPrediction {
            pod: name.to_owned(),
            method,
            changed_fields: if method == Method::None {
                Vec::new()
            } else {
                vec!["spec.containers[web].image".to_owned()]
            },
            batch,
        };
        let prediction = Prediction {
            set: "web".to_owned(),
            updated_revision: "web-2".to_owned(),
            pods: vec![pod("web-a", Method::InPlace, Some(1)), pod("web-b", Method::None, None)],
            pod_writes: [("collaset-operator", 3), ("lifecycle-operator", 3)].into(),
            deleted_claims: vec!["data-1".to_owned()],
            released_claims: vec!["data-2".to_owned()],
            end: End::Waiting { reasons: vec!["1 Pods, Queued: partition".to_owned()] },
            rules_left_out: vec!["web/approval".to_owned()],
        };
        let expected = "\
collaset/web would be at revision web-2

BATCH  POD    METHOD     CHANGED FIELDS
1      web-a  InPlace    spec.containers[web].image
Pods that do not change: 1

Writes to Pods: 6: collaset-operator 3, lifecycle-operator 3
PersistentVolumeClaim data-1 is deleted, with its data
PersistentVolumeClaim data-2 is kept, but leaves the CollaSet
Webhook rule web/approval is not evaluated
The rollout does not complete:
  1 Pods, Queued: partition
";
        assert_eq!(text(&prediction), expected);
    }
}
