//! Templates: Go's `text/template` with `missingkey=error`, the functions of Sprig 2.22.0 and
//! `toYaml`, as KUDO renders them.
//!
//! What differs on purpose:
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
mod error;
mod execute;
mod functions;
mod lexer;
mod parser;
mod random;
mod references;
mod syntax;
mod text;
mod value;

use std::{cell::Cell, cmp::Ordering, collections::BTreeMap};

pub use data::Data;
pub use error::{Error, Failure};
use jiff::Timestamp;
pub use references::References;
use serde_json::Value as Json;
pub(crate) use text::float as go_float;

use self::{
    execute::Execution,
    syntax::Node,
    value::{BYTES_PER_STEP, Heap, print, yaml},
};

/// Limit of one rendering.
const STEPS: &str = "steps";
/// Limit of several renderings.
const STEPS_OF_ALL: &str = "steps of all templates together";

/// Deepest nesting of actions, parentheses and values.
pub const MAX_DEPTH: usize = 100;

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template {
    name: String,
    /// By name; the template's own text is one of them.
    definitions: BTreeMap<String, Vec<Node>>,
}

impl Template {
    /// Parses a template. `name` appears in errors.
    ///
    /// # Errors
    ///
    /// [`Error`] with the line, if the text is no template, or calls a function that is unknown or
    /// refused.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let definitions = parser::parse(name, text);
        let definitions = definitions.map_err(|(line, failure)| Error::new(name, line, failure))?;
        Ok(Self { name: name.to_owned(), definitions })
    }

    /// Renders the template.
    ///
    /// # Errors
    ///
    /// [`Error`] with the line, if an expression cannot be evaluated, or a limit is exceeded.
    pub fn render(&self, data: &Data, environment: &Environment) -> Result<String, Error> {
        self.render_within(data, environment, &Budget::default())
    }

    /// As [`render`](Self::render), with the steps that are left for several renderings.
    ///
    /// # Errors
    ///
    /// As [`render`](Self::render), or if too few steps are left.
    pub fn render_within(
        &self,
        data: &Data,
        environment: &Environment,
        budget: &Budget,
    ) -> Result<String, Error> {
        let mut environment = environment.clone();
        let is_short = budget.steps_left() < environment.limits.steps;
        environment.limits.steps = environment.limits.steps.min(budget.steps_left());
        let mut execution = Execution::new(&self.definitions, &self.name, &environment);
        let output = execution.run(data);
        budget.spend(environment.limits.steps - execution.steps_left());
        budget.spend(output.as_ref().map_or(0, |output| output.len() / BYTES_PER_STEP) as u64);
        output.map_err(|(line, failure)| {
            let is_spent = is_short && failure == Failure::Limit(STEPS);
            let failure = if is_spent { Failure::Limit(STEPS_OF_ALL) } else { failure };
            Error::new(&self.name, line, failure)
        })
    }
}

/// Returns whether a text is a semantic version, of which parts may be missing, and a `v` may precede.
#[must_use]
pub fn is_version(text: &str) -> bool {
    functions::version::Version::parse(text).is_some()
}

/// Compares two semantic versions. A text that is none is lower than any version.
#[must_use]
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    let parse = functions::version::Version::parse;
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) => left.order(&right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

/// Returns a value as Go's `%v` prints it. Numbers are Go's `float64`.
///
/// # Errors
///
/// [`Failure`] if it is nested too deep.
pub fn printed(value: &Json) -> Result<String, Failure> {
    let mut heap = Heap::new(Limits::default());
    let value = data::value(&mut heap, value, data::Numbers::Floats)?;
    Ok(String::from_utf8_lossy(&print::plain(&heap, &value)?).into_owned())
}

/// Returns a value as `sigs.k8s.io/yaml` writes it.
///
/// # Errors
///
/// [`Failure`] if it is nested too deep.
pub fn yaml_text(value: &Json) -> Result<String, Failure> {
    let mut heap = Heap::new(Limits::default());
    let value = data::value(&mut heap, value, data::Numbers::AsWritten)?;
    Ok(String::from_utf8_lossy(&yaml::write(&heap, &value)?).into_owned())
}

/// What a rendering depends on besides template and data.
#[derive(Clone, Debug)]
pub struct Environment {
    /// What `now` returns.
    pub now: Timestamp,
    /// Source of random functions: equal seeds give equal results.
    pub seed: Vec<u8>,
    /// Limits of the rendering.
    pub limits: Limits,
}

/// Limits of one rendering.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Actions, function calls and list elements.
    pub steps: u64,
    /// Bytes of the output, and of any one text that a function makes.
    pub text: usize,
    /// Bytes of all texts that functions make.
    pub memory: usize,
}

/// Steps that are left for several renderings and their outputs: many templates cost no more than a few.
#[derive(Debug)]
pub struct Budget {
    steps_left: Cell<u64>,
}

impl Budget {
    fn steps_left(&self) -> u64 {
        self.steps_left.get()
    }

    fn spend(&self, steps: u64) {
        self.steps_left.set(self.steps_left().saturating_sub(steps));
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps_left: Cell::new(10 * Limits::default().steps) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 1_000_000, text: 2 << 20, memory: 64 << 20 }
    }
}
