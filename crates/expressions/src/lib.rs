//! Expressions in the Common Expression Language (CEL) over JSON values, for example over objects
//! of the API server: compiled once, within limits on their cost, and checked against the variables
//! that they may use.

mod cost;
mod expression;
mod types;

pub use expression::{CompileError, EvaluationError, Expression};
pub use types::{Fields, METADATA, OBJECT, Variables};
