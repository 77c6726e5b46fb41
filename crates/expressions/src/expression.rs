//! Compiles and evaluates expressions.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, LazyLock},
    thread,
};

use cel::{
    Context, Env, Program, Value,
    common::ast::{Expr, IdedExpr},
};
use parking_lot::Mutex;
use serde_json::Value as Json;

use super::{
    cost::{Size, conversion_steps, cost, entry_parts},
    types::{Variables, is_never_bool, unknown_field},
};

/// Maximum nesting of macros such as `all`, `exists` and `map`. The number of evaluation steps is
/// the product of the sizes that they range over.
const NESTED_MAX: usize = 2;
/// Maximum number of elements of a list in an expression, for the same reason.
const LIST_MAX: usize = 64;

/// Maximum depth of an expression. Parser and interpreter recurse for each level: expressions of
/// this depth fit into any thread's stack.
const DEPTH_MAX: usize = 64;
/// Stack size of the parser's thread in bytes, enough for the longest expression that the schema
/// allows.
const PARSER_STACK: usize = 64 << 20;

/// Maximum number of compiled expressions in the cache.
const CACHE_MAX: usize = 4096;

/// Maximum number of steps of one evaluation, about 0.1 s.
const STEPS_MAX: usize = 500_000;
/// Maximum memory of one evaluation, in bytes.
const BYTES_MAX: usize = 8 << 20;

static COMPILED: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// Names of the variables, and source of an expression.
type Key = (&'static [&'static str], String);

/// Compiled expressions. Those not used for the longest time make room for others, so that a
/// namespace with many expressions does not evict those of others that are in use.
#[derive(Default)]
struct Cache {
    compiled: BTreeMap<Key, Cached>,
    /// Number of lookups.
    lookups: u64,
}

struct Cached {
    compiled: Compiled,
    /// Lookup that last returned it.
    used: u64,
}

impl Cache {
    fn get(&mut self, key: &Key) -> Option<Compiled> {
        self.lookups += 1;
        let cached = self.compiled.get_mut(key)?;
        cached.used = self.lookups;
        Some(cached.compiled.clone())
    }

    fn insert(&mut self, key: Key, compiled: Compiled) {
        if self.compiled.len() >= CACHE_MAX {
            // A quarter at once, so that the search for the oldest is rare.
            let mut used: Vec<u64> = self.compiled.values().map(|cached| cached.used).collect();
            used.sort_unstable();
            let oldest_kept = used[used.len() / 4];
            self.compiled.retain(|_, cached| cached.used >= oldest_kept);
        }
        let used = self.lookups;
        self.compiled.insert(key, Cached { compiled, used });
    }
}

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

type Compiled = Result<Arc<Expression>, CompileError>;

/// Compiled expression.
pub struct Expression {
    program: Program,
    /// Names of its variables.
    variables: &'static [&'static str],
}

/// Reasons for which an expression cannot be compiled. Each text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The expression is not valid CEL.
    #[error("{message}")]
    Syntax {
        /// First line of the parser's message, shortened.
        message: String,
    },
    /// The parser failed without an error.
    #[error("cannot be parsed")]
    ParserFailed,
    /// The expression is too deep for the stack.
    #[error("nested more than {DEPTH_MAX} times")]
    TooDeep,
    /// The expression refers to a variable that does not exist.
    #[error("unknown variable {name}; available: {}", available.join(", "))]
    UnknownVariable {
        /// Name of the variable.
        name: String,
        /// Names of the variables that exist.
        available: &'static [&'static str],
    },
    /// The result can be neither true nor false.
    #[error("the result is not a bool")]
    NotBool,
    /// A variable does not have the field.
    #[error("unknown field {path}")]
    UnknownField {
        /// Variable and field.
        path: String,
    },
    /// Nested macros make the expression too expensive.
    #[error("more than {NESTED_MAX} nested macros")]
    NestedMacros,
    /// A list makes the expression too expensive.
    #[error("a list of more than {LIST_MAX} elements")]
    LongList,
}

