//! Signatures of functions and methods.

use crate::{
    calls::{Call, Function, Type},
    error::Failure,
    value::Value,
};

/// Returns the result of a method without parameters; fails if there are arguments.
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

/// Makes a function with a fixed number of parameters.
pub(super) const fn fixed(parameters: &'static [Type], body: Body) -> Function {
    Function { parameters, rest: None, body }
}

/// Makes a variadic function.
pub(super) const fn open(parameters: &'static [Type], rest: Type, body: Body) -> Function {
    Function { parameters, rest: Some(rest), body }
}
