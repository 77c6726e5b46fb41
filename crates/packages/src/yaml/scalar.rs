//! Scalars of YAML 1.1.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use go_template::go_float;
use granit_parser::Tag;
use serde_json::{Number, Value};

/// Handle of YAML's own tags, such as `!!int`.
const CORE: &str = "tag:yaml.org,2002:";

/// Error of a scalar.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot decode {text:?} as {kind}")]
    OtherType { text: String, kind: String },
    #[error("{0} has no JSON")]
    NotFinite(String),
}

/// Returns the value of a scalar; an explicit tag must match.
pub(super) fn resolve(text: &str, is_plain: bool, tag: Option<&Tag>) -> Result<Value, Error> {
    let kind = match tag {
        None if is_plain => return plain(text),
        None => return Ok(text.into()),
        Some(tag) if tag.handle() == CORE => tag.suffix(),
        Some(_) => return Ok(text.into()),
    };
    match kind {
        "binary" => {
            let compact: String = text.split_whitespace().collect();
            let bytes = STANDARD.decode(compact).map_err(|_| mismatch(text, kind))?;
            String::from_utf8(bytes).map(Value::String).map_err(|_| mismatch(text, kind))
        }
        "null" | "bool" | "int" | "float" => {
            let value = plain(text)?;
            let fits = match kind {
                "null" => value.is_null(),
                "bool" => value.is_boolean(),
                "int" => value.is_i64() || value.is_u64(),
                _ => value.is_number(),
            };
            if fits { Ok(value) } else { Err(mismatch(text, kind)) }
        }
        _ => Ok(text.into()),
    }
}

fn mismatch(text: &str, kind: &str) -> Error {
    Error::OtherType { text: text.to_owned(), kind: kind.to_owned() }
}

/// Returns the value of a plain scalar.
fn plain(text: &str) -> Result<Value, Error> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(true.into());
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(false.into());
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return Err(Error::NotFinite(text.to_owned())),
        _ => {}
    }
    let number = match text.as_bytes()[0] {
        b'.' => go_float::parse(text).and_then(Number::from_f64),
        b'+' | b'-' | b'0'..=b'9' => number(&text.replace('_', "")),
        _ => None,
    };
    Ok(number.map_or_else(|| text.into(), Value::Number))
}

fn number(text: &str) -> Option<Number> {
    integer(text).or_else(|| {
        let float = is_decimal_float(text).then(|| go_float::parse(text)).flatten();
        float.and_then(Number::from_f64)
    })
}

/// Parses an integer as Go's `strconv.ParseInt` with base 0, or as `ParseUint` without a sign.
fn integer(text: &str) -> Option<Number> {
    let (is_negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = unsigned.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (lower.as_str(), 10)
    };
    // `from_str_radix` accepts a sign.
    if !digits.starts_with(|digit: char| digit.is_digit(radix)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if is_negative {
        return 0_i64.checked_sub_unsigned(magnitude).map(Number::from);
    }
    match i64::try_from(magnitude) {
        Ok(value) => Some(value.into()),
        Err(_) if text.starts_with('+') => None,
        Err(_) => Some(magnitude.into()),
    }
}

/// Returns true for a decimal number with an optional fraction and exponent.
fn is_decimal_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digit = !whole.is_empty() || !fraction.is_empty();
    let exponent_is_valid = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !digits.is_empty() && are_digits(digits)
    });
    has_digit && are_digits(whole) && are_digits(fraction) && exponent_is_valid
}

fn are_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a scalar as Go decodes it into a string: the shortest text of a number or boolean.
/// Floating-point numbers are rounded to single precision.
#[must_use]
pub fn text(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => single(number.as_f64().unwrap_or_default()),
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

/// Returns the JSON key of a map entry; `None` if the value cannot be a key.
pub(super) fn key(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) if number.is_i64() => Some(number.to_string()),
        Value::Number(number) if number.is_f64() => number.as_f64().map(float_key),
        Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the key of a number that JSON lacks, such as `.inf`; `None` for other texts.
pub(super) fn infinite_key(text: &str) -> Option<&'static str> {
    match text {
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Some(".inf"),
        "-.inf" | "-.Inf" | "-.INF" => Some("-.inf"),
        ".nan" | ".NaN" | ".NAN" => Some(".nan"),
        _ => None,
    }
}

fn float_key(value: f64) -> String {
    match single(value).as_str() {
        "+Inf" => ".inf".to_owned(),
        "-Inf" => "-.inf".to_owned(),
        text => text.to_owned(),
    }
}

/// Returns the shortest text of a number in single precision.
fn single(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "the precision is cut off")]
    let text = (value as f32).to_string();
    go_float::format(go_float::parse(&text).unwrap_or(value), b'g', None)
}
