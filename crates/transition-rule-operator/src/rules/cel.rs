//! Rules that are expressions in the Common Expression Language.

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
use crate::view::{Owner, PodView, Waiting};

/// What an expression may speak of.
const VARIABLES: [&str; 4] = ["pod", "owner", "rule", "operation"];

/// How deep `all`, `exists`, `map` and the like may be nested in one another, and how long lists in
/// an expression may be: an evaluation takes as many steps as the product of what they range over.
const NESTED_MAX: usize = 2;
const LIST_MAX: usize = 64;

/// How deep an expression may be nested altogether. Parser and interpreter call themselves for each
/// level, so the parser gets a stack of its own that the longest expression fits into, and what it
/// lets through fits into anybody's.
const DEPTH_MAX: usize = 64;
const PARSER_STACK: usize = 64 << 20;

/// How many compiled expressions are remembered.
const REMEMBERED_MAX: usize = 256;

type Compiled = Result<Arc<Expression>, String>;

static COMPILED: LazyLock<Mutex<BTreeMap<String, Compiled>>> = LazyLock::new(Mutex::default);

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// How many values a Pod may have for an expression that nests macros: an evaluation takes as many
/// steps as their square, and a Pod's author decides how many there are.
const VALUES_MAX: usize = 1500;

/// A compiled expression.
pub struct Expression(Program);

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.0.source_info().source).finish()
    }
}

/// What an expression is told besides the Pod.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The Pod's controller, and how many Pods that is to have.
    pub owner: Option<(&'a Owner, Option<usize>)>,
    /// How many of the selected Pods are what.
    pub counts: PodCounts,
    /// The operation that waits.
    pub operation: &'a Waiting,
}

impl Expression {
    /// Compiles an expression, or remembers that it did.
    ///
    /// # Errors
    ///
    /// If it is none, speaks of what there is not, or may take too long; the error says which.
    pub fn compile(source: &str) -> Compiled {
        let mut known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known.get(source) {
            return compiled.clone();
        }
        let parse = || Self::parse(source).map(Arc::new);
        let compiled = thread::scope(|scope| {
            let parser = thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, parse);
            let parsed = parser.ok().and_then(|parser| parser.join().ok());
            parsed.unwrap_or_else(|| Err("it cannot be parsed".to_owned()))
        });
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(source.to_owned(), compiled.clone());
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
            return Err(format!("{unknown} is not known; there are {}", VARIABLES.join(", ")));
        }
        if nesting(program.expression()) > NESTED_MAX {
            return Err(format!("more than {NESTED_MAX} nested macros"));
        }
        if longest_list(program.expression()) > LIST_MAX {
            return Err(format!("a list of more than {LIST_MAX} elements"));
        }
        Ok(Self(program))
    }

    /// What the expression says of a Pod; anything but true rejects it.
    #[must_use]
    pub fn verdict(&self, pod: &PodView, facts: &Facts<'_>, message: Option<&str>) -> Verdict {
        let Some(object) = &pod.object else {
            return Verdict::Reject("the Pod was not looked at yet".to_owned());
        };
        if nesting(self.0.expression()) > 1 && values(object) > VALUES_MAX {
            return Verdict::Reject("the Pod is too large for nested macros".to_owned());
        }
        match self.evaluate(object, facts) {
            Ok(true) => Verdict::Pass,
            Ok(false) => Verdict::Reject(message.unwrap_or("its expression is false").to_owned()),
            Err(fault) => Verdict::Reject(format!("its expression fails: {fault}")),
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
            Ok(_) => Err("its result is neither true nor false".to_owned()),
            // The value that it failed on is left out: it changes, and is nobody else's business.
            Err(error) => Err(one_line(error.to_string().split('{').next().unwrap_or_default())),
        }
    }
}

/// A value as expressions see it: every whole number is an int, as in Kubernetes' own expressions,
/// so that counts can be subtracted.
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

/// How many values there are in one.
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

/// The first line of an error, as statuses have it.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 200;
    text.lines().next().unwrap_or_default().chars().take(LONGEST).collect()
}

/// The parts of an expression.
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

/// The variables that macros bind.
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

    fn says(source: &str) -> Verdict {
        let object = json!({
            "metadata": { "name": "web-1", "labels": { "tier": "front" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let pod = PodView { object: Some(Arc::new(object)), ..PodView::default() };
        let operation = Waiting {
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
    fn sees_the_pod_its_owner_the_counts_and_the_operation() {
        for holds in [
            "pod.metadata.labels.tier == 'front'",
            "pod.spec.containers.all(c, c.image.startsWith('nginx:'))",
            "owner.kind == 'CollaSet' && owner.replicas == 4",
            "rule.available >= 3 && rule.total - 1 == 3 && rule.unavailable * 2 < rule.total",
            "operation.type == 'update'",
            "!has(pod.metadata.annotations)",
        ] {
            assert_eq!(says(holds), Verdict::Pass, "{holds}");
        }
    }

    #[test]
    fn anything_but_true_rejects_and_says_why() {
        let says = |source: &str| match says(source) {
            Verdict::Pass => String::new(),
            Verdict::Reject(reason) => reason,
        };
        assert_eq!(says("rule.available > 3"), "its expression is false");
        assert_eq!(
            says("rule.available"),
            "its expression fails: its result is neither true nor false"
        );
        assert_eq!(
            says("pod.status.phase == 'Running'"),
            "its expression fails: No such key: status"
        );
    }

    #[test]
    fn what_is_no_expression_or_costs_too_much_is_told() {
        let fault = |source: &str| Expression::compile(source).unwrap_err();
        assert!(!fault("pod.metadata.").is_empty());
        assert_eq!(
            fault("node.name == 'a'"),
            "node is not known; there are pod, owner, rule, operation"
        );
        let nested = "[1].all(a, [1].all(b, [1].all(c, a + b + c > 0)))";
        assert_eq!(fault(nested), "more than 2 nested macros");
        let long = format!("1 in [{}]", ["1"; 65].join(","));
        assert_eq!(fault(&long), "a list of more than 64 elements");
    }

    #[test]
    fn a_pod_that_makes_nested_macros_dear_is_rejected() {
        let many: serde_json::Map<_, _> = (0..2000).map(|n| (n.to_string(), json!(""))).collect();
        let pod = PodView { object: Some(Arc::new(json!({ "a": many }))), ..PodView::default() };
        let operation = Waiting::default();
        let facts = Facts { owner: None, counts: PodCounts::default(), operation: &operation };
        let dear = Expression::compile("pod.a.all(x, pod.a.all(y, x != y || true))").unwrap();
        let reason = "the Pod is too large for nested macros".to_owned();
        assert_eq!(dear.verdict(&pod, &facts, None), Verdict::Reject(reason));
    }

    #[test]
    fn no_expression_that_fits_overflows_the_stack() {
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
                let _: Verdict = says(&source);
            }
        }
    }
}