/// Reasons for which an expression has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The expression is too expensive for variables of this size.
    #[error(
        "CEL expression may take more than {STEPS_MAX} steps or {} MiB for an object of this size; \
         simplify it", BYTES_MAX >> 20
    )]
    TooExpensive,
    /// The expression takes more steps than are left.
    #[error("CEL expression takes more steps than are left for all expressions")]
    NoStepsLeft,
    /// The result is neither true nor false.
    #[error("CEL expression failed: result is not a bool")]
    NotBool,
    /// The evaluation failed.
    #[error("CEL expression failed: {message}")]
    Failed {
        /// Error without the value that it failed on: the value changes, and may be confidential.
        message: String,
    },
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.program.source_info().source).finish()
    }
}

#[cfg(panic = "abort")]
compile_error!("a panic of the parser must end its thread only");

/// Runs the parser in a thread of its own, which its panic ends.
fn in_thread(
    parse: impl FnOnce() -> Result<Expression, CompileError> + Send,
) -> Result<Expression, CompileError> {
    thread::scope(|scope| {
        let parser = thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, parse);
        let parsed = parser.ok().and_then(|parser| parser.join().ok());
        parsed.unwrap_or(Err(CompileError::ParserFailed))
    })
}

impl Expression {
    /// Compiles an expression, or returns it from the cache.
    ///
    /// # Errors
    ///
    /// [`CompileError`] if it does not parse, uses an unknown variable or exceeds a limit.
    pub fn compile(source: &str, variables: &Variables) -> Result<Arc<Self>, CompileError> {
        let key = (variables.names, source.to_owned());
        let cached = COMPILED.lock().get(&key);
        if let Some(compiled) = cached {
            return compiled;
        }
        let compiled = in_thread(|| Self::parse(source, variables)).map(Arc::new);
        COMPILED.lock().insert(key, compiled.clone());
        compiled
    }

    fn parse(source: &str, variables: &Variables) -> Result<Self, CompileError> {
        let program = ENV
            .compile(source)
            .map_err(|error| CompileError::Syntax { message: one_line(&error.to_string()) })?;
        let expression = program.expression();
        if depth(expression) > DEPTH_MAX {
            return Err(CompileError::TooDeep);
        }
        if let Some(name) = unknown_variable(&program, variables) {
            return Err(CompileError::UnknownVariable { name, available: variables.names });
        }
        if let Some(path) = unknown_field_in(expression, variables, &bound_variables(expression)) {
            return Err(CompileError::UnknownField { path });
        }
        if is_never_bool(expression, variables) {
            return Err(CompileError::NotBool);
        }
        if nesting(expression) > NESTED_MAX {
            return Err(CompileError::NestedMacros);
        }
        if longest_list(expression) > LIST_MAX {
            return Err(CompileError::LongList);
        }
        Ok(Self { program, variables: variables.names })
    }

    /// Returns the paths of the fields of a variable that the expression reads; an empty path is
    /// the whole variable.
    #[must_use]
    pub fn fields_of(&self, variable: &str) -> Vec<Vec<String>> {
        let mut fields = Vec::new();
        add_fields(self.program.expression(), variable, &mut fields);
        fields
    }

    /// Evaluates the expression with values of its variables, in their order, and takes its steps,
    /// and those of converting the values, from `steps_left`.
    ///
    /// # Errors
    ///
    /// [`EvaluationError`] if it would be too expensive, if the evaluation fails or if its result
    /// is not a bool.
    pub fn evaluate(
        &self,
        values: &[&Json],
        steps_left: &Cell<usize>,
    ) -> Result<bool, EvaluationError> {
        let sizes = values.iter().map(|value| Size::of(value));
        let cost = cost(self.program.expression(), sizes.fold(Size::default(), Size::and));
        if cost.steps > STEPS_MAX || cost.bytes > BYTES_MAX {
            return Err(EvaluationError::TooExpensive);
        }
        let converted: usize = values.iter().map(|value| conversion_steps(value)).sum();
        let left = steps_left.get().checked_sub(cost.steps.saturating_add(converted));
        let left = left.ok_or(EvaluationError::NoStepsLeft)?;
        steps_left.set(left);
        let mut context = Context::with_env(ENV.clone());
        for (name, value) in self.variables.iter().zip(values) {
            context.add_variable_from_value(*name, to_cel(value));
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(passes)) => Ok(passes),
            Ok(_) => Err(EvaluationError::NotBool),
            Err(error) => {
                let message = error.to_string();
                let without_value = message.split('{').next().unwrap_or_default();
                Err(EvaluationError::Failed { message: one_line(without_value) })
            }
        }
    }
}

