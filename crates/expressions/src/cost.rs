//! Upper bounds of the cost of evaluating a CEL expression, for variables of a certain size.
//!
//! The interpreter has no limits of its own, and can be interrupted only between evaluations. The
//! authors of an expression and of an object control the cost, so it is bounded before the
//! evaluation.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr,
    operators::{
        EQUALS, GREATER, GREATER_EQUALS, IN, LESS, LESS_EQUALS, LOGICAL_AND, LOGICAL_NOT,
        LOGICAL_OR, NOT_EQUALS, NOT_STRICTLY_FALSE,
    },
};
use serde_json::Value as Json;

/// Operators and functions whose result has a fixed size; they read their arguments, and copy
/// nothing.
const OF_FIXED_SIZE: [&str; 16] = [
    EQUALS,
    NOT_EQUALS,
    LESS,
    LESS_EQUALS,
    GREATER,
    GREATER_EQUALS,
    IN,
    LOGICAL_AND,
    LOGICAL_OR,
    LOGICAL_NOT,
    NOT_STRICTLY_FALSE,
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
];
/// Number of bytes that an operator compares or copies in the time of one step.
const BYTES_PER_STEP: usize = 256;

/// Cost of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Number of interpreter steps.
    pub(super) steps: usize,
    /// Memory that is allocated, in bytes.
    pub(super) bytes: usize,
}

impl Cost {
    const fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps.saturating_add(other.steps),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    const fn times(self, factor: usize) -> Self {
        Self { steps: self.steps.saturating_mul(factor), bytes: self.bytes.saturating_mul(factor) }
    }
}

/// Size of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Length of the text in it, in bytes.
    bytes: usize,
    /// Number of elements of its longest list or map, itself included.
    longest: usize,
}

impl Size {
    /// Size of a number or a bool.
    const SCALAR: Self = Self { bytes: 8, longest: 0 };

    /// Returns the size of a JSON value.
    pub(super) fn of(value: &Json) -> Self {
        match value {
            Json::Null | Json::Bool(_) | Json::Number(_) => Self::SCALAR,
            Json::String(text) => Self { bytes: 8 + text.len(), longest: 0 },
            Json::Array(items) => {
                let size = items.iter().map(Self::of).fold(Self::SCALAR, Self::and);
                Self { longest: size.longest.max(items.len()), ..size }
            }
            Json::Object(fields) => {
                let values =
                    fields.iter().map(|(key, value)| Self::of(value).with_bytes(key.len()));
                let size = values.fold(Self::SCALAR, Self::and);
                Self { longest: size.longest.max(fields.len()), ..size }
            }
        }
    }

    const fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// Size of a value that contains both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            longest: self.longest.max(other.longest),
        }
    }
}

/// Returns the number of steps in whose time a JSON value is converted to one of the interpreter.
pub(super) fn conversion_steps(value: &Json) -> usize {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => 1,
        Json::String(text) => 1 + text.len() / BYTES_PER_STEP,
        Json::Array(items) => 1 + items.iter().map(conversion_steps).sum::<usize>(),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| 1 + key.len() / BYTES_PER_STEP + conversion_steps(value));
            1 + fields.sum::<usize>()
        }
    }
}

/// Returns an upper bound of the cost of evaluating `expression` with variables of this total size.
pub(super) fn cost(expression: &IdedExpr, variables: Size) -> Cost {
    Estimator { variables, bound: Vec::new() }.estimate(expression).cost
}

/// Direct subexpressions of an entry of a map or of an object.
pub(super) fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Estimate of a subexpression: the cost of its evaluation, and the size of its result.
#[derive(Clone, Copy, Default)]
struct Estimate {
    cost: Cost,
    size: Size,
    /// Number of elements, if the result is a list.
    elements: usize,
}

struct Estimator<'a> {
    variables: Size,
    /// Sizes of the variables that the surrounding macros bind.
    bound: Vec<(&'a str, Size)>,
}

