//! Finds or builds the programs of the control plane, crane, Helm and kuttl, and installs Python
//! wheels and Prometheus.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod cache;
mod go;
mod kubernetes;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;

pub use self::kubernetes::Programs;
use self::{
    cache::{cache, lock},
    go::{build, changed_copy, module_directory},
};

/// Directory of the end-to-end tests, which has the versions of programs as files of Go and Python.
fn e2e() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e")
}

/// Directory of the Go module that has the versions of all programs, so that they share what they
/// have compiled.
fn go_module() -> PathBuf {
    e2e().join("programs")
}

/// Installs everything that the tests use, so that no test waits for it.
///
/// # Errors
///
/// If something cannot be installed.
pub fn install_all() -> anyhow::Result<()> {
    Programs::find()?;
    for install in
        [crane, helm, kubemark, kuttl, kudo_source, gitops, prometheus_operator_crds, envoy]
    {
        install()?;
    }
    prometheus("prometheus").map(drop)
}

/// Go module of KUDO.
const KUDO: &str = "github.com/kudobuilder/kudo@v0.19.0";

/// Go module with the CRDs of prometheus-operator, and their directory in it.
const PROMETHEUS_OPERATOR: &str = "github.com/prometheus-operator/prometheus-operator@v0.85.0";
const PROMETHEUS_OPERATOR_CRDS: &str = "example/prometheus-operator-crd";

/// Path of crane, a client of image registries that contains one; built on first use.
///
/// # Errors
///
/// If it cannot be built.
pub fn crane() -> anyhow::Result<PathBuf> {
    built("crane", "github.com/google/go-containerregistry/cmd/crane")
}

/// Path of Helm, which is built on first use.
///
/// # Errors
///
/// If it cannot be built.
pub fn helm() -> anyhow::Result<PathBuf> {
    built("helm", "helm.sh/helm/v3/cmd/helm")
}

/// Path of kubemark, which contains a kubelet with a fake container runtime; built on first use.
///
/// # Errors
///
/// If it cannot be built.
pub fn kubemark() -> anyhow::Result<PathBuf> {
    built("kubemark", "k8s.io/kubernetes/cmd/kubemark")
}

/// Path of kuttl, which is built on first use.
///
/// # Errors
///
/// If it cannot be built.
pub fn kuttl() -> anyhow::Result<PathBuf> {
    built("kuttl", "github.com/kudobuilder/kuttl/cmd/kubectl-kuttl")
}

/// Path of a program in the cache, which is built from a package on first use.
fn built(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let directory = cache()?.join(name);
    let program = directory.join(name);
    let _lock = lock(&directory)?;
    if !program.is_file() {
        eprintln!("==> building {name} from Go modules; only done once");
        build(&go_module(), package, &program)?;
    }
    Ok(program)
}

/// Path of `prometheus` or `promtool`: from `PATH`, or from the Debian package, which is unpacked
/// but not installed because it would start a service.
///
/// # Errors
///
/// If the package cannot be downloaded.
pub fn prometheus(name: &str) -> anyhow::Result<PathBuf> {
    if let Ok(found) = which::which(name) {
        return Ok(found);
    }
    let at = cache()?.join("prometheus");
    let program = at.join("unpacked/usr/bin").join(name);
    let _lock = lock(&at)?;
    if program.is_file() {
        return Ok(program);
    }
    eprintln!("==> downloading Prometheus as a Debian package; only done once");
    let partial = at.join("partial");
    // Without lists of packages, the first attempt fails.
    let script = "rm -rf partial && mkdir partial && cd partial && \
                  { apt-get -qq download prometheus || \
                  { apt-get -qq update && apt-get -qq download prometheus; }; } && \
                  dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb";
    let status = Command::new("sh").args(["-ec", script]).current_dir(&at).status();
    anyhow::ensure!(status.context("starting sh")?.success(), "downloading Prometheus failed");
    std::fs::rename(partial, at.join("unpacked"))?;
    Ok(program)
}

