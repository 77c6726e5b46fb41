//! Errors of parsing and rendering.

/// Error of a template that cannot be parsed or rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("template {template}, line {line}: {failure}")]
pub struct Error {
    /// Name of the template.
    pub template: String,
    /// Line, from 1.
    pub line: usize,
    /// Cause.
    pub failure: Failure,
}

impl Error {
    pub(super) fn new(template: &str, line: usize, failure: Failure) -> Self {
        Self { template: template.to_owned(), line, failure }
    }
}

/// Cause of an [`Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The template has a syntax error.
    #[error("{0}")]
    Syntax(String),
    /// The function does not exist.
    #[error("function {0} is not defined")]
    UnknownFunction(String),
    /// The Sprig function is not deterministic, or reads the network.
    #[error("function {0} is not available: its result differs each time the template is rendered")]
    RefusedFunction(String),
    /// The variable does not exist.
    #[error("variable {0} is not defined")]
    UndefinedVariable(String),
    /// The template does not exist.
    #[error("template {0:?} is not defined")]
    UndefinedTemplate(String),
    /// The map has no entry for the key.
    #[error("map has no entry for key {0:?}")]
    NoEntry(String),
    /// The value has no such field.
    #[error("cannot read field {field} of {found}")]
    NoField {
        /// Name of the field.
        field: String,
        /// Type of the value.
        found: &'static str,
    },
    /// The type of an argument does not match the parameter.
    #[error("wrong type: expected {expected}, found {found}")]
    WrongType {
        /// Type of the parameter.
        expected: &'static str,
        /// Type of the argument.
        found: &'static str,
    },
    /// The number of arguments does not match the parameters.
    #[error("wrong number of arguments for {function}: expected {expected}, found {found}")]
    ArgumentCount {
        /// Name of the function.
        function: String,
        /// Number of parameters; the minimum for a variadic function.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// Arguments follow a value that is not a function.
    #[error("{0} is no function and takes no arguments")]
    NotAFunction(String),
    /// The values cannot be compared.
    #[error("cannot compare {left} with {right}")]
    Incomparable {
        /// Type of the first value.
        left: &'static str,
        /// Type of the second value.
        right: &'static str,
    },
    /// The index is outside of the list or string.
    #[error("index {0} is out of range")]
    OutOfRange(i64),
    /// The divisor is zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A function cannot parse its argument.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// Expected format, such as `URL`.
        what: &'static str,
        /// The argument, or a description of its error.
        value: String,
    },
    /// The template called `fail`.
    #[error("{0}")]
    Failed(String),
    /// Podops does not support the feature.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A limit is exceeded.
    #[error("exceeds the limit of {0}")]
    Limit(&'static str),
    /// The output is not UTF-8.
    #[error("the output is not UTF-8")]
    NotUtf8,
}

impl Failure {
    /// Returns [`Failure::Invalid`] for this value.
    pub(super) fn invalid(what: &'static str, value: &[u8]) -> Self {
        Self::Invalid { what, value: String::from_utf8_lossy(value).into_owned() }
    }
}

/// Line, from 1, and the failure in this line.
pub(super) type AtLine = (usize, Failure);
