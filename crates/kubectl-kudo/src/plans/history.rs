//! History of the plans of an Instance.

use std::collections::BTreeSet;

use instance_operator::run::shown;
use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, Instance, OperatorVersionSpec, PlanRun};

use podops_terminal::tree::Node;

/// Returns the plans of an Instance, each with its known runs, latest first.
#[must_use]
pub fn history(instance: &Instance, version: &OperatorVersionSpec) -> Node {
    let status = instance.status.clone().unwrap_or_default();
    // The OperatorVersion may no longer have a plan of the history.
    let names: BTreeSet<&String> =
        version.plans.keys().chain(status.history.iter().map(|run| &run.plan)).collect();
    let plans = names.into_iter().map(|name| {
        let plan = status.plan_status.get(name);
        let runs: Vec<&PlanRun> = status.history.iter().filter(|run| run.plan == *name).collect();
        let last = plan.map(|plan| plan.status).or(runs.first().map(|run| run.status));
        let state = match last {
            Some(status) if status.is_running() => "is running".to_owned(),
            Some(status) if status != ExecutionStatus::NeverRun => {
                let finished = runs.first().and_then(|run| run.finished.as_ref());
                let updated = plan.and_then(|plan| plan.last_updated_timestamp.as_ref());
                let time = finished.or(updated);
                let time = time.map(|time| time.0.strftime("%Y-%m-%dT%H:%M:%S").to_string());
                let shown = shown(status);
                match time {
                    Some(time) => format!("last finished run at {time} ({shown})"),
                    None => shown,
                }
            }
            Some(_) | None => "never run".to_owned(),
        };
        Node::new(format!("{name} ({state})")).with(runs.into_iter().map(run))
    });
    Node::new(".").with(plans)
}

/// Returns the start, status, duration and reason of a run.
fn run(run: &PlanRun) -> Node {
    let started = run.started.as_ref().map(|time| time.0);
    let finished = run.finished.as_ref().map(|time| time.0);
    let began = started.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S").to_string());
    let message =
        if run.message.is_empty() { String::new() } else { format!(" ({})", run.message) };
    Node::new(format!(
        "{} {}{}: {}{message}",
        began.unwrap_or_else(|| "?".to_owned()),
        shown(run.status),
        duration(started, finished),
        run.reason
    ))
}

fn duration(started: Option<Timestamp>, finished: Option<Timestamp>) -> String {
    let (Some(started), Some(finished)) = (started, finished) else { return String::new() };
    format!(" after {:#}", finished.duration_since(started))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_hang_on_their_plans() {
        let version: OperatorVersionSpec = serde_json::from_value(json!({
            "plans": { "deploy": {}, "backup": {}, "restore": {}, "repair": {} },
        }))
        .unwrap();
        let run = |plan: &str, minute: u8, status: &str| {
            json!({
                "plan": plan, "uid": minute.to_string(), "reason": "requested", "status": status,
                "started": format!("2026-01-01T00:{minute:02}:00Z"),
                "finished": format!("2026-01-01T00:{minute:02}:05Z"),
            })
        };
        let instance: Instance = serde_json::from_value(json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": "test" },
            "spec": {},
            "status": {
                "planStatus": {
                    "deploy": { "name": "deploy", "status": "COMPLETE" },
                    "backup": { "name": "backup", "status": "IN_PROGRESS" },
                    "repair": { "name": "repair", "status": "COMPLETE" },
                },
                "history": [
                    run("backup", 3, "FATAL_ERROR"), run("deploy", 2, "COMPLETE"), run("deploy", 1, "COMPLETE"),
                    run("old", 0, "COMPLETE"),
                ],
            },
        }))
        .unwrap();
        let expected = "\
.
├── backup (is running)
│   └── 2026-01-01T00:03:00 FATAL_ERROR after 5s: requested
├── deploy (last finished run at 2026-01-01T00:02:05 (COMPLETE))
│   ├── 2026-01-01T00:02:00 COMPLETE after 5s: requested
│   └── 2026-01-01T00:01:00 COMPLETE after 5s: requested
├── old (last finished run at 2026-01-01T00:00:05 (COMPLETE))
│   └── 2026-01-01T00:00:00 COMPLETE after 5s: requested
├── repair (COMPLETE)
└── restore (never run)
";
        assert_eq!(history(&instance, &version).to_string(), expected);
    }
}
