//! HorizontalPodAutoscalers: metrics have one target instead of a field for each type.

use serde_json::{Map, Value, json};

use super::fields::objects;

#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
pub(super) fn translate(autoscaler: &mut Value) -> Result<(), &'static str> {
    for metric in objects(&mut autoscaler["spec"], "metrics") {
        for source in ["resource", "containerResource", "pods", "object", "external"] {
            if let Some(fields) = metric.get_mut(source).and_then(Value::as_object_mut) {
                translate_source(source, fields);
            }
        }
    }
    Ok(())
}

fn translate_source(source: &str, fields: &mut Map<String, Value>) {
    if source == "object"
        && let Some(described) = fields.remove("target")
    {
        fields.insert("describedObject".to_owned(), described);
    }
    let selectors = ["selector", "metricSelector"].map(|field| fields.remove(field));
    if let Some(name) = fields.remove("metricName") {
        let mut metric = json!({ "name": name });
        if let Some(selector) = selectors.into_iter().flatten().next() {
            metric["selector"] = selector;
        }
        fields.insert("metric".to_owned(), metric);
    }
    // The average takes precedence.
    let targets = [
        ("targetValue", "Value", "value"),
        ("targetAverageUtilization", "Utilization", "averageUtilization"),
        ("targetAverageValue", "AverageValue", "averageValue"),
        ("averageValue", "AverageValue", "averageValue"),
    ];
    for (field, kind, value) in targets {
        if let Some(amount) = fields.remove(field) {
            fields.insert("target".to_owned(), json!({ "type": kind, value: amount }));
        }
    }
}
