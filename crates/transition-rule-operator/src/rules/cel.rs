//! Rules with an expression in the Common Expression Language (CEL).

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
};

use cel::{
    Context, Env, Program, Value,
    common::ast::{EntryExpr, Expr, IdedExpr},
};
use podops_api::transition_rule::PodCounts;
use serde_json::json;

use super::Verdict;
use crate::view::{Owner, PendingOperation, PodView};

/// Variables available to expressions.
const VARIABLES: [&str; 4] = ["pod", "owner", "rule", "operation"];

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
const CACHE_MAX: usize = 256;

type Compiled = Result<Arc<Expression>, String>;

static COMPILED: LazyLock<Mutex<BTreeMap<String, Compiled>>> = LazyLock::new(Mutex::default);

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// Maximum number of values in a Pod for an expression with nested macros. The number of evaluation
/// steps is its square, and the author of the Pod controls it.
const VALUES_MAX: usize = 1500;

/// Compiled expression.
pub struct Expression(Program);

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.0.source_info().source).finish()
    }
}

/// Input of an expression besides the Pod.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Controller of the Pod, and its desired number of Pods if it is a CollaSet.
    pub owner: Option<(&'a Owner, Option<usize>)>,
    /// Number of selected Pods by state.
    pub counts: PodCounts,
    /// Waiting operation.
    pub operation: &'a PendingOperation,
}

impl Expression {
    /// Compiles an expression, or returns it from the cache.
    ///
    /// # Errors
    ///
    /// If it does not parse, uses an unknown variable or exceeds a limit; the error is one line.
    pub fn compile(source: &str) -> Compiled {
        let mut cache = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = cache.get(source) {
            return compiled.clone();
        }
        let parse = || Self::parse(source).map(Arc::new);
        let compiled = thread::scope(|scope| {
            let parser = thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, parse);
            let parsed = parser.ok().and_then(|parser| parser.join().ok());
            parsed.unwrap_or_else(|| Err("cannot be parsed".to_owned()))
        });
        if cache.len() >= CACHE_MAX {
            cache.clear();
        }
        cache.insert(source.to_owned(), compiled.clone());
        compiled
    }

    fn parse(source: &str) -> Result<Self, String> {
        let program = ENV.compile(source).map_err(|error| one_line(&error.to_string()))?;
        if depth(program.expression()) > DEPTH_MAX {
            return Err(format!("nested more than {DEPTH_MAX} times"));
        }
        let (references, bound) = (program.references(), bound(program.expression()));
        let is_known = |name: &&str| VARIABLES.contains(name) || bound.contains(name);
        let unknown = references.variables().into_iter().find(|name| !is_known(name));
        if let Some(unknown) = unknown {
            return Err(format!("unknown variable {unknown}; available: {}", VARIABLES.join(", ")));
        }
        if nesting(program.expression()) > NESTED_MAX {
            return Err(format!("more than {NESTED_MAX} nested macros"));
        }
        if longest_list(program.expression()) > LIST_MAX {
            return Err(format!("a list of more than {LIST_MAX} elements"));
        }
        Ok(Self(program))
    }

    /// Evaluates the expression for a Pod. Any result other than true rejects; `message` is the
    /// reason if the result is false.
    #[must_use]
    pub fn verdict(&self, pod: &PodView, facts: &Facts<'_>, message: Option<&str>) -> Verdict {
        let Some(object) = &pod.object else {
            return Verdict::Reject("full Pod not fetched yet".to_owned());
        };
        if nesting(self.0.expression()) > 1 && values(object) > VALUES_MAX {
            let reason =
                format!("Pod has more than {VALUES_MAX} values, too many for nested macros");
            return Verdict::Reject(reason);
        }
        match self.evaluate(object, facts) {
            Ok(true) => Verdict::Pass,
            Ok(false) => Verdict::Reject(message.unwrap_or("CEL expression is false").to_owned()),
            Err(error) => Verdict::Reject(format!("CEL expression failed: {error}")),
        }
    }

    fn evaluate(&self, pod: &serde_json::Value, facts: &Facts<'_>) -> Result<bool, String> {
        let mut context = Context::with_env(ENV.clone());
        let owner = facts.owner.map(|(owner, replicas)| {
            json!({ "kind": owner.kind, "name": owner.name, "replicas": replicas })
        });
        let counts = facts.counts;
        let rule = json!({
            "total": counts.total, "available": counts.available,
            "unavailable": counts.unavailable, "waiting": counts.waiting,
        });
        let operation = facts.operation;
        let operation = json!({ "id": operation.id, "type": operation.operation_type });
        for (name, value) in
            [("pod", pod), ("owner", &json!(owner)), ("rule", &rule), ("operation", &operation)]
        {
            context.add_variable_from_value(name, to_cel(value));
        }
        match self.0.execute(&context) {
            Ok(Value::Bool(passes)) => Ok(passes),
            Ok(_) => Err("result is not a bool".to_owned()),
            // Without the value that it failed on: it changes, and may be confidential.
            Err(error) => Err(one_line(error.to_string().split('{').next().unwrap_or_default())),
        }
    }
}

/// Converts JSON to a CEL value. Every whole number becomes an int, as in Kubernetes' own
/// expressions, so that counts can be subtracted.
fn to_cel(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(bool) => Value::Bool(*bool),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => Value::Int(whole),
            None => Value::Float(number.as_f64().unwrap_or_default()),
        },
        serde_json::Value::String(text) => Value::String(Arc::new(text.clone())),
        serde_json::Value::Array(items) => {
            Value::List(Arc::new(items.iter().map(to_cel).collect()))
        }
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), to_cel(value)));
            Value::from(fields.collect::<std::collections::HashMap<String, Value>>())
        }
    }
}

