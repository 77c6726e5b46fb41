//! Tests of the plans that run, and their order, for changes of the spec.

use podops_api::kudo::{ExecutionStatus, PlanExecution, PlanStatus};
use serde_json::{Value, json};

use super::check;
use crate::{
    simulation::World,
    view::{Finalizer, SourceValue},
};

/// Returns an OperatorVersion. Plans without phases complete at once; plans in `waiting` have a
/// step that is never done.
fn version(plans: &[&str], waiting: &[&str]) -> Value {
    let plan = |name: &&str| {
        let steps = json!([{ "name": "step", "tasks": ["never"] }]);
        let phases = json!([{ "name": "phase", "strategy": "serial", "steps": steps }]);
        let phases = if waiting.contains(name) { phases } else { json!([]) };
        ((*name).to_owned(), json!({ "strategy": "serial", "phases": phases }))
    };
    let plans: serde_json::Map<String, Value> = plans.iter().map(plan).collect();
    json!({
        "version": "0.1.0", "plans": plans,
        "tasks": [{ "name": "never", "kind": "Dummy" }],
        "parameters": [
            { "name": "P", "default": "1" },
            { "name": "B", "default": "1", "trigger": "backup" },
            { "name": "S", "default": "1", "trigger": "scale" },
        ],
    })
}

/// Returns a deployed Instance of such an OperatorVersion.
fn deployed(plans: &[&str], waiting: &[&str]) -> World {
    let mut world = World::new(&version(plans, &[]), &json!({}));
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"]);
    world.set_version("v1/1", &version(plans, waiting));
    world
}

fn degraded(world: &World) -> (String, String) {
    let conditions = &world.status().conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "Degraded");
    let Some(found) = found else { return ("absent".to_owned(), String::new()) };
    (format!("{} {}", found.status, found.reason), found.message.clone())
}

#[test]
fn a_new_instance_runs_deploy() {
    deployed(&["deploy"], &[]);
}

#[test]
fn a_new_instance_without_deploy_is_invalid() {
    let mut world = World::new(&version(&["backup"], &[]), &json!({}));
    world.reconcile();
    assert_eq!(degraded(&world).0, "True InvalidPlan");
    assert_eq!(world.events.len(), 1, "{:?}", world.events);
    world.reconcile();
    assert_eq!(world.events.len(), 1, "the event is published once");
    world.set_version("v1/2", &version(&["deploy"], &[]));
    world.reconcile();
    assert_eq!(
        (world.runs(), degraded(&world).0),
        (vec!["deploy COMPLETE".into()], "absent".into())
    );
}

