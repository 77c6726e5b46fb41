//! Values of parameters, and their types.

use std::collections::BTreeMap;

use go_template::go_float;
use serde_json::Value;

use crate::yaml;

/// Strings that Go's `strconv.ParseBool` accepts: first those of true, then those of false.
const BOOLEANS: [&str; 12] =
    ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"];

/// Error of a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The value does not have the type of the parameter.
    #[error("type is {value_type:?}, but the value has another type")]
    Type {
        /// Type of the parameter.
        value_type: String,
    },
    /// The value is not an allowed value.
    #[error("value is {value:?}, but only allowed values are [{}]", .allowed.join(" "))]
    NotAllowed {
        /// The value.
        value: String,
        /// The allowed values.
        allowed: Vec<String>,
    },
}

/// Errors of a parameter file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join(", "))]
pub struct InvalidFile(Vec<String>);

/// Parses a YAML file with values of parameters. Lists and maps become YAML text; null is an error.
///
/// # Errors
///
/// [`InvalidFile`] with all errors.
pub fn of_file(text: &str) -> Result<BTreeMap<String, String>, InvalidFile> {
    let value = yaml::read(text).map_err(|error| InvalidFile(vec![error.to_string()]))?;
    let entries = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(entries) => entries,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(InvalidFile(vec!["it is no map of parameters".to_owned()]));
        }
    };
    let mut values = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, value) in entries {
        let text = match &value {
            Value::Null => {
                faults.push(format!("parameter {name} is null"));
                continue;
            }
            Value::Array(_) | Value::Object(_) => go_template::yaml_text(&value),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => go_template::printed(&value),
        };
        match text {
            Ok(text) => drop(values.insert(name, text)),
            Err(error) => faults.push(format!("parameter {name}: {error}")),
        }
    }
    if faults.is_empty() { Ok(values) } else { Err(InvalidFile(faults)) }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
#[must_use]
pub fn boolean(text: &str) -> Option<bool> {
    let index = BOOLEANS.iter().position(|known| *known == text)?;
    Some(index < BOOLEANS.len() / 2)
}

/// Checks a value against its type and the allowed values. An empty value is always valid.
///
/// # Errors
///
/// [`Invalid`] if the value has the wrong type or is not allowed.
pub fn check(value: &str, value_type: &str, allowed: Option<&[String]>) -> Result<(), Invalid> {
    if value.is_empty() {
        return Ok(());
    }
    let fits = match value_type {
        "integer" => is_integer(value),
        "number" => go_float::parse(value).is_some(),
        "boolean" => boolean(value).is_some(),
        "array" => matches!(yaml::read(value), Ok(Value::Array(_) | Value::Null)),
        "map" => matches!(yaml::read(value), Ok(Value::Object(_) | Value::Null)),
        // Strings and unknown types accept every value.
        _ => true,
    };
    if !fits {
        return Err(Invalid::Type { value_type: value_type.to_owned() });
    }
    match allowed {
        Some(allowed) if !allowed.iter().any(|known| known == value) => {
            Err(Invalid::NotAllowed { value: value.to_owned(), allowed: allowed.to_vec() })
        }
        _ => Ok(()),
    }
}

/// Returns true for a signed decimal integer of 64 bits.
fn is_integer(text: &str) -> bool {
    text.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_accept_what_kudo_accepts() {
        let valid = [
            ("integer", "-9223372036854775808 +1 007"),
            ("number", "1 1.5 -1e3 .5 1_0 0x1p-2 inf"),
            ("boolean", "1 t T TRUE true True 0 f F FALSE false False"),
            ("array", "[] [a] null"),
            ("map", "{} {a:} ~"),
            ("string", "a [ {"),
            ("colour", "red"),
            ("", "a"),
        ];
        let invalid = [
            ("integer", "1.0 1e3 9223372036854775808 a 0x1"),
            ("number", "a _1 1e400"),
            ("boolean", "yes y tRUE 2"),
            ("array", "a {} 1 ["),
            ("map", "a [] 1 {"),
        ];
        for (cases, expected) in [(&valid[..], true), (&invalid[..], false)] {
            for (value_type, values) in cases {
                for value in values.split(' ') {
                    let found = check(value, value_type, None);
                    assert_eq!(found.is_ok(), expected, "{value_type} {value}: {found:?}");
                }
            }
        }
        assert_eq!(check("", "integer", Some(&[])), Ok(()));
    }

    #[test]
    fn allowed_values_are_named() {
        let allowed = ["a".to_owned(), "b".to_owned()];
        assert_eq!(check("b", "string", Some(&allowed)), Ok(()));
        assert_eq!(
            check("c", "", Some(&allowed)).unwrap_err().to_string(),
            r#"value is "c", but only allowed values are [a b]"#
        );
        assert!(check("a", "", Some(&[])).is_err(), "nothing is allowed");
    }

    #[test]
    fn booleans_are_true_or_false() {
        assert_eq!(boolean("T"), Some(true));
        assert_eq!(boolean("0"), Some(false));
        assert_eq!(boolean("yes"), None);
    }
}
