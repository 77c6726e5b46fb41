//! Objects as YAML or JSON.

use serde::Serialize;
use serde_json::Value;

/// Format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text.
    Text,
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// The format is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid output format, only support 'yaml' or 'json' or empty")]
pub struct UnknownFormat;

/// An object cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// JSON error.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// YAML error.
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Format {
    /// Parses the argument of `-o`.
    ///
    /// # Errors
    ///
    /// [`UnknownFormat`] if the argument is not a format.
    pub fn parse(argument: Option<&str>) -> Result<Self, UnknownFormat> {
        match argument.unwrap_or_default() {
            "" => Ok(Self::Text),
            "yaml" => Ok(Self::Yaml),
            "json" => Ok(Self::Json),
            _ => Err(UnknownFormat),
        }
    }
}

/// Encodes an object as YAML, followed by an empty line, or as JSON.
///
/// # Errors
///
/// If the object cannot be encoded.
pub fn object(object: &impl Serialize, format: Format) -> Result<String, Error> {
    if format == Format::Json {
        return Ok(serde_json::to_string_pretty(object)? + "\n");
    }
    Ok(yaml(&serde_json::to_value(object)?)? + "\n")
}

/// Encodes objects as YAML documents, or as a JSON list, which is `null` without objects.
///
/// # Errors
///
/// If an object cannot be encoded.
pub fn list(objects: &[Value], format: Format) -> Result<String, Error> {
    if format == Format::Json {
        let list = if objects.is_empty() { Value::Null } else { Value::from(objects.to_vec()) };
        return Ok(serde_json::to_string_pretty(&list)? + "\n");
    }
    let mut text = String::new();
    for object in objects {
        text.extend(["---\n", &yaml(object)?, "\n"]);
    }
    Ok(text + "...\n")
}

fn yaml(value: &Value) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_yaml_or_json() {
        let value = json!({ "b": 1, "a": ["x"] });
        let found = object(&value, Format::Yaml).unwrap();
        assert!(found.starts_with("a:") && found.ends_with("b: 1\n\n"), "{found}");
        assert_eq!(list(&[], Format::Json).unwrap(), "null\n");
        let found = list(&[json!({ "a": 1 }), json!({ "a": 2 })], Format::Yaml).unwrap();
        assert_eq!(found, "---\na: 1\n\n---\na: 2\n\n...\n");
        assert_eq!(Format::parse(Some("xml")), Err(UnknownFormat));
        assert_eq!(Format::parse(Some("")), Ok(Format::Text));
    }
}