#[test]
fn a_missing_version_is_reported_until_it_exists() {
    let mut world = World::new(&version(&["deploy"], &[]), &json!({}));
    let version = world.observed.version.take();
    world.reconcile();
    assert_eq!(
        degraded(&world),
        (
            "True InvalidOperatorVersion".into(),
            "OperatorVersion default/op-1 does not exist".into()
        )
    );
    world.observed.version = version;
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// For example in a namespace that is being deleted, where no OperatorVersion can be created.
#[test]
fn a_deleted_instance_without_version_goes_after_a_while() {
    let mut world = World::new(&version(&["deploy", "cleanup"], &[]), &json!({}));
    world.reconcile();
    assert!(world.observed.has(Finalizer::Cleanup));
    world.observed.version = None;
    world.delete();
    world.reconcile();
    assert!(world.observed.has(Finalizer::Cleanup), "it may be created again");
    assert!(world.last.requeue_after.is_some());
    world.sleep(301);
    world.reconcile();
    assert!(!world.observed.has(Finalizer::Cleanup));
    let expected = "CleanupLeft: OperatorVersion default/op-1 does not exist";
    assert_eq!(world.events.last().unwrap(), expected);
}

#[test]
fn a_changed_parameter_runs_its_trigger_or_update_or_deploy() {
    let cases = [
        ("P", vec!["deploy", "update", "backup"], "update"),
        ("P", vec!["deploy", "backup"], "deploy"),
        ("B", vec!["deploy", "update", "backup"], "backup"),
    ];
    for (parameter, plans, expected) in cases {
        let mut world = deployed(&plans, &[]);
        world.set(parameter, "2");
        world.reconcile();
        assert_eq!(world.runs()[1..], [format!("{expected} COMPLETE")]);
        assert_eq!(world.status().history[0].reason, format!("parameters changed: {parameter}"));
        world.edit(|spec| drop(spec.parameters.remove(parameter)));
        world.reconcile();
        assert_eq!(
            world.runs()[2..],
            [format!("{expected} COMPLETE")],
            "a removed value is a change"
        );
    }
}

/// K43.
#[test]
fn a_parameter_set_to_its_default_runs_nothing() {
    let mut world = deployed(&["deploy"], &[]);
    world.set("P", "1");
    world.reconcile();
    world.edit(|spec| spec.parameters.clear());
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"]);
}

#[test]
fn several_triggers_run_in_the_order_of_parameters() {
    let mut world = deployed(&["deploy", "backup", "scale"], &[]);
    world.edit(|spec| {
        spec.parameters =
            [("S", "2"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup COMPLETE", "scale COMPLETE"]);
}

#[test]
fn another_plan_waits_its_turn_and_the_status_says_so() {
    let mut world = deployed(&["deploy", "backup", "scale"], &["backup"]);
    world.set("B", "2");
    world.reconcile();
    world.set("S", "2");
    world.reconcile();
    assert_eq!(
        (world.plan("backup"), world.status().pending.clone()),
        ("IN_PROGRESS".into(), vec!["scale".into()])
    );
    world.edit(|spec| spec.plan_execution.cancel = "other".to_owned());
    world.reconcile();
    assert_eq!(world.plan("backup"), "IN_PROGRESS", "another run was to be cancelled");
    let running = world.status().plan_status["backup"].uid.clone();
    world.edit(|spec| spec.plan_execution.cancel = running);
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup FATAL_ERROR", "scale COMPLETE"]);
    assert_eq!(world.status().history[1].message, "cancelled by spec.planExecution.cancel");
}

/// K2: the objects are healthy, but the rollout has not completed.
#[test]
fn a_cancelled_rollout_keeps_the_instance_unready() {
    let mut world = deployed(&["deploy", "update"], &["update"]);
    world.observed.problems = Some(Vec::new());
    assert_eq!(world.condition("Ready"), "True ResourcesReady");
    world.set("P", "2");
    world.reconcile();
    let running = world.status().plan_status["update"].uid.clone();
    world.edit(|spec| spec.plan_execution.cancel = running);
    world.reconcile();
    let ended = "PlanFinished: Execution of plan update finished with status FATAL_ERROR";
    assert_eq!(world.events.last().unwrap(), ended);
    world.reconcile();
    assert_eq!(world.condition("Ready"), "False PlanInFatalError");
    world.set_version("v1/1", &version(&["deploy", "update"], &[]));
    world.set("P", "3");
    world.reconcile();
    assert_eq!(world.condition("Ready"), "True ResourcesReady");
}

#[test]
fn a_run_can_be_cancelled_while_the_spec_is_invalid() {
    let mut world = deployed(&["deploy", "backup"], &["backup"]);
    world.set("B", "2");
    world.reconcile();
    let running = world.status().plan_status["backup"].uid.clone();
    world.edit(|spec| {
        spec.parameters.insert("X".to_owned(), "1".to_owned());
        spec.plan_execution.cancel = running;
    });
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup FATAL_ERROR"]);
    assert_eq!(degraded(&world).0, "True InvalidParams");
    world.edit(|spec| drop(spec.parameters.remove("X")));
    world.reconcile();
    assert_eq!(world.runs().len(), 2, "it ended once");
}

#[test]
fn a_changed_input_restarts_the_running_plan() {
    let mut world = deployed(&["deploy", "backup"], &["backup"]);
    world.set("B", "2");
    world.reconcile();
    let first = world.status().plan_status["backup"].uid.clone();
    world.set("B", "3");
    world.reconcile();
    assert_ne!(world.status().plan_status["backup"].uid, first);
    assert_eq!((world.plan("backup"), world.status().pending.len()), ("IN_PROGRESS".into(), 0));
}

#[test]
fn until_deploy_is_complete_every_change_restarts_it() {
    let plans = ["deploy", "update", "backup"];
    let mut world = World::new(&version(&plans, &["deploy"]), &json!({}));
    world.reconcile();
    let first = world.status().plan_status["deploy"].uid.clone();
    world.set("B", "2");
    world.reconcile();
    assert_ne!(world.status().plan_status["deploy"].uid, first);
    assert_eq!(world.status().pending, [""; 0]);
    world.set_version("v2/1", &version(&plans, &[]));
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"]);
}

#[test]
fn another_version_runs_upgrade_or_update_or_deploy() {
    for (plans, expected) in [
        (vec!["deploy", "update", "upgrade"], "upgrade"),
        (vec!["deploy", "update"], "update"),
        (vec!["deploy"], "deploy"),
    ] {
        let mut world = deployed(&plans, &[]);
        world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
        world.reconcile();
        assert_eq!(world.runs()[1..], [format!("{expected} COMPLETE")]);
    }
}

/// K14: an upgrade does not end a stuck plan of KUDO.
#[test]
fn an_upgrade_replaces_a_stuck_rollout_but_no_other_plan() {
    let plans = ["deploy", "update", "upgrade", "backup"];
    let mut world = deployed(&plans, &["update"]);
    world.set("P", "2");
    world.reconcile();
    assert_eq!(world.plan("update"), "IN_PROGRESS");
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(world.runs()[1..], ["update FATAL_ERROR", "upgrade COMPLETE"]);

    let mut world = deployed(&plans, &["backup"]);
    world.set("B", "2");
    world.reconcile();
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(
        (world.plan("backup"), world.status().pending.clone()),
        ("IN_PROGRESS".into(), vec!["upgrade".into()])
    );
}

#[test]
fn parameters_changed_with_an_upgrade_are_taken_in_by_it() {
    let mut world = deployed(&["deploy", "update", "upgrade", "backup"], &[]);
    world.edit(|spec| {
        spec.operator_version.name = Some("op-2".to_owned());
        spec.parameters =
            [("P", "2"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    world.reconcile();
    assert_eq!(world.runs()[1..], ["upgrade COMPLETE", "backup COMPLETE"]);
}

#[test]
fn a_requested_plan_runs_once_and_the_request_is_removed() {
    let mut world = deployed(&["deploy", "backup"], &[]);
    world.request("backup", "mine");
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup COMPLETE"]);
    assert_eq!(world.status().history[0].uid, "mine");
    assert_eq!(world.observed.spec.plan_execution, PlanExecution::default());
    // A request without a UID gets one.
    for n in 2..4 {
        world.request("backup", "");
        world.reconcile();
        assert_eq!(world.runs().len(), 1 + n);
    }
    world.reconcile();
    assert_eq!(world.runs().len(), 4);
}

#[test]
fn a_request_and_a_trigger_at_once_are_one_run() {
    let mut world = deployed(&["deploy", "backup"], &[]);
    world.set("B", "2");
    world.request("backup", "mine");
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup COMPLETE"]);
    assert_eq!(world.status().history[0].uid, "mine");
}

#[test]
fn requests_that_cannot_be_right_are_reported_and_nothing_runs() {
    let mut world = deployed(&["deploy", "cleanup"], &[]);
    for (plan, message) in [("no", "plan no does not exist"), ("cleanup", "plan cleanup runs when")]
    {
        world.request(plan, "u");
        world.reconcile();
        let (status, found) = degraded(&world);
        assert_eq!(status, "True InvalidPlan");
        assert!(found.starts_with(message), "{found}");
    }
    world.request("", "");
    world.reconcile();
    assert_eq!(degraded(&world).0, "absent");
    assert_eq!(world.runs().len(), 1);
}

/// K13: in KUDO, the status ends the plan, which stays `IN_PROGRESS`.
#[test]
fn a_status_in_the_request_changes_nothing() {
    let mut world = deployed(&["deploy", "backup"], &["backup"]);
    world.request("backup", "mine");
    world.reconcile();
    world.edit(|spec| {
        spec.plan_execution.status = serde_json::from_value(json!("FATAL_ERROR")).unwrap();
    });
    world.reconcile();
    assert_eq!((world.plan("backup"), world.runs().len()), ("IN_PROGRESS".into(), 1));
    world.set_version("v1/1", &version(&["deploy", "backup"], &[]));
    world.reconcile();
    assert_eq!(world.runs()[1..], ["backup COMPLETE"]);
}

#[test]
fn a_manifest_without_plan_execution_changes_nothing() {
    let mut world = deployed(&["deploy", "backup"], &["backup"]);
    world.request("backup", "mine");
    world.reconcile();
    world.edit(|spec| spec.plan_execution = PlanExecution::default());
    world.reconcile();
    assert_eq!(
        (world.plan("backup"), world.status().plan_status["backup"].uid.as_str()),
        ("IN_PROGRESS".into(), "mine")
    );
}

#[test]
fn invalid_parameters_run_nothing_until_they_are_fixed() {
    let mut world = deployed(&["deploy"], &[]);
    world.set("X", "1");
    world.reconcile();
    let (status, message) = degraded(&world);
    assert_eq!(status, "True InvalidParams");
    assert_eq!(message, r#"failed to find parameter "X" in the OperatorVersion"#);
    let mut content = version(&["deploy"], &[]);
    content["parameters"] = json!([
        { "name": "N", "value-type": "integer" }, { "name": "E", "enum": ["a", "b"] },
    ]);
    world.set_version("v1/2", &content);
    for (name, expected) in
        [("N", "but the value has another type"), ("E", "but only allowed values are [a b]")]
    {
        world.edit(|spec| spec.parameters.clear());
        world.set(name, "x");
        world.reconcile();
        let (status, message) = degraded(&world);
        assert_eq!((status.as_str(), world.runs().len()), ("True InvalidParams", 1));
        assert!(message.ends_with(expected), "{message}");
    }
    world.set_version("v1/1", &version(&["deploy"], &[]));
    world.edit(|spec| spec.parameters.clear());
    world.reconcile();
    assert_eq!((world.runs().len(), degraded(&world).0), (1, "absent".into()));
}

#[test]
fn a_new_instance_with_an_unknown_parameter_runs_nothing() {
    let mut world = World::new(&version(&["deploy"], &[]), &json!({}));
    world.set("X", "1");
    world.reconcile();
    let expected = r#"failed to find parameter "X" in the OperatorVersion"#;
    assert_eq!(degraded(&world), ("True InvalidParams".into(), expected.into()));
    assert_eq!(world.runs(), Vec::<String>::new());
}

/// K51: KUDO copies defaults only at creation, and only by its webhook.
#[test]
fn immutable_parameters_keep_their_first_value() {
    let mut content = version(&["deploy"], &[]);
    content["parameters"] = json!([{ "name": "I", "default": "a", "immutable": true }, { "name": "J", "immutable": true }]);
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    assert_eq!(world.observed.spec.parameters["I"], "a");
    assert_eq!(world.runs(), ["deploy COMPLETE"]);
    world.set("I", "b");
    world.reconcile();
    assert_eq!(degraded(&world).1, "parameter 'I' is immutable but was changed");
    world.set("I", "a");
    world.reconcile();
    assert_eq!((world.runs().len(), degraded(&world).0), (1, "absent".into()));
}

#[test]
fn an_upgrade_needs_values_only_for_what_becomes_immutable() {
    let with = |immutable: &[&str]| {
        let mut content = version(&["deploy"], &[]);
        let parameter =
            |name: &str| json!({ "name": name, "immutable": immutable.contains(&name) });
        content["parameters"] = json!([parameter("I"), parameter("J")]);
        content
    };
    let mut world = World::new(&with(&["I"]), &json!({}));
    world.reconcile();
    world.set_version("v2/1", &with(&["I"]));
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"; 2], "I was immutable and without value before");
    world.set_version("v3/1", &with(&["I", "J"]));
    world.edit(|spec| spec.operator_version.name = Some("op-3".to_owned()));
    world.reconcile();
    let message = "parameter 'J' is immutable in the new OperatorVersion, so it needs a value in \
                   the Instance";
    assert_eq!(degraded(&world).1, message);
    world.set("J", "j");
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"; 3]);
}

#[test]
fn a_value_that_comes_back_leads_to_another_run() {
    let mut world = deployed(&["deploy"], &[]);
    for value in [Some("a"), None, Some("a"), None] {
        let version = if value.is_some() { "u/1" } else { "" };
        let source = SourceValue {
            value: value.map(ToOwned::to_owned),
            version: version.to_owned(),
            ..SourceValue::default()
        };
        world.observed.sources.insert("P".to_owned(), source);
        world.reconcile();
    }
    let uids: std::collections::BTreeSet<_> =
        world.status().history.iter().map(|run| &run.uid).collect();
    assert_eq!((world.runs().len(), uids.len()), (5, 5));
}

#[test]
fn another_object_behind_parameters_from_counts_as_a_change() {
    let mut world = deployed(&["deploy"], &[]);
    let source = |version: &str| SourceValue {
        value: Some("s".to_owned()),
        version: version.to_owned(),
        ..SourceValue::default()
    };
    for (n, version) in ["u/1", "u/1", "u/2"].into_iter().enumerate() {
        world.observed.sources.insert("P".to_owned(), source(version));
        world.reconcile();
        assert_eq!(world.runs().len(), if n < 2 { 2 } else { 3 }, "{n}");
    }
    let uids: std::collections::BTreeSet<_> =
        world.status().history.iter().map(|run| &run.uid).collect();
    assert_eq!(uids.len(), 3, "each run has an identity of its own");
}

/// K9: KUDO adds the finalizer only at creation.
#[test]
fn cleanup_runs_before_a_deleted_instance_goes() {
    let mut world = deployed(&["deploy"], &[]);
    assert_eq!(world.observed.finalizers, [""; 0]);
    world.set_version("v2/1", &version(&["deploy", "cleanup", "backup"], &["backup"]));
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(world.observed.finalizers.len(), 1);
    world.set("B", "2");
    world.reconcile();
    assert_eq!(world.plan("backup"), "IN_PROGRESS");
    world.delete();
    world.reconcile();
    assert_eq!(world.runs()[2..], ["backup FATAL_ERROR", "cleanup COMPLETE"]);
    assert_eq!(world.observed.finalizers, [""; 0]);
}

/// With an empty value, the plan might delete other objects.
#[test]
fn cleanup_does_not_run_without_its_values() {
    let mut content = version(&["deploy", "cleanup"], &[]);
    content["parameters"] = json!([{ "name": "BUCKET", "sensitive": true }]);
    let mut world = World::new(&content, &json!({}));
    let from = json!([{ "name": "BUCKET", "secretKeyRef": { "name": "s", "key": "k" } }]);
    world.observed.spec.parameters_from = serde_json::from_value(from).unwrap();
    let known = SourceValue {
        value: Some("b".to_owned()),
        version: "u/1".to_owned(),
        ..SourceValue::default()
    };
    world.observed.sources.insert("BUCKET".to_owned(), known);
    world.reconcile();
    world.observed.sources.insert("BUCKET".to_owned(), SourceValue::default());
    world.delete();
    world.reconcile();
    assert_eq!((world.plan("cleanup"), world.observed.finalizers.len()), ("NEVER_RUN".into(), 1));
    assert_eq!(degraded(&world).0, "True InvalidParams");
    world.sleep(301);
    world.reconcile();
    assert_eq!(world.observed.finalizers.len(), 1, "the value may come back");
    world.observed.is_namespace_deleted = true;
    world.reconcile();
    assert_eq!(world.observed.finalizers, [""; 0]);
    assert!(world.events.last().unwrap().starts_with("CleanupLeft: namespace default"));
}

#[test]
fn cleanup_runs_once_its_values_are_known_again() {
    let mut world = deployed(&["deploy", "cleanup"], &[]);
    world.reconcile();
    let from = json!([{ "name": "P", "configMapKeyRef": { "name": "c", "key": "k" } }]);
    world.observed.spec.parameters_from = serde_json::from_value(from).unwrap();
    world.observed.sources.insert("P".to_owned(), SourceValue::default());
    world.delete();
    world.reconcile();
    assert_eq!(world.plan("cleanup"), "NEVER_RUN");
    let known = SourceValue {
        value: Some("b".to_owned()),
        version: "u/1".to_owned(),
        ..SourceValue::default()
    };
    world.observed.sources.insert("P".to_owned(), known);
    world.reconcile();
    assert_eq!((world.plan("cleanup"), world.observed.finalizers.len()), ("COMPLETE".into(), 0));
}

#[test]
fn a_version_without_cleanup_does_not_block_deletion() {
    let mut world = deployed(&["deploy", "cleanup"], &[]);
    world.set_version("v1/2", &version(&["deploy"], &[]));
    world.delete();
    world.reconcile();
    assert_eq!(world.observed.finalizers, [""; 0]);
}

#[test]
fn a_failed_cleanup_can_be_requested_again() {
    let failing =
        json!([{ "name": "never", "kind": "Dummy", "spec": { "wantErr": true, "fatal": true } }]);
    let mut content = version(&["deploy", "cleanup"], &["cleanup"]);
    content["tasks"] = failing;
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    world.delete();
    world.reconcile();
    assert_eq!((world.plan("cleanup"), world.observed.finalizers.len()), ("FATAL_ERROR".into(), 1));
    world.set_version("v1/1", &version(&["deploy", "cleanup"], &[]));
    world.reconcile();
    assert_eq!(world.plan("cleanup"), "FATAL_ERROR");
    world.request("deploy", "other");
    assert!(check(&world.observed).unwrap_err().message.contains("is being deleted"));
    world.request("cleanup", "again");
    assert_eq!(check(&world.observed), Ok(()));
    world.reconcile();
    assert_eq!((world.plan("cleanup"), world.observed.finalizers.len()), ("COMPLETE".into(), 0));
}

#[test]
fn a_stuck_cleanup_can_be_cancelled() {
    let content = version(&["deploy", "cleanup"], &["cleanup"]);
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    world.delete();
    world.reconcile();
    assert_eq!(world.plan("cleanup"), "IN_PROGRESS");
    let uid = world.status().plan_status["cleanup"].uid.clone();
    world.edit(|spec| spec.plan_execution.cancel = uid);
    world.reconcile();
    assert_eq!((world.plan("cleanup"), world.observed.finalizers.len()), ("FATAL_ERROR".into(), 1));
}

/// Returns an Instance in the state in which KUDO leaves it.
fn of_kudo(plans: &[(&str, ExecutionStatus)], waiting: &[&str]) -> World {
    let mut world =
        World::new(&version(&["deploy", "update", "backup"], waiting), &json!({ "P": "7" }));
    for (name, status) in plans {
        let plan = PlanStatus {
            name: (*name).to_owned(),
            status: *status,
            uid: format!("{name}-uid"),
            ..PlanStatus::default()
        };
        world.observed.status.plan_status.insert((*name).to_owned(), plan);
    }
    world
}

#[test]
fn an_idle_instance_of_kudo_is_taken_over_without_a_run() {
    let mut world = of_kudo(&[("deploy", ExecutionStatus::Complete)], &[]);
    world.reconcile();
    assert_eq!((world.runs().len(), world.events.len()), (0, 0));
    world.set("P", "8");
    world.reconcile();
    assert_eq!(world.runs(), ["update COMPLETE"]);
}

#[test]
fn a_request_that_kudo_has_run_is_removed_and_another_runs() {
    let mut world = of_kudo(&[("deploy", ExecutionStatus::Complete)], &[]);
    world.request("deploy", "deploy-uid");
    world.reconcile();
    assert_eq!(world.runs(), [""; 0]);
    assert_eq!(world.observed.spec.plan_execution, PlanExecution::default());
    let mut world = of_kudo(&[("deploy", ExecutionStatus::Complete)], &[]);
    world.request("backup", "mine");
    world.reconcile();
    assert_eq!(world.runs(), ["backup COMPLETE"]);
}

#[test]
fn a_run_of_kudo_goes_on_and_one_that_it_abandoned_ends() {
    let plans = [("deploy", ExecutionStatus::InProgress), ("backup", ExecutionStatus::InProgress)];
    let mut world = of_kudo(&plans, &["backup"]);
    world.request("deploy", "deploy-uid");
    world.reconcile();
    // K13, K26: two plans are IN_PROGRESS.
    assert_eq!(world.runs(), ["backup FATAL_ERROR", "deploy COMPLETE"]);
    assert_eq!(world.status().plan_status["deploy"].uid, "deploy-uid");
}
