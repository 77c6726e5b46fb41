//! Rules with an expression in the Common Expression Language (CEL): their verdicts on Pods.

use std::{cell::Cell, sync::Arc};

use podops_api::transition_rule::PodCounts;
use podops_expressions::{CompileError, EvaluationError, Expression, Fields, METADATA, Variables};
use serde_json::{Value, json};

use super::verdict::Verdict;
use crate::view::{Owner, PendingOperation, PodView};

/// Variables of the expressions of rules.
const VARIABLES: Variables = Variables {
    names: &["pod", "owner", "rule", "operation"],
    fields: &[
        Fields {
            of: &["pod"],
            known: &["apiVersion", "kind", "metadata", "spec", "status"],
            may_be_bool: true,
        },
        Fields { of: &["pod", "metadata"], known: &METADATA, may_be_bool: true },
        Fields { of: &["owner"], known: &["kind", "name", "replicas"], may_be_bool: false },
        Fields {
            of: &["rule"],
            known: &["available", "total", "unavailable", "waiting"],
            may_be_bool: false,
        },
        Fields { of: &["operation"], known: &["id", "type"], may_be_bool: false },
    ],
};

/// Compiles the expression of a rule.
///
/// # Errors
///
/// [`CompileError`] if it does not parse, uses an unknown variable or exceeds a limit.
pub fn compile(source: &str) -> Result<Arc<Expression>, CompileError> {
    Expression::compile(source, &VARIABLES)
}

/// Input of an expression besides the Pod.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Controller of the Pod.
    pub owner: Option<OwnerFacts<'a>>,
    /// Number of selected Pods by state.
    pub counts: PodCounts,
    /// Waiting operation.
    pub operation: &'a PendingOperation,
    /// Interpreter steps left for all expressions of a plan.
    pub steps_left: &'a Cell<usize>,
}

/// Controller of a Pod.
#[derive(Clone, Copy, Debug)]
pub struct OwnerFacts<'a> {
    /// Controller.
    pub owner: &'a Owner,
    /// Desired number of Pods, if it is a CollaSet.
    pub replicas: Option<usize>,
}

impl Facts<'_> {
    /// Values of the variables that follow the Pod.
    fn values(&self) -> [Value; 3] {
        let Self { owner, counts, operation, .. } = self;
        let owner = owner.map(|OwnerFacts { owner, replicas }| {
            json!({ "kind": owner.kind, "name": owner.name, "replicas": replicas })
        });
        let rule = json!({
            "total": counts.total, "available": counts.available,
            "unavailable": counts.unavailable, "waiting": counts.waiting,
        });
        let operation = json!({ "id": operation.id, "type": operation.operation_type });
        [json!(owner), rule, operation]
    }
}

/// Reason to reject a Pod that a rule needs as a whole, until it has been read.
pub const POD_NOT_FETCHED: &str = "full Pod not fetched yet";

/// Reason to reject a Pod whose fields do not fit into the memory of its namespace.
pub const FULL_PODS_LIMIT_REACHED: &str = "the fields that expressions and webhooks read of the namespace's waiting Pods exceed 8 MiB; \
     refer to fewer or smaller fields";

/// Reason to reject a Pod whose expressions are to be evaluated later.
const NO_STEPS_LEFT: &str =
    "the CEL expressions of this namespace are too expensive for all waiting Pods at once";

