//! Template functions.

mod builtins;
mod date;
mod encoding;
pub(super) mod format;
mod lists;
mod maps;
mod numbers;
mod random;
mod reflection;
mod regexes;
mod signature;
mod strings;
mod url;
pub(super) mod version;
mod words;

use super::{calls::Function, error::Failure, value::Value};

/// Sprig functions that are not deterministic or read the network.
const REFUSED: [&str; 8] = [
    "buildCustomCert",
    "derivePassword",
    "encryptAES",
    "genCA",
    "genPrivateKey",
    "genSelfSignedCert",
    "genSignedCert",
    "getHostByName",
];

/// Checks that a template may call a function.
pub(super) fn check(name: &str) -> Result<(), Failure> {
    if REFUSED.contains(&name) {
        Err(Failure::RefusedFunction(name.to_owned()))
    } else if find(name).is_none() {
        Err(Failure::UnknownFunction(name.to_owned()))
    } else {
        Ok(())
    }
}

/// Returns the function of this name.
pub(super) fn find(name: &str) -> Option<Function> {
    builtins::find(name)
        .or_else(|| strings::find(name))
        .or_else(|| words::find(name))
        .or_else(|| numbers::find(name))
        .or_else(|| lists::find(name))
        .or_else(|| maps::find(name))
        .or_else(|| encoding::find(name))
        .or_else(|| date::find(name))
        .or_else(|| regexes::find(name))
        .or_else(|| version::find(name))
        .or_else(|| url::find(name))
        .or_else(|| random::find(name))
        .or_else(|| reflection::find(name))
}

/// Calls a method of a time or version; [`Failure::NoField`] if the value has no such method.
pub(super) fn method(receiver: &Value, name: &str, values: &[Value]) -> Result<Value, Failure> {
    let result = match receiver {
        Value::Time(time) => date::method(time, name, values)?,
        Value::Version(version) => version::method(version, name, values)?,
        Value::Nil
        | Value::Bool(_)
        | Value::Integer { .. }
        | Value::Float(_)
        | Value::Text(_)
        | Value::List(_)
        | Value::Map(_) => None,
    };
    result.ok_or_else(|| Failure::NoField { field: name.to_owned(), found: receiver.type_name() })
}
