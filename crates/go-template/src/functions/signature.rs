//! Signatures of functions and methods.

use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    value::Value,
};

/// Returns the result of a method that takes no arguments, unless it has some.
pub(super) fn without_arguments(
    name: &str,
    value: Value,
    values: &[Value],
) -> Result<Value, Failure> {
    match values.len() {
        0 => Ok(value),
        found => Err(Failure::ArgumentCount { function: name.to_owned(), expected: 0, found }),
    }
}

type Body = fn(&mut Call<'_>) -> Result<Value, Failure>;

/// Describes a function of so many arguments.
pub(super) const fn fixed(parameters: &'static [Type], body: Body) -> Function {
    Function { parameters, rest: None, body }
}

/// Describes a function that takes any number of further arguments.
pub(super) const fn open(parameters: &'static [Type], rest: Type, body: Body) -> Function {
    Function { parameters, rest: Some(rest), body }
}