/// Evaluates an expression for a Pod. Any result other than true rejects; `message` is the reason
/// if the result is false.
#[must_use]
pub fn verdict(
    expression: &Expression,
    pod: &PodView,
    facts: &Facts<'_>,
    message: Option<&str>,
) -> Verdict {
    let Some(object) = &pod.object else {
        return Verdict::Reject(POD_NOT_FETCHED.to_owned());
    };
    let [owner, rule, operation] = facts.values();
    match expression.evaluate(&[&**object, &owner, &rule, &operation], facts.steps_left) {
        Ok(true) => Verdict::Pass,
        Ok(false) => Verdict::Reject(message.unwrap_or("CEL expression is false").to_owned()),
        Err(EvaluationError::NoStepsLeft) => Verdict::Reject(NO_STEPS_LEFT.to_owned()),
        Err(error) => Verdict::Failed(error.to_string()),
    }
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
            id: "collaset".into(),
            operation_type: "update".into(),
            instance: "1".to_owned(),
            check: "1".to_owned(),
        };
        let owner =
            Owner { kind: "CollaSet".to_owned(), name: "web".to_owned(), ..Owner::default() };
        let counts = PodCounts { total: 4, available: 3, unavailable: 1, waiting: 2 };
        let owner = OwnerFacts { owner: &owner, replicas: Some(4) };
        let steps_left = Cell::new(usize::MAX);
        let facts =
            Facts { owner: Some(owner), counts, operation: &operation, steps_left: &steps_left };
        verdict(&compile(source).unwrap(), &pod, &facts, None)
    }

    /// Facts of a Pod without a controller.
    fn facts<'a>(operation: &'a PendingOperation, steps_left: &'a Cell<usize>) -> Facts<'a> {
        Facts { owner: None, counts: PodCounts::default(), operation, steps_left }
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
            Verdict::Reject(reason) | Verdict::Failed(reason) => reason,
        };
        assert_eq!(rejection("rule.available > 3"), "CEL expression is false");
        assert_eq!(
            rejection("pod.metadata.labels.tier"),
            "CEL expression failed: result is not a bool"
        );
        assert_eq!(
            rejection("pod.status.phase == 'Running'"),
            "CEL expression failed: No such key: status"
        );
    }

    #[test]
    fn evaluations_that_are_too_expensive_are_rejected() {
        let many: serde_json::Map<_, _> = (0..2000).map(|n| (n.to_string(), json!(""))).collect();
        let pod = PodView { object: Some(Arc::new(json!({ "spec": many }))), ..PodView::default() };
        let operation = PendingOperation::default();
        let steps_left = Cell::new(usize::MAX);
        let facts = facts(&operation, &steps_left);
        let expensive = compile("pod.spec.all(x, pod.spec.all(y, x != y || true))").unwrap();
        let Verdict::Failed(reason) = verdict(&expensive, &pod, &facts, None) else {
            panic!("it passed")
        };
        assert!(reason.contains("more than 500000 steps or 8 MiB"), "{reason}");
    }

    /// Number of steps that an expression takes for a Pod with these fields.
    fn steps(fields: Value) -> usize {
        let pod = PodView { object: Some(Arc::new(fields)), ..PodView::default() };
        let operation = PendingOperation::default();
        let steps_left = Cell::new(usize::MAX);
        let expression = compile("1 < 2").unwrap();
        let found = verdict(&expression, &pod, &facts(&operation, &steps_left), None);
        assert_eq!(found, Verdict::Pass);
        usize::MAX - steps_left.get()
    }

    #[test]
    fn steps_include_the_conversion_of_the_pod() {
        let many: serde_json::Map<_, _> = (0..2000).map(|n| (n.to_string(), json!(""))).collect();
        let small = steps(json!({}));
        let large = steps(json!({ "spec": many }));
        assert!(small < 100 && large > small + 2000, "{small} and {large} steps");
    }

    #[test]
    fn expressions_of_one_plan_share_their_steps() {
        let pod = PodView { object: Some(Arc::new(json!({}))), ..PodView::default() };
        let operation = PendingOperation::default();
        let steps_left = Cell::new(2 * steps(json!({})) - 1);
        let facts = facts(&operation, &steps_left);
        let expression = compile("1 < 2").unwrap();
        let passes = || verdict(&expression, &pod, &facts, None) == Verdict::Pass;
        assert!(passes());
        assert!(!passes(), "{} steps left", steps_left.get());
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
            if compile(&source).is_ok() {
                let _: Verdict = verdict_of(&source);
            }
        }
    }
}