/// Directory with the CRDs of prometheus-operator.
///
/// # Errors
///
/// If the Go module that contains them cannot be downloaded.
pub fn prometheus_operator_crds() -> anyhow::Result<PathBuf> {
    Ok(module_directory(PROMETHEUS_OPERATOR)?.join(PROMETHEUS_OPERATOR_CRDS))
}

/// Path of the program that computes the status of an object as GitOps tools do; see
/// `e2e/programs/gitops/main.go`.
///
/// # Errors
///
/// If it cannot be built.
pub fn gitops() -> anyhow::Result<PathBuf> {
    let directory = cache()?.join("gitops");
    let program = directory.join("gitops");
    let _lock = lock(&directory)?;
    build(&go_module(), "./gitops", &program)?;
    Ok(program)
}

/// Path of Envoy: from `PATH`, or from a Python wheel.
///
/// # Errors
///
/// If the wheel cannot be installed.
pub fn envoy() -> anyhow::Result<PathBuf> {
    if let Ok(found) = which::which("envoy") {
        return Ok(found);
    }
    // Not the wheel's start script in `bin`: killing the script would not kill Envoy.
    let lib = std::fs::read_dir(python()?.join("lib"))?
        .next()
        .context("Python environment has no lib directory")??;
    Ok(lib.path().join("site-packages/envoy/_bin/envoy"))
}

/// Path of a virtual environment with the Python packages of the tests; installed on first use.
///
/// # Errors
///
/// If the packages cannot be installed.
pub fn python() -> anyhow::Result<PathBuf> {
    let requirements = e2e().join("python/requirements.txt");
    let required = std::fs::read_to_string(&requirements)?;
    let at = cache()?.join("python");
    let _lock = lock(&at)?;
    let installed = at.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|before| before == required) {
        return Ok(at);
    }
    eprintln!("==> installing Envoy and moto (AWS emulator) as Python wheels; only done once");
    let run = |program: &Path, args: &[&str]| {
        let status = Command::new(program).args(args).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("starting {}", program.display()))?;
        anyhow::ensure!(status.success(), "{} {args:?} failed", program.display());
        Ok(())
    };
    run(Path::new("python3"), &["-m", "venv", &at.display().to_string()])?;
    let file = requirements.display().to_string();
    run(&at.join("bin/pip"), &["install", "--quiet", "--disable-pip-version-check", "-r", &file])?;
    std::fs::write(installed, required)?;
    Ok(at)
}

/// Directory of KUDO's source, which contains its test suite.
///
/// # Errors
///
/// If the Go module cannot be downloaded.
pub fn kudo_source() -> anyhow::Result<PathBuf> {
    module_directory(KUDO)
}

/// A project of which a program is built from its Go module.
#[derive(Clone, Copy, Debug)]
pub struct GoProject {
    /// Name of the project.
    pub name: &'static str,
    /// Path of the module.
    pub module: &'static str,
    /// Version of the module, such as `v1.2.3`.
    pub version: &'static str,
    /// Path of the package of the program in the module, such as `./cmd/controller`.
    pub package: &'static str,
}

impl GoProject {
    /// Returns the name and version, such as `Example 1.2.3`.
    #[must_use]
    pub fn name_and_version(&self) -> String {
        format!("{} {}", self.name, self.version.trim_start_matches('v'))
    }
}

/// Paths of a project's program, which is built on first use, and of its source. The program
/// listens on loopback addresses where its source has all addresses.
///
/// # Errors
///
/// If it cannot be downloaded or built.
pub fn go_project(project: &GoProject) -> anyhow::Result<(PathBuf, PathBuf)> {
    let GoProject { module, version, package, .. } = project;
    let directory = cache()?.join(module.replace('/', "_")).join(version);
    let program = directory.join("program");
    let source = directory.join("source");
    let _lock = lock(&directory)?;
    if program.is_file() {
        return Ok((program, source));
    }
    eprintln!("==> building {} from Go modules; takes some minutes, only done once", project.name);
    let change = "grep -rl --include='*.go' '\"0\\.0\\.0\\.0' . | \
                  xargs sed -i 's/\"0\\.0\\.0\\.0/\"127.0.0.1/'";
    changed_copy(&format!("{module}@{version}"), &source, change)?;
    build(&source, package, &program)?;
    Ok((program, source))
}
