//! Ingresses: backends name the Service and its port separately.

use serde_json::{Map, Value, json};

use super::fields::{default, object, objects};

#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
pub(super) fn translate(ingress: &mut Value) -> Result<(), &'static str> {
    let spec = object(ingress, "spec");
    if let Some(mut fallback) = spec.remove("backend") {
        if let Some(fields) = fallback.as_object_mut() {
            backend(fields);
        }
        spec.insert("defaultBackend".to_owned(), fallback);
    }
    for rule in objects(&mut ingress["spec"], "rules") {
        let Some(http) = rule.get_mut("http") else { continue };
        for path in objects(http, "paths") {
            default(path, "pathType", json!("ImplementationSpecific"));
            if let Some(fields) = path.get_mut("backend").and_then(Value::as_object_mut) {
                backend(fields);
            }
        }
    }
    Ok(())
}

fn backend(backend: &mut Map<String, Value>) {
    let name = backend.remove("serviceName");
    let port = backend.remove("servicePort");
    if name.is_none() && port.is_none() {
        return;
    }
    let port = match port {
        Some(Value::Number(number)) => json!({ "number": number }),
        Some(Value::String(text)) => match text.parse::<u16>() {
            Ok(number) => json!({ "number": number }),
            Err(_) => json!({ "name": text }),
        },
        _ => json!({}),
    };
    backend.insert("service".to_owned(), json!({ "name": name, "port": port }));
}