/// First variable of a program that is neither available nor bound by a macro.
fn unknown_variable(program: &Program, variables: &Variables) -> Option<String> {
    let references = program.references();
    let bound = bound_variables(program.expression());
    let mut used = references.variables().into_iter();
    let unknown = used.find(|name| !variables.names.contains(name) && !bound.contains(name));
    unknown.map(ToOwned::to_owned)
}

/// First field in an expression that its variable does not have.
fn unknown_field_in(
    expression: &IdedExpr,
    variables: &Variables,
    bound: &[&str],
) -> Option<String> {
    let mut parts = parts(expression).into_iter();
    unknown_field(expression, variables, bound)
        .or_else(|| parts.find_map(|part| unknown_field_in(part, variables, bound)))
}

/// Converts JSON to a CEL value. Every whole number becomes an int, as in Kubernetes' own
/// expressions, so that counts can be subtracted.
fn to_cel(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(bool) => Value::Bool(*bool),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Value::Int(whole),
            None => Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Json::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), to_cel(value)));
            Value::from(fields.collect::<HashMap<String, Value>>())
        }
    }
}

/// Returns the first line of an error, shortened for a status.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 200;
    text.lines().next().unwrap_or_default().chars().take(LONGEST).collect()
}

/// Direct subexpressions of an expression.
fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(c) => {
            vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|e| entry_parts(&e.expr)).collect(),
        Expr::Struct(object) => object.entries.iter().flat_map(|e| entry_parts(&e.expr)).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn add_fields(expression: &IdedExpr, variable: &str, fields: &mut Vec<Vec<String>>) {
    match field_of(expression, variable) {
        Some(field) => fields.push(field),
        None => {
            for part in parts(expression) {
                add_fields(part, variable, fields);
            }
        }
    }
}

/// Returns the path of a field of a variable, if the expression is one.
fn field_of(expression: &IdedExpr, variable: &str) -> Option<Vec<String>> {
    if let Expr::Select(select) = &expression.expr {
        let mut field = field_of(&select.operand, variable)?;
        field.push(select.field.clone());
        return Some(field);
    }
    let is_variable = matches!(&expression.expr, Expr::Ident(name) if name == variable);
    is_variable.then(Vec::new)
}

/// Variables bound by macros in an expression.
fn bound_variables(expression: &IdedExpr) -> Vec<&str> {
    let mut bound: Vec<&str> = parts(expression).into_iter().flat_map(bound_variables).collect();
    if let Expr::Comprehension(c) = &expression.expr {
        bound.extend([c.iter_var.as_str(), c.accu_var.as_str()]);
        bound.extend(c.iter_var2.as_deref());
    }
    bound
}

/// Levels of subexpressions.
fn depth(expression: &IdedExpr) -> usize {
    1 + parts(expression).into_iter().map(depth).max().unwrap_or_default()
}

/// Levels of nested macros.
fn nesting(expression: &IdedExpr) -> usize {
    let inside = parts(expression).into_iter().map(nesting).max().unwrap_or_default();
    inside + usize::from(matches!(expression.expr, Expr::Comprehension(_)))
}

