//! Types of CEL expressions and fields of their variables, as far as they are known without an
//! evaluation: mistakes are found when a rule is written, not when a Pod waits for it.

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

/// Variables, and the fields of each that are known.
const FIELDS: [(&[&str], &[&str]); 5] = [
    (&["pod"], &["apiVersion", "kind", "metadata", "spec", "status"]),
    (
        &["pod", "metadata"],
        &[
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
        ],
    ),
    (&["owner"], &["kind", "name", "replicas"]),
    (&["rule"], &["available", "total", "unavailable", "waiting"]),
    (&["operation"], &["id", "type"]),
];

/// Returns whether the result of an expression is certainly no bool.
pub(super) fn is_never_bool(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(literal) => !matches!(literal, LiteralValue::Boolean(_)),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => true,
        Expr::Call(call) if call.func_name == CONDITIONAL => {
            call.args.iter().skip(1).all(is_never_bool)
        }
        Expr::Call(call) => NOT_BOOL.contains(&call.func_name.as_str()),
        // The result of `map` and `filter` is the list that they start with.
        Expr::Comprehension(c) => {
            let returns_start = matches!(&c.result.expr, Expr::Ident(name) if *name == c.accu_var);
            returns_start && is_never_bool(&c.accu_init) || is_never_bool(&c.result)
        }
        Expr::Select(_) => {
            let path = path(expression);
            matches!(path.as_deref(), Some(["rule" | "owner" | "operation", _]))
        }
        Expr::Ident(_) | Expr::Unspecified => false,
    }
}

/// Returns the path of a field that its variable does not have, if the expression is one.
pub(super) fn unknown_field(expression: &IdedExpr, bound: &[&str]) -> Option<String> {
    let path = path(expression)?;
    let (field, parent) = path.split_last()?;
    let known = FIELDS.iter().find(|(of, _)| *of == parent && !bound.contains(&of[0]));
    known.filter(|(_, fields)| !fields.contains(field)).map(|_| path.join("."))
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