/// Counts the values in a JSON value, including itself.
fn values(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        serde_json::Value::Object(fields) => 1 + fields.values().map(values).sum::<usize>(),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => 1,
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
        Expr::Map(map) => map.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
        Expr::Struct(object) => object.entries.iter().flat_map(|e| entry(&e.expr)).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Variables bound by macros in an expression.
fn bound(expression: &IdedExpr) -> Vec<&str> {
    let mut bound: Vec<&str> = parts(expression).into_iter().flat_map(bound).collect();
    if let Expr::Comprehension(c) = &expression.expr {
        bound.extend([c.iter_var.as_str(), c.accu_var.as_str()]);
        bound.extend(c.iter_var2.as_deref());
    }
    bound
}

fn depth(expression: &IdedExpr) -> usize {
    1 + parts(expression).into_iter().map(depth).max().unwrap_or_default()
}

fn nesting(expression: &IdedExpr) -> usize {
    let inside = parts(expression).into_iter().map(nesting).max().unwrap_or_default();
    inside + usize::from(matches!(expression.expr, Expr::Comprehension(_)))
}

fn longest_list(expression: &IdedExpr) -> usize {
    let inside = parts(expression).into_iter().map(longest_list).max().unwrap_or_default();
    let own = if let Expr::List(list) = &expression.expr { list.elements.len() } else { 0 };
    own.max(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(source: &str) -> Verdict {
        let object = json!({
            "metadata": { "name": "web-1", "labels": { "tier": "front" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let pod = PodView { object: Some(Arc::new(object)), ..PodView::default() };
        let operation = PendingOperation {
            id: "collaset".to_owned(),
            operation_type: "update".to_owned(),
            instance: "1".to_owned(),
            check: "1".to_owned(),
        };
        let owner =
            Owner { kind: "CollaSet".to_owned(), name: "web".to_owned(), uid: String::new() };
        let counts = PodCounts { total: 4, available: 3, unavailable: 1, waiting: 2 };
        let facts = Facts { owner: Some((&owner, Some(4))), counts, operation: &operation };
        Expression::compile(source).unwrap().verdict(&pod, &facts, None)
    }

    #[test]
    fn expressions_read_pod_owner_counts_and_operation() {
        for expression in [
            "pod.metadata.labels.tier == 'front'",
            "pod.spec.containers.all(c, c.image.startsWith('nginx:'))",
            "owner.kind == 'CollaSet' && owner.replicas == 4",
            "rule.available >= 3 && rule.total - 1 == 3 && rule.unavailable * 2 < rule.total",
            "operation.type == 'update'",
            "!has(pod.metadata.annotations)",
        ] {
            assert_eq!(verdict_of(expression), Verdict::Pass, "{expression}");
        }
    }

    #[test]
    fn results_other_than_true_reject_with_a_reason() {
        let rejection = |source: &str| match verdict_of(source) {
            Verdict::Pass => String::new(),
            Verdict::Reject(reason) => reason,
        };
        assert_eq!(rejection("rule.available > 3"), "CEL expression is false");
        assert_eq!(rejection("rule.available"), "CEL expression failed: result is not a bool");
        assert_eq!(
            rejection("pod.status.phase == 'Running'"),
            "CEL expression failed: No such key: status"
        );
    }

    #[test]
    fn invalid_and_expensive_expressions_fail_to_compile() {
        let compile_error = |source: &str| Expression::compile(source).unwrap_err();
        assert!(!compile_error("pod.metadata.").is_empty());
        assert_eq!(
            compile_error("node.name == 'a'"),
            "unknown variable node; available: pod, owner, rule, operation"
        );
        let nested = "[1].all(a, [1].all(b, [1].all(c, a + b + c > 0)))";
        assert_eq!(compile_error(nested), "more than 2 nested macros");
        let long = format!("1 in [{}]", ["1"; 65].join(","));
        assert_eq!(compile_error(&long), "a list of more than 64 elements");
    }

    #[test]
    fn pods_too_large_for_nested_macros_are_rejected() {
        let many: serde_json::Map<_, _> = (0..2000).map(|n| (n.to_string(), json!(""))).collect();
        let pod = PodView { object: Some(Arc::new(json!({ "a": many }))), ..PodView::default() };
        let operation = PendingOperation::default();
        let facts = Facts { owner: None, counts: PodCounts::default(), operation: &operation };
        let expensive = Expression::compile("pod.a.all(x, pod.a.all(y, x != y || true))").unwrap();
        let reason = "Pod has more than 1500 values, too many for nested macros".to_owned();
        assert_eq!(expensive.verdict(&pod, &facts, None), Verdict::Reject(reason));
    }

    #[test]
    fn expressions_of_maximum_length_do_not_overflow_the_stack() {
        for (before, middle, after) in [
            ("!", "true", ""),
            ("-", "1", ""),
            ("", "1", "+1"),
            ("", "pod", ".a"),
            ("", "true", "&&true"),
            ("(", "1", ")"),
            ("[", "", "]"),
            ("", "true", "?true:true"),
        ] {
            let times = 2040 / (before.len() + after.len());
            let source = format!("{}{middle}{}", before.repeat(times), after.repeat(times));
            if Expression::compile(&source).is_ok() {
                let _: Verdict = verdict_of(&source);
            }
        }
    }
}
