//! Functions of semantic versions.

use std::{cmp::Ordering, rc::Rc};

use super::signature::{fixed, without_arguments};
use crate::{
    calls::{Function, Type},
    error::Failure,
    value::Value,
    version::{Constraints, Version},
};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "semver" => {
            fixed(&[Type::Text], |call| Ok(Value::Version(Rc::new(parsed(call.text(0).bytes())?))))
        }
        "semverCompare" => fixed(&[Type::Text, Type::Text], |call| {
            let constraint = call.text(0);
            let text = std::str::from_utf8(constraint.bytes()).ok();
            let constraints = text
                .and_then(Constraints::parse)
                .ok_or_else(|| Failure::invalid("version constraint", constraint.bytes()))?;
            Ok(Value::Bool(constraints.accept(&parsed(call.text(1).bytes())?)))
        }),
        _ => return None,
    })
}

fn parsed(bytes: &[u8]) -> Result<Version, Failure> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(Version::parse).ok_or_else(|| Failure::invalid("semantic version", bytes))
}

/// Calls a method of a version.
pub(super) fn method(
    version: &Version,
    name: &str,
    values: &[Value],
) -> Result<Option<Value>, Failure> {
    if let [Value::Version(other)] = values {
        let order = version.order(other);
        return Ok(Some(match name {
            "Compare" => Value::int(order as i64),
            "Equal" => Value::Bool(order == Ordering::Equal),
            "GreaterThan" => Value::Bool(order == Ordering::Greater),
            "LessThan" => Value::Bool(order == Ordering::Less),
            _ => return Ok(None),
        }));
    }
    let value = match name {
        "Major" => Value::int64(version.numbers[0]),
        "Minor" => Value::int64(version.numbers[1]),
        "Patch" => Value::int64(version.numbers[2]),
        "Prerelease" => Value::text(version.prerelease.as_str()),
        "Metadata" => Value::text(version.metadata.as_str()),
        "Original" => Value::text(version.original.as_str()),
        "String" => Value::text(version.to_string()),
        _ => return Ok(None),
    };
    without_arguments(name, value, values).map(Some)
}
