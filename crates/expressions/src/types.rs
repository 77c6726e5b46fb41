//! Types of expressions and fields of their variables, as far as they are known without an
//! evaluation: mistakes are found when an expression is written, not when something waits for it.

use cel::common::ast::{
    Expr, IdedExpr, LiteralValue,
    operators::{ADD, CONDITIONAL, DIVIDE, MODULO, MULTIPLY, NEGATE, SUBSTRACT},
};

/// Operators and functions whose result is no bool.
const NOT_BOOL: [&str; 14] = [
    ADD,
    SUBSTRACT,
    MULTIPLY,
    DIVIDE,
    MODULO,
    NEGATE,
    "size",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "duration",
    "timestamp",
];

/// Fields of `metadata` of every object of the API server.
pub const METADATA: [&str; 13] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// Variables that an expression may use.
#[derive(Clone, Copy, Debug)]
pub struct Variables {
    /// Names of the variables, in the order of the values of an evaluation.
    pub names: &'static [&'static str],
    /// Those of their fields that are known.
    pub fields: &'static [Fields],
}

/// Known fields of a variable, or of an object in it.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Variable, and the path in it.
    pub of: &'static [&'static str],
    /// Names of the fields; it has no others.
    pub known: &'static [&'static str],
    /// True if a field may be a bool.
    pub may_be_bool: bool,
}

/// The variable `self`: an object of any kind, of which only the fields of `metadata` are known.
pub const OBJECT: Variables = Variables {
    names: &["self"],
    fields: &[Fields { of: &["self", "metadata"], known: &METADATA, may_be_bool: true }],
};

impl Variables {
    fn fields(&self, of: &[&str]) -> Option<&'static Fields> {
        self.fields.iter().find(|fields| fields.of == of)
    }
}

/// Returns whether the result of an expression is certainly no bool.
pub(super) fn is_never_bool(expression: &IdedExpr, variables: &Variables) -> bool {
    let is_part = |part: &IdedExpr| is_never_bool(part, variables);
    match &expression.expr {
        Expr::Literal(literal) => !matches!(literal, LiteralValue::Boolean(_)),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => true,
        Expr::Call(call) if call.func_name == CONDITIONAL => call.args.iter().skip(1).all(is_part),
        Expr::Call(call) => NOT_BOOL.contains(&call.func_name.as_str()),
        // The result of `map` and `filter` is the list that they start with.
        Expr::Comprehension(c) => {
            let returns_start = matches!(&c.result.expr, Expr::Ident(name) if *name == c.accu_var);
            returns_start && is_part(&c.accu_init) || is_part(&c.result)
        }
        Expr::Select(_) => {
            let path = path(expression);
            let parent = path.as_deref().and_then(|path| path.split_last()).map(|(_, of)| of);
            let fields = parent.and_then(|of| variables.fields(of));
            fields.is_some_and(|fields| !fields.may_be_bool)
        }
        Expr::Ident(_) | Expr::Unspecified => false,
    }
}

/// Returns the path of a field that its variable does not have, if the expression is one. Macros
/// bind the names `bound`.
pub(super) fn unknown_field(
    expression: &IdedExpr,
    variables: &Variables,
    bound: &[&str],
) -> Option<String> {
    let path = path(expression)?;
    let (field, parent) = path.split_last()?;
    if parent.first().is_none_or(|variable| bound.contains(variable)) {
        return None;
    }
    let known = variables.fields(parent)?.known;
    (!known.contains(field)).then(|| path.join("."))
}

/// Path of a chain of field selections, with its variable.
fn path(expression: &IdedExpr) -> Option<Vec<&str>> {
    match &expression.expr {
        Expr::Ident(name) => Some(vec![name]),
        Expr::Select(select) => {
            let mut path = path(&select.operand)?;
            path.push(&select.field);
            Some(path)
        }
        Expr::Unspecified
        | Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::List(_)
        | Expr::Literal(_)
        | Expr::Map(_)
        | Expr::Struct(_) => None,
    }
}
