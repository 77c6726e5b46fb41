//! Generates the reference pages of custom resources from their schemas.

use std::fmt::Write as _;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value};

const HEAD: &str = "<!-- Written by `cargo xtask crds` from crates/api; do not edit. -->\n";

/// Renders the reference page of a custom resource in Markdown.
pub(crate) fn page(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    let names = &crd.spec.names;
    let version = crd.spec.versions.first().context("CRD has no versions")?;
    let schema = serde_json::to_value(&version.schema)?;
    let schema = &schema["openAPIV3Schema"];
    let mut page = format!("{HEAD}# {}\n\n{}\n\n", names.kind, text(schema));
    writeln!(page, "`apiVersion: {}/{}`", crd.spec.group, version.name)?;
    let short = names.short_names.iter().flatten();
    let mut parts = vec![format!("plural `{}`", names.plural)];
    parts.extend(short.map(|name| format!("short `{name}`")));
    parts.push(crd.spec.scope.clone());
    writeln!(page, "{}\n", parts.join(", "))?;
    write_validations(&mut page, schema)?;
    for part in ["spec", "status"] {
        let schema = &schema["properties"][part];
        if schema.is_object() {
            writeln!(page, "## {part}\n\n{}\n", text(schema))?;
            write_validations(&mut page, schema)?;
            page.push_str("| field | type | default | description |\n|---|---|---|---|\n");
            write_fields(&mut page, schema, part)?;
            page.push('\n');
        }
    }
    Ok(format!("{}\n", page.trim_end()))
}

/// Writes one table row per field of a schema, depth first.
fn write_fields(page: &mut String, schema: &Value, path: &str) -> anyhow::Result<()> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let none = Map::new();
    for (name, field) in schema["properties"].as_object().unwrap_or(&none) {
        let path = format!("{path}.{name}");
        let default = field.get("default").map(|value| format!("`{value}`"));
        let default = default.unwrap_or_else(|| {
            if required.contains(&name.as_str()) { "required" } else { "" }.to_owned()
        });
        let description = [text(field), limits(field)].into_iter().filter(|t| !t.is_empty());
        let description = description.collect::<Vec<_>>().join(" ");
        writeln!(page, "| `{path}` | {} | {default} | {} |", kind(field), cell(&description))?;
        // Embedded Kubernetes objects are documented in the Kubernetes API reference.
        if field["x-kubernetes-preserve-unknown-fields"] != true {
            write_fields(page, field, &path)?;
            let items = &field["items"];
            if items["x-kubernetes-preserve-unknown-fields"] != true {
                write_fields(page, items, &format!("{path}[]"))?;
            }
        }
    }
    Ok(())
}

fn kind(field: &Value) -> String {
    let name = field["type"].as_str().unwrap_or_default();
    match name {
        _ if field["x-kubernetes-int-or-string"] == true => "integer or percentage".to_owned(),
        "array" => format!("list of {}", kind(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}", kind(&field["additionalProperties"]))
        }
        "string" if field["format"] == "date-time" => "time".to_owned(),
        name => name.to_owned(),
    }
}

/// Constraints on a value beyond its type, as sentences.
fn limits(field: &Value) -> String {
    let mut sentences = Vec::new();
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        sentences.push(format!("One of {}.", values.join(", ")));
    }
    let bounds = [
        ("minimum", "At least"),
        ("maximum", "At most"),
        ("maxItems", "Entries at most:"),
        ("maxLength", "Characters at most:"),
    ];
    for (key, prefix) in bounds {
        if let Some(bound) = field[key].as_number() {
            sentences.push(format!("{prefix} {bound}."));
        }
    }
    sentences.extend(validations(field));
    sentences.join(" ")
}

/// Messages of the schema's CEL validation rules, as sentences.
fn validations(schema: &Value) -> impl Iterator<Item = String> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let escape = |message: &str| message.replace('<', "&lt;");
    rules.filter_map(move |rule| {
        Some(format!("Validation: “{}”.", escape(rule["message"].as_str()?)))
    })
}

/// Writes a list of the validation rules of a whole object.
fn write_validations(page: &mut String, schema: &Value) -> anyhow::Result<()> {
    for message in validations(schema) {
        writeln!(page, "- {message}")?;
    }
    if validations(schema).next().is_some() {
        writeln!(page)?;
    }
    Ok(())
}

fn text(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().trim().to_owned()
}

/// Escapes a text for a Markdown table cell.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
