//! KUDO's own integration and end-to-end suites, by its test tool, with `kubectl-kudo` and
//! instance-operator as programs and without a webhook. In the integration suite, nodes take no
//! Pods, as in the environment that it was written for.

use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TestCluster, programs},
    nodes::Delays,
    suite::{Lane, Suite},
};
use podops_test_programs::{Programs, kudo_source, kuttl};
use std::{collections::BTreeSet, fs, path::Path, time::Duration};
use tokio::process::Command;

/// A suite of KUDO.
struct Cases {
    /// Folder of the test cases.
    folder: &'static str,
    /// Number of test cases.
    number: usize,
    /// Cases that our specification describes.
    described: &'static [&'static str],
    /// Manifests that the cases need. The suite's webhook is not among them.
    manifests: &'static [&'static str],
}

const INTEGRATION: Cases = Cases {
    folder: "integration",
    number: 27,
    described: &[
        "cli-install",
        "dependencies-package-create",
        "first-operator-test",
        "install-existing-crds-in-operator",
        "instance-controller-param-change-custom-trigger",
        "instance-controller-param-change-no-trigger",
        "instance-controller-upgrade",
        "instance-controller-upgrade-fallback-to-update",
        "invalid-crd-install",
        "operator-with-custom-crd",
        "operator-with-dependencies",
        "parameter-types",
        "parameter-types-operator",
        "remove-pod-container",
        "rendering-error-plan-failed",
        "update-command",
        "update-parameters",
        "upgrade-with-dependencies",
    ],
    manifests: &["configmap-operator.yaml", "test-operator.yaml", "toy-operator.yaml"],
};
const END_TO_END: Cases = Cases {
    folder: "e2e",
    number: 11,
    described: &[
        "apply-delete-apply",
        "cli-install-uninstall",
        "dependencies-hash",
        "immutable-parameter",
        "immutable-parameter-with-default",
        "plan-trigger",
        "readiness",
        "terminal-failed-job",
        "toggle-task",
        "update-with-upgrade",
        "upgrade",
    ],
    manifests: &[],
};

const SUITE: &str = "\
apiVersion: kuttl.dev/v1beta1
kind: TestSuite
manifestDirs: [manifests]
testDirs: [cases]
skipDelete: true
parallel: 4
timeout: 120
";

/// Time until the containers of a Pod run.
const START: Duration = Duration::from_secs(2);

/// Steps of the test tool, in the group that it had before it left KUDO, and has now.
const STEPS: [&str; 2] =
    ["apiVersion: kudo.dev/v1beta1\nkind: Test", "apiVersion: kuttl.dev/v1beta1\nkind: Test"];

/// An API version that is gone, in assertions, and its successor.
const GONE: [&str; 2] =
    ["apiVersion: apiextensions.k8s.io/v1beta1", "apiVersion: apiextensions.k8s.io/v1"];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            let mut text = fs::read_to_string(&path).unwrap().replace(STEPS[0], STEPS[1]);
            if path.to_str().unwrap().ends_with("-assert.yaml") {
                text = text.replace(GONE[0], GONE[1]);
            }
            fs::write(target, text).unwrap();
        }
    }
}

/// Name of the test case of a result line.
fn case(result: &str) -> Option<&str> {
    result.split("kuttl/harness/").nth(1)?.split_whitespace().next()
}

/// Output of the test tool for these test cases: all cases print at once.
fn lines_of(text: &str, cases: &BTreeSet<String>) -> String {
    let is_of_case = |line: &&str| cases.iter().any(|case| line.contains(&format!("| {case}")));
    // A difference between an object and its assertion has lines without the name of its case.
    let is_difference =
        |line: &&str| !line.contains("logger.go") && !line.contains("kuttl/harness");
    let lines = text.lines().filter(|line| is_of_case(line) || is_difference(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs a folder of test cases with the test tool, each of which must pass.
async fn run_suite(cluster: &TestCluster, suite: &Cases) {
    let (kuttl, source) = (kuttl().unwrap(), kudo_source().unwrap());
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    copy(&source.join("test").join(suite.folder), &at("cases"));
    fs::create_dir(at("manifests")).unwrap();
    for name in suite.manifests {
        fs::copy(source.join("test/manifests").join(name), at("manifests").join(name)).unwrap();
    }
    fs::write(at("suite.yaml"), SUITE).unwrap();
    // kuttl runs commands with `bin` of its working directory on the PATH.
    fs::create_dir(at("bin")).unwrap();
    let program = programs().unwrap().join("kubectl-kudo");
    std::os::unix::fs::symlink(program, at("bin/kubectl-kudo")).unwrap();
    let kubectl = Programs::find_kubectl().unwrap();
    std::os::unix::fs::symlink(kubectl, at("bin/kubectl")).unwrap();
    let mut command = Command::new(kuttl);
    command.args(["test", "--config", "suite.yaml"]).current_dir(work.path());
    command.env("KUBECONFIG", cluster.plane.admin_kubeconfig()).env("HOME", work.path());
    let output = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let results = text.lines().filter(|line| line.trim_start().starts_with("--- "));
    let results: Vec<&str> = results.filter(|line| line.contains("kuttl/harness/")).collect();
    let (passed, failed): (Vec<&str>, Vec<&str>) =
        results.iter().copied().partition(|line| line.contains("--- PASS"));
    let names =
        |lines: Vec<&'_ str>| lines.into_iter().filter_map(case).map(str::to_owned).collect();
    let (passed, failed): (BTreeSet<String>, BTreeSet<String>) = (names(passed), names(failed));
    let log = fs::read_to_string(cluster.log(INSTANCE_OPERATOR)).unwrap();
    let of_failed = lines_of(&text, &failed);
    assert!(failed.is_empty() && output.status.success(), "{failed:?}\n{log}\n{of_failed}");
    assert_eq!(passed.len(), suite.number, "{results:#?}");
    for case in suite.described {
        assert!(passed.contains(*case), "{case} did not run: {passed:?}");
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn start() -> TestCluster {
    let cluster = TestCluster::start_with_packages(&programs().unwrap()).await.unwrap();
    cluster.add_package_admin().await.unwrap();
    cluster
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, the_integration_suite_of_kudo_passes)
        .scenario(Lane::Waiting, the_end_to_end_suite_of_kudo_passes)
}

async fn the_integration_suite_of_kudo_passes() {
    let cluster = start().await;
    cluster.plane.kubectl(&["cordon", "--selector", "topology.kubernetes.io/zone"]).await.unwrap();
    run_suite(&cluster, &INTEGRATION).await;
}

/// The suite for a cluster with controllers and Pods that run. The test tool checks once a second,
/// and a case asserts that a plan is IN_PROGRESS: Pods start as slowly as those with a real image.
async fn the_end_to_end_suite_of_kudo_passes() {
    let cluster = start().await;
    cluster.nodes().unwrap().set_delays(Delays { start: START, ..Delays::default() });
    run_suite(&cluster, &END_TO_END).await;
}
