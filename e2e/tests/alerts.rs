//! When the alerts of `deploy/monitoring` begin to fire, with promtool. `operations/monitoring`
//! causes their situations.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, path::Path, process::Command};

use podops_test_programs::prometheus;
use serde_json::{Value, json};

/// Series of an alert, with one sample each minute, and when it fires.
struct Case {
    alert: &'static str,
    /// Name and labels.
    series: &'static str,
    /// Samples, as promtool expands them.
    values: &'static str,
    /// Last minute in which it does not fire.
    quiet: u32,
    /// First minute in which it must fire.
    firing: u32,
}

const fn case(
    alert: &'static str,
    series: &'static str,
    values: &'static str,
    minutes: [u32; 2],
) -> Case {
    Case { alert, series, values, quiet: minutes[0], firing: minutes[1] }
}

/// Times are Unix seconds, and the first sample is at 0.
const CASES: [Case; 21] = [
    case("PodopsOperatorDown", r#"up{job="podops",operator="a"}"#, "1 0x20", [5, 6]),
    // Prometheus shows the last sample for 5 minutes more.
    case("PodopsOperatorGone", r#"podops_leader{operator="a"}"#, "1x3 _x30", [12, 20]),
    case("PodopsNoLeader", r#"podops_leader{operator="a"}"#, "1 0x20", [2, 3]),
    case(
        "PodopsReconcilesFailing",
        r#"podops_reconciles_total{operator="a",result="rejected"}"#,
        "0+1x40",
        [15, 16],
    ),
    case(
        "PodopsWatchFailing",
        r#"podops_watch_errors_total{operator="a",resource="pods"}"#,
        "0+1x40",
        [12, 15],
    ),
    case(
        "PodopsObjectsInvalid",
        r#"podops_invalid_objects_total{operator="a",resource="pods"}"#,
        "0x10 1x20",
        [10, 12],
    ),
    // The certificate expires 30 days and 10 minutes after the first sample.
    case(
        "PodopsCertificateExpiring",
        r#"podops_admission_certificate_expiry_timestamp_seconds{operator="a"}"#,
        "2592600x100",
        [70, 72],
    ),
    case(
        "PodopsRolloutStopped",
        r#"podops_collaset_collasets{namespace="a",reason="RolloutHalted"}"#,
        "_x5 1x10",
        [4, 6],
    ),
    case(
        "PodopsRolloutOverdue",
        r#"podops_collaset_collasets{namespace="a",reason="ProgressDeadlineExceeded"}"#,
        "_x5 1x10",
        [4, 6],
    ),
    case(
        "PodopsCollaSetDegraded",
        r#"podops_collaset_degraded_collasets{namespace="a",reason="PodsNotStarting"}"#,
        "1x20",
        [9, 10],
    ),
    case(
        "PodopsInstanceFailed",
        r#"podops_instance_instances{namespace="a",state="Failed"}"#,
        "0x5 1x20",
        [5, 7],
    ),
    case(
        "PodopsJobFailed",
        r#"podops_operationjob_jobs{namespace="a",progress="Failed"}"#,
        "_x5 1x10",
        [4, 6],
    ),
    case(
        "PodopsTrafficNotDrained",
        r#"podops_lifecycle_oldest_operation_timestamp_seconds{stage="preparing",waiting_for="traffic_controllers"}"#,
        "0x40",
        [16, 17],
    ),
    case(
        "PodopsTrafficNotRestored",
        r#"podops_lifecycle_oldest_operation_timestamp_seconds{stage="completing",waiting_for="traffic_controllers"}"#,
        "0x40",
        [16, 17],
    ),
    case(
        "PodopsOperationNotGranted",
        r#"podops_lifecycle_oldest_operation_timestamp_seconds{stage="pre_check",waiting_for="rule_checker"}"#,
        "0x80",
        [61, 62],
    ),
    case(
        "PodopsOperationNotFinished",
        r#"podops_lifecycle_oldest_operation_timestamp_seconds{stage="operate",waiting_for="requester"}"#,
        "0x80",
        [61, 62],
    ),
    case("PodopsLifecycleLabelsInvalid", "podops_lifecycle_invalid_label_pods", "1x20", [4, 5]),
    case(
        "PodopsReadinessGateMissing",
        "podops_lifecycle_pods_without_readiness_gate",
        "1x20",
        [14, 15],
    ),
    case(
        "PodopsFinalizersStuck",
        r#"podops_consist_stuck_finalizers{namespace="a"}"#,
        "1x20",
        [9, 10],
    ),
    case(
        "PodopsBackendFailing",
        r#"podops_consist_backend_syncs_total{backend="haproxy",result="unreachable"}"#,
        "0+1x20",
        [5, 7],
    ),
    case(
        "PodopsRuleWebhookFailing",
        r#"podops_rule_webhook_requests_total{result="timeout"}"#,
        "0+1x20",
        [10, 12],
    ),
];

#[test]
fn alerts_fire_after_their_time() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rule = std::fs::read_to_string(root.join("deploy/monitoring/prometheus-rule.yaml"));
    let rule: Value = serde_saphyr::from_str(&rule.unwrap()).unwrap();
    let groups = rule["spec"]["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: BTreeSet<&str> = rules.map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!(alerts, CASES.iter().map(|case| case.alert).collect::<BTreeSet<&str>>());

    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &Value| {
        let path = directory.path().join(name);
        std::fs::write(&path, content.to_string()).unwrap();
        path
    };
    let rules = file("rules.json", &rule["spec"]);
    let tests: Vec<Value> = CASES.iter().map(test).collect();
    let tests = file("tests.json", &json!({ "rule_files": ["rules.json"], "tests": tests }));
    for (command, path) in [("check", rules), ("test", tests)] {
        let promtool = prometheus("promtool").unwrap();
        let output = Command::new(promtool).args([command, "rules"]).arg(path).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    }
}

fn test(case: &Case) -> Value {
    let firing = format!(r#"ALERTS{{alertname="{}",alertstate="firing"}}"#, case.alert);
    let expect = |minute: u32, number: u32| {
        json!({
            "expr": format!("count({firing}) or vector(0)"),
            "eval_time": format!("{minute}m"),
            "exp_samples": [{ "labels": "{}", "value": number }],
        })
    };
    json!({
        "name": case.alert,
        "interval": "1m",
        "input_series": [{ "series": case.series, "values": case.values }],
        "promql_expr_test": [expect(case.quiet, 0), expect(case.firing, 1)],
    })
}