/// Number of elements of the longest list.
fn longest_list(expression: &IdedExpr) -> usize {
    let inside = parts(expression).into_iter().map(longest_list).max().unwrap_or_default();
    let own = if let Expr::List(list) = &expression.expr { list.elements.len() } else { 0 };
    own.max(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Fields, METADATA};

    const VARIABLES: Variables = Variables {
        names: &["pod", "rule"],
        fields: &[
            Fields { of: &["pod"], known: &["metadata", "spec", "status"], may_be_bool: true },
            Fields { of: &["pod", "metadata"], known: &METADATA, may_be_bool: true },
            Fields { of: &["rule"], known: &["available"], may_be_bool: false },
        ],
    };

    fn compile(source: &str) -> Result<Arc<Expression>, CompileError> {
        Expression::compile(source, &VARIABLES)
    }

    #[test]
    fn a_panic_of_the_parser_rejects_the_expression() {
        let failed = in_thread(|| panic!("as the parser might"));
        assert!(matches!(failed, Err(CompileError::ParserFailed)));
    }

    #[test]
    fn expressions_in_use_are_not_evicted_by_others() {
        let mut cache = Cache::default();
        let compiled = compile("true");
        let key = |source: &str| (VARIABLES.names, source.to_owned());
        cache.insert(key("in use"), compiled.clone());
        for n in 0..3 * CACHE_MAX {
            assert!(cache.get(&key("in use")).is_some(), "evicted by the expression {n}");
            let other = key(&n.to_string());
            assert!(cache.get(&other).is_none());
            cache.insert(other, compiled.clone());
            assert!(cache.compiled.len() <= CACHE_MAX);
        }
        assert!(cache.get(&key("0")).is_none(), "those not used for the longest time are evicted");
    }

    #[test]
    fn mistakes_are_found_without_an_evaluation() {
        let error = |source: &str| compile(source).unwrap_err().to_string();
        for source in [
            "size(pod.metadata.labels)",
            "pod.metadata.labels.size() + 1",
            "pod.spec.containers.map(c, c.image)",
            "pod.spec.containers.filter(c, c.image == 'a')",
            "true ? 1 : 'a'",
            "'true'",
            "rule.available",
        ] {
            assert_eq!(error(source), "the result is not a bool", "{source}");
        }
        for (source, path) in [
            ("pod.metdata.labels.a == 'b'", "pod.metdata"),
            ("has(pod.metadata.lables.a)", "pod.metadata.lables"),
            ("rule.avaliable > 1", "rule.avaliable"),
            ("pod.spec.containers.all(c, c.name == rule.kind)", "rule.kind"),
        ] {
            assert_eq!(error(source), format!("unknown field {path}"), "{source}");
        }
        for source in [
            "pod.metadata.labels.canary",
            "pod.spec.containers.exists_one(c, c.name == 'web')",
            "true ? pod.metadata.labels.a == 'b' : false",
            "pod.spec.containers.all(rule, rule.image != '')",
        ] {
            assert!(compile(source).is_ok(), "{source}");
        }
    }

    #[test]
    fn the_fields_that_an_expression_reads_are_known() {
        let fields = |source: &str| {
            let fields = compile(source).unwrap().fields_of("pod");
            let mut fields: Vec<String> = fields.iter().map(|field| field.join(".")).collect();
            fields.sort();
            fields
        };
        assert_eq!(
            fields("has(pod.metadata.labels.a) && pod.spec.containers.all(c, c.image != '')"),
            ["metadata.labels.a", "spec.containers"]
        );
        assert_eq!(fields("pod.metadata.annotations['a/b'] == 'x'"), ["metadata.annotations"]);
        assert_eq!(fields("[pod].exists(p, p.spec.nodeName == 'n')"), [""]);
        assert_eq!(fields("rule.available > 1"), [""; 0]);
    }

    #[test]
    fn invalid_and_expensive_expressions_fail_to_compile() {
        let compile_error = |source: &str| compile(source).unwrap_err().to_string();
        assert!(!compile_error("pod.metadata.").is_empty());
        assert_eq!(
            compile_error("node.name == 'a'"),
            "unknown variable node; available: pod, rule"
        );
        let nested = "[1].all(a, [1].all(b, [1].all(c, a + b + c > 0)))";
        assert_eq!(compile_error(nested), "more than 2 nested macros");
        let long = format!("1 in [{}]", ["1"; 65].join(","));
        assert_eq!(compile_error(&long), "a list of more than 64 elements");
    }
}
