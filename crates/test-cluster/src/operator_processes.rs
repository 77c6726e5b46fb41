//! Processes of operators: their crashes, memory and shipped settings.

use std::collections::BTreeMap;

use anyhow::Context as _;

use crate::{folders::root, process::SupervisedProcess};

/// Processes of the operators. A crash that no test has requested fails the test, and so does
/// memory above the limit in the shipped Deployment, which would end the operator on a cluster.
#[derive(Default)]
pub(crate) struct Operators {
    pub(crate) by_name: BTreeMap<&'static str, SupervisedProcess>,
    /// Memory limits in MiB that differ from those in the shipped Deployments.
    pub(crate) limits: BTreeMap<&'static str, f64>,
}

impl Drop for Operators {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (name, process) in &self.by_name {
            self.check(name, process);
        }
    }
}

impl Operators {
    /// Asserts that an operator did not crash, and that its memory fits into its limit.
    fn check(&self, name: &str, process: &SupervisedProcess) {
        let crashes = process.crashes();
        assert!(crashes.is_empty(), "{name} crashed: {crashes:?}");
        let panics = process.panics();
        let has_none = panics.as_ref().is_ok_and(Vec::is_empty);
        assert!(has_none, "{name} panicked: {panics:?}");
        let peak = process.peak_mebibytes();
        let limit = self.limit_mebibytes(name);
        let fits = limit.as_ref().is_ok_and(|limit| peak < *limit);
        assert!(fits, "{name} used {peak:.0} MiB; its limit is {limit:?} MiB");
    }

    /// Memory limit of an operator, in MiB.
    pub(crate) fn limit_mebibytes(&self, name: &str) -> anyhow::Result<f64> {
        self.limits.get(name).copied().map_or_else(|| memory_limit_mebibytes(name), Ok)
    }

    /// Ends an operator, which is checked before.
    pub(crate) fn stop(&mut self, name: &str) -> Option<u32> {
        let process = self.by_name.remove(name)?;
        self.check(name, &process);
        process.pid()
    }
}

/// Memory limit in an operator's shipped Deployment, in MiB.
///
/// # Errors
///
/// If the Deployment has no limit in MiB.
pub fn memory_limit_mebibytes(operator: &str) -> anyhow::Result<f64> {
    let path = root().join("deploy").join(operator).join("deployment.yaml");
    let manifest = std::fs::read_to_string(path)?;
    let limit =
        manifest.split_once("limits: { memory: ").and_then(|(_, rest)| rest.split_once("Mi }"));
    Ok(limit.context("manifest without a memory limit")?.0.parse()?)
}

/// Environment variables in an operator's shipped Deployment.
///
/// # Errors
///
/// If the Deployment cannot be read.
pub(crate) fn shipped_env(operator: &str) -> anyhow::Result<Vec<(String, String)>> {
    let path = root().join("deploy").join(operator).join("deployment.yaml");
    let manifest = std::fs::read_to_string(path)?;
    let Some((_, env)) = manifest.split_once("        env:\n") else { return Ok(Vec::new()) };
    let lines = env.lines().map(|line| line.trim_start().strip_prefix("- { name: "));
    let variables = lines.map_while(|line| line?.strip_suffix("\" }")?.split_once(", value: \""));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Additional arguments and environment variables of an operator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}
