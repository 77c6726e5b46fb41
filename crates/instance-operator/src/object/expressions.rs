//! CEL expressions over an object, which is the variable `self`: conditions of Wait tasks, and the
//! annotations that define the health of an object.

use std::{cell::Cell, sync::Arc};

use podops_expressions::{CompileError, EvaluationError, Expression, OBJECT};
use serde_json::Value;

use super::annotation;

/// Maximum number of steps of one evaluation, about 20 ms.
const STEPS_MAX: usize = 100_000;

/// Compiles an expression.
///
/// # Errors
///
/// [`CompileError`] if the expression does not parse, uses an unknown variable or exceeds a limit.
pub fn compile(source: &str) -> Result<Arc<Expression>, CompileError> {
    Expression::compile(source, &OBJECT)
}

/// Evaluates an expression for an object.
///
/// # Errors
///
/// [`EvaluationError`] if the expression reads a field that the object does not have yet, is too
/// expensive, or does not return a bool.
pub fn is_true_for(expression: &Expression, object: &Value) -> Result<bool, EvaluationError> {
    expression.evaluate(&[object], &Cell::new(STEPS_MAX))
}

/// Result of the expression in an annotation of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Annotated {
    /// The object does not have the annotation.
    Absent,
    /// The expression is true.
    True,
    /// The expression is not true, for this reason.
    False(String),
}

/// Evaluates the expression in an annotation of an object.
pub(super) fn annotated(object: &Value, key: &str) -> Annotated {
    let Some(source) = annotation(object, key) else { return Annotated::Absent };
    let expression = match compile(source) {
        Ok(expression) => expression,
        Err(error) => return Annotated::False(format!("{key} is invalid: {error}")),
    };
    match is_true_for(&expression, object) {
        Ok(true) => Annotated::True,
        Ok(false) => Annotated::False(format!("{key} is false")),
        Err(error) => Annotated::False(format!("{key}: {error}")),
    }
}
