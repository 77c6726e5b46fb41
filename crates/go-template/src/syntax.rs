//! Syntax tree of a template.

/// A part of a template.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Text that is written as it is.
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

/// Commands of which each gets the result of the one before.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) line: usize,
    /// Variables that get the result.
    pub(super) variables: Vec<String>,
    /// Whether the variables exist already (`=`, not `:=`).
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

/// A value, or a function or method with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) first: Operand,
    pub(super) arguments: Vec<Operand>,
}

/// A value in a command.
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

/// A number, which becomes what its context needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number {
    /// Its value as an integer, if it is one.
    pub(super) integer: Option<i64>,
    /// Its value as a floating-point number.
    pub(super) float: f64,
    /// Whether it is written as a floating-point number.
    pub(super) is_float: bool,
}
