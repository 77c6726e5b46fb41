//! Why a template is not rendered.

/// A template that cannot be parsed or rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("template {template}, line {line}: {failure}")]
pub struct Error {
    /// Name of the template.
    pub template: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub failure: Failure,
}

impl Error {
    pub(super) fn new(template: &str, line: usize, failure: Failure) -> Self {
        Self { template: template.to_owned(), line, failure }
    }
}

/// What is wrong with a template, or with a value in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The text does not follow the grammar.
    #[error("{0}")]
    Syntax(String),
    /// No such function.
    #[error("function {0} is not defined")]
    UnknownFunction(String),
    /// A function of Sprig whose result cannot be repeated, or that reads the network.
    #[error("function {0} is not available: its result differs each time the template is rendered")]
    RefusedFunction(String),
    /// No such variable.
    #[error("variable {0} is not defined")]
    UndefinedVariable(String),
    /// No such template.
    #[error("template {0:?} is not defined")]
    UndefinedTemplate(String),
    /// A map has no such key.
    #[error("map has no entry for key {0:?}")]
    NoEntry(String),
    /// A value has no such field.
    #[error("cannot read field {field} of {found}")]
    NoField {
        /// Name of the field.
        field: String,
        /// Type of the value.
        found: &'static str,
    },
    /// An argument has another type than the function takes.
    #[error("wrong type: expected {expected}, found {found}")]
    WrongType {
        /// Type that the function takes.
        expected: &'static str,
        /// Type of the argument.
        found: &'static str,
    },
    /// A function got too many or too few arguments.
    #[error("wrong number of arguments for {function}: expected {expected}, found {found}")]
    ArgumentCount {
        /// Name of the function.
        function: String,
        /// Number that it takes; the least if it takes more.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// Arguments for something that is no function.
    #[error("{0} is no function and takes no arguments")]
    NotAFunction(String),
    /// Two values cannot be compared.
    #[error("cannot compare {left} with {right}")]
    Incomparable {
        /// Type of the first value.
        left: &'static str,
        /// Type of the second value.
        right: &'static str,
    },
    /// An index outside of a list or text.
    #[error("index {0} is out of range")]
    OutOfRange(i64),
    /// A division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A text that a function cannot read.
    #[error("invalid {what}: {value}")]
    Invalid {
        /// What the text should be.
        what: &'static str,
        /// The text, or what is wrong with it.
        value: String,
    },
    /// The template called `fail`.
    #[error("{0}")]
    Failed(String),
    /// What Podops does not support.
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
    /// Returns the failure for a text that is not a valid `what`.
    pub(super) fn invalid(what: &'static str, value: &[u8]) -> Self {
        Self::Invalid { what, value: String::from_utf8_lossy(value).into_owned() }
    }
}

/// A failure in a line.
pub(super) type AtLine = (usize, Failure);
