//! Templates: parsed once, rendered with data.

use std::collections::BTreeMap;

use crate::{
    data::Data,
    environment::{Budget, Environment, STEPS, STEPS_OF_ALL},
    error::{Error, Failure},
    execute::Execution,
    parser,
    syntax::Node,
    value::BYTES_PER_STEP,
};

/// Parsed template.
#[derive(Clone, Debug)]
pub struct Template {
    pub(crate) name: String,
    /// Templates by name, including the main template.
    pub(crate) definitions: BTreeMap<String, Vec<Node>>,
}

impl Template {
    /// Parses a template. `name` appears in errors.
    ///
    /// # Errors
    ///
    /// [`Error`] with the line, if the syntax is invalid, or a function is unknown or refused.
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

    /// Renders within the steps of `budget`, and spends them.
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