impl<'a> Estimator<'a> {
    fn estimate(&mut self, expression: &'a IdedExpr) -> Estimate {
        let mut estimate = match &expression.expr {
            Expr::Unspecified => Estimate::default(),
            Expr::Literal(literal) => {
                let bytes = format!("{literal:?}").len();
                Estimate { size: Size { bytes, longest: 0 }, ..Estimate::default() }
            }
            Expr::Ident(name) => {
                let bound = self.bound.iter().rev().find(|(known, _)| known == name);
                let size = bound.map_or(self.variables, |(_, size)| *size);
                Estimate { size, elements: size.longest, ..Estimate::default() }
            }
            Expr::Select(select) if select.test => {
                Estimate { size: Size::SCALAR, elements: 0, ..self.estimate(&select.operand) }
            }
            Expr::Select(select) => self.estimate(&select.operand),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let all = self.all(&list.elements);
                Estimate { elements: list.elements.len(), ..all }
            }
            Expr::Map(map) => {
                let entries = map.entries.iter().map(|entry| &entry.expr);
                self.entries(entries)
            }
            Expr::Struct(object) => {
                let entries = object.entries.iter().map(|entry| &entry.expr);
                self.entries(entries)
            }
        };
        estimate.cost.steps = estimate.cost.steps.saturating_add(1);
        estimate
    }

    /// Estimate of a value that contains those of all expressions.
    fn all(&mut self, expressions: impl IntoIterator<Item = &'a IdedExpr>) -> Estimate {
        let mut all = Estimate::default();
        for expression in expressions {
            let part = self.estimate(expression);
            all.cost = all.cost.plus(part.cost);
            all.size = all.size.and(part.size);
            all.elements = all.elements.saturating_add(part.elements);
        }
        all
    }

    fn entries(&mut self, entries: impl Iterator<Item = &'a EntryExpr>) -> Estimate {
        let expressions: Vec<&IdedExpr> = entries.flat_map(entry_parts).collect();
        let number = expressions.len();
        Estimate { elements: number, ..self.all(expressions) }
    }

    fn call(&mut self, call: &'a CallExpr) -> Estimate {
        let arguments = self.all(call.target.as_deref().into_iter().chain(&call.args));
        let mut cost = arguments.cost;
        cost.steps = cost.steps.saturating_add(arguments.size.bytes / BYTES_PER_STEP);
        if OF_FIXED_SIZE.contains(&call.func_name.as_str()) {
            return Estimate { cost, size: Size::SCALAR, elements: 0 };
        }
        cost.bytes = cost.bytes.saturating_add(arguments.size.bytes);
        Estimate { cost, ..arguments }
    }

    /// Estimate of a macro. The elements of its range share the range's size, and its accumulator
    /// grows by the result of one iteration.
    fn comprehension(&mut self, comprehension: &'a ComprehensionExpr) -> Estimate {
        let range = self.estimate(&comprehension.iter_range);
        let init = self.estimate(&comprehension.accu_init);
        let times = range.elements;
        let element = Size {
            bytes: range.size.bytes.checked_div(times).unwrap_or_default().saturating_add(8),
            longest: range.size.longest,
        };
        let bound = self.bound.len();
        self.bound.push((&comprehension.iter_var, element));
        self.bound.extend(comprehension.iter_var2.as_deref().map(|name| (name, element)));
        self.bound.push((&comprehension.accu_var, Size::default()));
        let condition = self.estimate(&comprehension.loop_cond);
        let step = self.estimate(&comprehension.loop_step);
        let result = self.estimate(&comprehension.result);
        self.bound.truncate(bound);
        let iteration = condition.cost.plus(step.cost);
        let size = Size {
            bytes: step.size.bytes.saturating_mul(times),
            longest: step.size.longest.max(times),
        };
        Estimate {
            cost: range.cost.plus(init.cost).plus(result.cost).plus(iteration.times(times)),
            size: size.and(init.size),
            elements: times,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cost_of(source: &str, pod: &Json) -> Cost {
        let program = cel::Program::compile(source).unwrap();
        cost(program.expression(), Size::of(pod))
    }

    #[test]
    fn usual_expressions_are_cheap() {
        let env: Vec<_> =
            (0..20).map(|n| json!({ "name": format!("E{n}"), "value": "v" })).collect();
        let container = json!({ "name": "c", "image": "registry/c:1", "env": env });
        let labels: serde_json::Map<_, _> =
            (0..20).map(|n| (format!("example.com/label-{n}"), json!("value"))).collect();
        let pod = json!({
            "metadata": { "labels": labels, "annotations": labels },
            "spec": { "containers": [container, container, container] },
        });
        for source in [
            "pod.metadata.labels['example.com/label-1'] == 'value'",
            "pod.spec.containers.all(c, c.image.startsWith('registry/'))",
            "pod.spec.containers.all(c, c.env.exists(e, e.name == 'E1'))",
            "pod.spec.containers.filter(c, c.name != 'c').map(c, c.image).size() == 0",
        ] {
            let cost = cost_of(source, &pod);
            assert!(cost.steps < 20_000 && cost.bytes < 1 << 20, "{source}: {cost:?}");
        }
    }

    #[test]
    fn repeated_concatenation_of_a_large_value_is_expensive() {
        let pod = json!({ "x": "x".repeat(250 << 10) });
        let sum = ["pod.x"; 55].join(" + ");
        let elements = ["1"; 64].join(", ");
        let source = format!("[{elements}].map(i, {sum}).size() > 0");
        let cost = cost_of(&source, &pod);
        assert!(cost.bytes > 64 * 55 * (250 << 10), "{cost:?}");
    }

    #[test]
    fn nested_macros_multiply() {
        let many: serde_json::Map<_, _> = (0..1400).map(|n| (n.to_string(), json!(""))).collect();
        let cost = cost_of("pod.a.all(x, pod.a.all(y, x != y))", &json!({ "a": many }));
        assert!(cost.steps > 1400 * 1400, "{cost:?}");
        let once = cost_of("pod.a.all(x, x != '')", &json!({ "a": many }));
        assert!(once.steps < 1400 * 20, "{once:?}");
    }

    #[test]
    fn lists_made_by_macros_are_ranged_over() {
        let source = "[1, 2, 3, 4].map(i, [1, 2, 3, 4]).all(l, l.all(i, i > 0))";
        let cost = cost_of(source, &json!({}));
        assert!(cost.steps >= 4 * 4 * 3, "{cost:?}");
    }
}
