//! Syntax tree of a template.

/// Node of a template.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Literal text.
    Text(Vec<u8>),
    /// `{{ pipeline }}`
    Action(Pipeline),
    /// `{{ if }}`
    If(Branch),
    /// `{{ with }}`
    With(Branch),
    /// `{{ range }}`
    Range(Branch),
    /// `{{ template }}`
    Call(TemplateCall),
    /// `{{ break }}`
    Break,
    /// `{{ continue }}`
    Continue,
}

/// `if`, `with` or `range`.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) pipeline: Pipeline,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

/// `{{ template "name" pipeline }}`
#[derive(Clone, Debug)]
pub(super) struct TemplateCall {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) pipeline: Option<Pipeline>,
}

/// Commands; each gets the result of the previous command.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) line: usize,
    /// Variables that are set to the result.
    pub(super) variables: Vec<String>,
    /// True if the variables exist already (`=`, not `:=`).
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

/// Value, or a function or method with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) first: Operand,
    pub(super) arguments: Vec<Operand>,
}

/// Operand of a command.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Text(Vec<u8>),
    Number(Number),
    /// `.A.B`
    Field(Vec<String>),
    /// `$x.A.B`
    Variable {
        name: String,
        fields: Vec<String>,
    },
    Function(String),
    /// `(pipeline)`
    Parentheses(Pipeline),
    /// `(pipeline).A.B`
    Chain {
        inner: Box<Operand>,
        fields: Vec<String>,
    },
}

/// Numeric constant, typed by its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number {
    /// Value as an integer; `None` if the constant is not an integer.
    pub(super) integer: Option<i64>,
    /// Value as a floating-point number.
    pub(super) float: f64,
    /// True if the constant is written as a floating-point number.
    pub(super) is_float: bool,
}
