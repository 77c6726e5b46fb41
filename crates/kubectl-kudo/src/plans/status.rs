//! Plans with their phases and steps, as a tree.

use instance_operator::run::shown;
use jiff::Timestamp;
use podops_api::kudo::{
    ExecutionStatus, Instance, InstancePlan, InstanceStatus, OperatorVersionSpec, PlanStatus,
    Strategy,
};

use podops_terminal::tree::Node;

/// Returns the plans of an Instance; `None` if no plan has ever run.
#[must_use]
pub fn status(instance: &Instance, version: &OperatorVersionSpec) -> Option<Node> {
    let status = instance.status.clone().unwrap_or_default();
    let shown_plan = shown_plan(&status)?;
    let name = instance.metadata.name.as_deref().unwrap_or_default();
    let version_name = instance.spec.operator_version.name.as_deref().unwrap_or_default();
    let title =
        format!("{name} (Operator-Version: {version_name:?} Active-Plan: {:?})", shown_plan.name);
    let plans = version.plans.iter().map(|(name, plan)| {
        if *name == shown_plan.name { active(plan, shown_plan) } else { inactive(name, plan) }
    });
    let mut tree = Node::new(title).with(plans);
    if !status.pending.is_empty() {
        tree.add(Node::new(format!("Pending: {}", status.pending.join(", "))));
    }
    let faults = status.conditions.iter().filter(|condition| {
        condition.type_ == "Degraded" && condition.status == "True" && !condition.message.is_empty()
    });
    for fault in faults {
        tree.add(Node::new(format!("{}: {}", fault.reason, fault.message)));
    }
    Some(Node::new(".").with([tree]))
}

/// Returns the running plan, otherwise the last plan in the history: several may have ended in the
/// same second.
fn shown_plan(status: &InstanceStatus) -> Option<&PlanStatus> {
    let plans = &status.plan_status;
    let running = plans.values().find(|plan| plan.status.is_running());
    let ran = plans.values().filter(|plan| plan.status != ExecutionStatus::NeverRun);
    let last = status.history.first().and_then(|run| plans.get(&run.plan));
    running.or(last).or_else(|| ran.max_by_key(|plan| last_updated(plan)))
}

fn last_updated(plan: &PlanStatus) -> Timestamp {
    plan.last_updated_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
}

const fn strategy(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Serial => "serial",
        Strategy::Parallel => "parallel",
    }
}

fn message(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn active(plan: &InstancePlan, status: &PlanStatus) -> Node {
    let updated = status.last_updated_timestamp.as_ref();
    let updated =
        updated.map(|time| time.0.strftime(", last updated %Y-%m-%d %H:%M:%S").to_string());
    let text = format!(
        "Plan {} ({} strategy) [{}]{}{}",
        status.name,
        strategy(plan.strategy),
        shown(status.status),
        message(&status.message),
        updated.unwrap_or_default()
    );
    let phases = plan.phases.iter().map(|phase| {
        let known = status.phases.iter().find(|known| known.name == phase.name);
        let known = known.cloned().unwrap_or_default();
        let text = format!(
            "Phase {} ({} strategy) [{}]{}",
            phase.name,
            strategy(phase.strategy),
            shown(known.status),
            message(&known.message)
        );
        let steps = phase.steps.iter().map(|step| {
            let found = known.steps.iter().find(|known| known.name == step.name);
            let found = found.cloned().unwrap_or_default();
            let text = format!("Step {} [{}]", step.name, shown(found.status));
            Node::new(text + &message(&found.message))
        });
        Node::new(text).with(steps)
    });
    Node::new(text).with(phases)
}

fn inactive(name: &str, plan: &InstancePlan) -> Node {
    let phases = plan.phases.iter().map(|phase| {
        let steps = phase.steps.iter().map(|step| format!("Step {} [NOT ACTIVE]", step.name));
        let strategy = strategy(phase.strategy);
        Node::new(format!("Phase {} ({strategy} strategy) [NOT ACTIVE]", phase.name))
            .with(steps.map(Node::new))
    });
    let strategy = strategy(plan.strategy);
    Node::new(format!("Plan {name} ({strategy} strategy) [NOT ACTIVE]")).with(phases)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tree_is_that_of_kudo() {
        let phases =
            json!([{ "name": "deploy", "strategy": "serial", "steps": [{ "name": "deploy" }] }]);
        let validate = json!([{ "name": "validate", "strategy": "serial", "steps": [{ "name": "validate" }] }]);
        let version: OperatorVersionSpec = serde_json::from_value(json!({
            "plans": {
                "deploy": { "strategy": "serial", "phases": phases },
                "validate": { "strategy": "serial", "phases": validate },
            },
        }))
        .unwrap();
        let step = json!({ "name": "deploy", "status": "FATAL_ERROR", "message": "error detail" });
        let mut instance: Instance = serde_json::from_value(json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": "test" },
            "spec": { "operatorVersion": { "name": "test-1.0" } },
            "status": { "planStatus": { "deploy": {
                "name": "deploy", "status": "FATAL_ERROR",
                "lastUpdatedTimestamp": "2019-10-17T01:01:01Z",
                "phases": [{ "name": "deploy", "status": "FATAL_ERROR", "steps": [step] }],
            } } },
        }))
        .unwrap();
        let expected = "\
.
└── test (Operator-Version: \"test-1.0\" Active-Plan: \"deploy\")
    ├── Plan deploy (serial strategy) [FATAL_ERROR], last updated 2019-10-17 01:01:01
    │   └── Phase deploy (serial strategy) [FATAL_ERROR]
    │       └── Step deploy [FATAL_ERROR] (error detail)
    └── Plan validate (serial strategy) [NOT ACTIVE]
        └── Phase validate (serial strategy) [NOT ACTIVE]
            └── Step validate [NOT ACTIVE]
";
        assert_eq!(status(&instance, &version).unwrap().to_string(), expected);
        // K36: a plan may have a phase of the same name.
        let mut other = version.clone();
        let phases = json!([{ "name": "deploy", "strategy": "parallel" }]);
        let plan = json!({ "strategy": "parallel", "phases": phases });
        other.plans.insert("another".to_owned(), serde_json::from_value(plan).unwrap());
        let shown = status(&instance, &other).unwrap().to_string();
        assert!(shown.contains("Phase deploy (serial strategy) [FATAL_ERROR]"), "{shown}");
        assert!(shown.contains("Phase deploy (parallel strategy) [NOT ACTIVE]"), "{shown}");
        // Both plans ended in the same second; `another` was the last.
        let mut several = instance.clone();
        let ended = several.status.as_mut().unwrap();
        let mut last = ended.plan_status["deploy"].clone();
        last.name = "another".to_owned();
        ended.plan_status.insert("another".to_owned(), last);
        ended.history =
            serde_json::from_value(json!([{ "plan": "another" }, { "plan": "deploy" }])).unwrap();
        let shown = status(&several, &other).unwrap().to_string();
        assert!(shown.contains("Active-Plan: \"another\""), "{shown}");
        instance.status = None;
        assert_eq!(status(&instance, &version), None);
    }
}
