//! Templates: Go's `text/template` with `missingkey=error`, the functions of Sprig 2.22.0 and
//! `toYaml`, as KUDO renders them. Pure, and independent of the other crates of this repository.
//!
//! Intentional differences:
//!
//! - The same template and data give the same text: random functions draw from
//!   [`Environment::seed`], `now` is [`Environment::now`], `keys` and `values` are sorted, and
//!   local time is UTC.
//! - Functions that make certificates, keys or passwords, and `getHostByName`, are refused by name.
//! - A rendering that needs more than [`Limits`] fails; so does one whose values are nested deeper
//!   than [`MAX_DEPTH`].
//! - Complex numbers, `%x` of a floating-point number, and `\p` in regular expressions are not
//!   supported.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "functions treat a value of any other type, such as one added later, alike"
)]

mod calls;
mod data;
mod environment;
mod error;
mod execute;
mod functions;
mod layout;
mod lexer;
mod parser;
mod random;
mod references;
mod syntax;
mod template;
mod text;
mod time;
mod value;
mod version;

use std::cmp::Ordering;

use serde_json::Value as Json;

pub use self::{
    data::Data,
    environment::{Budget, Environment, Limits, MAX_DEPTH},
    error::{Error, Failure},
    references::References,
    template::Template,
    text::float as go_float,
};
use self::{
    value::{Heap, print, yaml},
    version::Version,
};

/// Returns true for a semantic version; parts may be missing, and `v` may precede.
#[must_use]
pub fn is_version(text: &str) -> bool {
    Version::parse(text).is_some()
}

/// Compares two semantic versions. An invalid version is lower than any valid one.
#[must_use]
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    match (Version::parse(left), Version::parse(right)) {
        (Some(left), Some(right)) => left.order(&right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

/// Formats a value as Go's `%v` does. Numbers are `float64`.
///
/// # Errors
///
/// [`Failure`] if the value is nested too deeply or exceeds a limit.
pub fn printed(value: &Json) -> Result<String, Failure> {
    let mut heap = Heap::new(Limits::default());
    let value = data::value(&mut heap, value, data::Numbers::Floats)?;
    Ok(String::from_utf8_lossy(&print::plain(&heap, &value)?).into_owned())
}

/// Encodes YAML as `sigs.k8s.io/yaml` does.
///
/// # Errors
///
/// [`Failure`] if the value is nested too deeply or exceeds a limit.
pub fn yaml_text(value: &Json) -> Result<String, Failure> {
    let mut heap = Heap::new(Limits::default());
    let value = data::value(&mut heap, value, data::Numbers::AsWritten)?;
    Ok(String::from_utf8_lossy(&yaml::write(&heap, &value)?).into_owned())
}
