//! KUDO's own integration suite, by its test tool, with `kubectl-kudo` and instance-operator as programs
//! and without a webhook. Nodes take no Pods, as in the environment that the suite was written for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use podops_e2e::{
    cluster::{INSTANCE_OPERATOR, TestCluster, programs},
    programs::{Programs, kudo_source, kuttl},
};
use tokio::process::Command;

/// Cases of the suite.
const CASES: usize = 27;
/// Manifests that the cases need. The suite's webhook is not among them.
const MANIFESTS: [&str; 3] = ["configmap-operator.yaml", "test-operator.yaml", "toy-operator.yaml"];

const SUITE: &str = "\
apiVersion: kuttl.dev/v1beta1
kind: TestSuite
manifestDirs: [manifests]
testDirs: [integration]
skipDelete: true
parallel: 4
timeout: 60
";

/// Steps of the test tool, in the group that it had before it left KUDO, and has now.
const STEPS: [&str; 2] =
    ["apiVersion: kudo.dev/v1beta1\nkind: Test", "apiVersion: kuttl.dev/v1beta1\nkind: Test"];

/// An API version that is gone, in what is asserted, and its successor.
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

#[tokio::test(flavor = "multi_thread")]
async fn the_integration_suite_of_kudo_passes() {
    let (kuttl, source) = (kuttl().unwrap(), kudo_source().unwrap());
    let cluster = TestCluster::start_with_packages(&programs().unwrap()).await.unwrap();
    cluster.add_package_admin().await.unwrap();
    cluster.plane.kubectl(&["cordon", "--selector", "topology.kubernetes.io/zone"]).await.unwrap();

    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    copy(&source.join("test/integration"), &at("integration"));
    fs::create_dir(at("manifests")).unwrap();
    for name in MANIFESTS {
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
    let failed: Vec<&&str> = results.iter().filter(|line| !line.contains("--- PASS")).collect();
    let log = fs::read_to_string(cluster.log(INSTANCE_OPERATOR)).unwrap();
    assert!(failed.is_empty() && output.status.success(), "{log}\n{text}\n{failed:#?}");
    assert_eq!(results.len(), CASES, "{results:#?}");
    cluster.assert_no_forbidden_requests().unwrap();
}
