//! Finds or builds etcd, kube-apiserver, kube-controller-manager and kubectl.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use crate::{
    cache::{VERSION, cache, cache_of, lock},
    go::{WITHOUT_DEBUG, downloaded, go, run_quietly},
    go_module,
};

/// Environment variable with another version of kube-apiserver and kube-controller-manager, such as
/// `v1.33.13`, which are built from Go modules. Installed programs are ignored then.
const OTHER_VERSION: &str = "PODOPS_KUBERNETES";

/// Go module that downloads and verifies prebuilt archives.
const SETUP_ENVTEST: &str = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1";

/// Paths of the control plane programs.
pub struct Programs {
    /// Path of etcd.
    pub etcd: PathBuf,
    /// Path of kube-apiserver.
    pub apiserver: PathBuf,
    /// Path of kube-controller-manager, which the prebuilt archives lack.
    pub controller_manager: PathBuf,
    /// Path of kubectl.
    pub kubectl: PathBuf,
}

impl Programs {
    /// Finds the programs in `KUBEBUILDER_ASSETS`, on `PATH`, in the cache, or in a prebuilt
    /// archive if it can be downloaded. Otherwise builds them from Go modules into the cache, which
    /// takes some minutes. `PODOPS_KUBERNETES` sets another version of the servers, such as
    /// `v1.33.13`.
    ///
    /// # Errors
    ///
    /// If a program is not found and cannot be built.
    pub fn find() -> anyhow::Result<Self> {
        let other = env::var_os(OTHER_VERSION).map(|version| version.display().to_string());
        let Some(version) = other else {
            let [etcd, apiserver, controller_manager, kubectl] =
                find([ETCD, APISERVER, CONTROLLER_MANAGER, KUBECTL])?;
            return Ok(Self { etcd, apiserver, controller_manager, kubectl });
        };
        let [etcd, kubectl] = find([ETCD, KUBECTL])?;
        let [apiserver, controller_manager] =
            of_other_version([APISERVER, CONTROLLER_MANAGER], &version)?;
        Ok(Self { etcd, apiserver, controller_manager, kubectl })
    }

    /// Returns the version of kube-apiserver, such as `v1.36.3`.
    ///
    /// # Errors
    ///
    /// If the program does not start.
    pub fn apiserver_version(&self) -> anyhow::Result<String> {
        let output = Command::new(&self.apiserver).arg("--version").output()?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text.split_whitespace().last().unwrap_or_default().to_owned())
    }

    /// Returns the minor version of kube-apiserver: 36 for `v1.36.3`.
    ///
    /// # Errors
    ///
    /// If the program does not start, or prints no version.
    pub fn apiserver_minor(&self) -> anyhow::Result<u32> {
        minor(&self.apiserver_version()?)
    }

    /// Finds only kubectl.
    ///
    /// # Errors
    ///
    /// If it is not found and cannot be built.
    pub fn find_kubectl() -> anyhow::Result<PathBuf> {
        find([KUBECTL]).map(|[kubectl]| kubectl)
    }
}

/// A program and its Go package.
#[derive(Clone, Copy)]
struct Source {
    program: &'static str,
    package: &'static str,
}

const ETCD: Source = Source { program: "etcd", package: "go.etcd.io/etcd/server/v3" };
const APISERVER: Source =
    Source { program: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" };
const CONTROLLER_MANAGER: Source = Source {
    program: "kube-controller-manager",
    package: "k8s.io/kubernetes/cmd/kube-controller-manager",
};
const KUBECTL: Source = Source { program: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl" };

/// Minor part of a version such as [`VERSION`].
fn minor(version: &str) -> anyhow::Result<u32> {
    let minor = version.split('.').nth(1).and_then(|part| part.parse().ok());
    minor.with_context(|| format!("{version:?} is no version such as {VERSION}"))
}

/// Paths of programs of [`VERSION`]; those that are not found are built together.
fn find<const N: usize>(sources: [Source; N]) -> anyhow::Result<[PathBuf; N]> {
    let cache = cache()?;
    let _lock = lock(&cache)?;
    let mut paths = sources.map(|source| installed(source.program, &cache));
    if paths.iter().any(Option::is_none) {
        let archive = fetch(&cache);
        for (path, source) in paths.iter_mut().zip(sources).filter(|(path, _)| path.is_none()) {
            let fetched = archive.as_ref().map(|archive| archive.join(source.program));
            *path = fetched.filter(|path| path.is_file());
        }
    }
    let known = paths.iter().zip(sources);
    let missing: Vec<Source> =
        known.filter(|(path, _)| path.is_none()).map(|(_, source)| source).collect();
    build(&missing, &go_module(), VERSION, &cache)?;
    for (path, source) in paths.iter_mut().zip(sources) {
        path.get_or_insert_with(|| cache.join(source.program));
    }
    Ok(paths.map(Option::unwrap_or_default))
}

/// Path of an installed program: in `KUBEBUILDER_ASSETS`, on `PATH`, or in the cache.
fn installed(name: &str, cache: &Path) -> Option<PathBuf> {
    let assets =
        env::var_os("KUBEBUILDER_ASSETS").map(|directory| Path::new(&directory).join(name));
    let cached = || Some(cache.join(name)).filter(|path| path.is_file());
    assets.filter(|path| path.is_file()).or_else(|| which::which(name).ok()).or_else(cached)
}

/// Paths of servers of another version than [`VERSION`], which are built on first use.
fn of_other_version<const N: usize>(
    sources: [Source; N],
    version: &str,
) -> anyhow::Result<[PathBuf; N]> {
    let directory = cache_of(version)?;
    let _lock = lock(&directory)?;
    let is_missing = |source: &Source| !directory.join(source.program).is_file();
    let missing: Vec<Source> = sources.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        let module = directory.join("module");
        write_module(&module, version, &missing)?;
        build(&missing, &module, version, &directory)?;
    }
    Ok(sources.map(|source| directory.join(source.program)))
}

/// Writes the Go module from which the programs of another version are built.
fn write_module(module: &Path, version: &str, sources: &[Source]) -> anyhow::Result<()> {
    let own = downloaded(&format!("k8s.io/kubernetes@{version}"), "GoMod")?;
    fs::create_dir_all(module)?;
    fs::write(module.join("go.mod"), manifest(&fs::read_to_string(own)?, version)?)?;
    // Adds the modules that the packages need, and their checksums.
    let packages = sources.iter().map(|source| source.package);
    run_quietly(go(module).args(["list", "-mod=mod", "-deps"]).args(packages)).map(drop)
}

/// Manifest of a module that requires Kubernetes. Parts of Kubernetes are modules of their own,
/// which its own manifest has by their paths in its repository.
fn manifest(own: &str, version: &str) -> anyhow::Result<String> {
    let version_of_parts = version.replacen("v1.", "v0.", 1);
    let go = own.lines().find(|line| line.starts_with("go ")).context("go.mod names no version")?;
    let mut text =
        format!("module podops/controlplane\n\n{go}\n\nrequire k8s.io/kubernetes {version}\n");
    for line in own.lines() {
        if let Some((part, _)) = line.trim().split_once(" => ./staging/") {
            writeln!(text, "replace {part} => {part} {version_of_parts}")?;
        }
    }
    Ok(text)
}

/// Directory of the prebuilt archive, which is downloaded unless it is cached; `None` if that
/// failed, for example on a machine that can only reach the Go module proxy.
fn fetch(cache: &Path) -> Option<PathBuf> {
    let mut setup = go(cache);
    setup.args(["run", SETUP_ENVTEST, "use", VERSION.trim_start_matches('v'), "--print", "path"]);
    let printed = run_quietly(setup.arg("--bin-dir").arg(cache)).ok()?;
    Some(PathBuf::from(String::from_utf8(printed).ok()?.trim()))
}

/// Builds programs in a temporary directory and renames them, so that an interrupted build leaves
/// no incomplete program in `directory`.
fn build(sources: &[Source], module: &Path, version: &str, directory: &Path) -> anyhow::Result<()> {
    if sources.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = sources.iter().map(|source| source.program).collect();
    eprintln!(
        "==> building {} from Go modules; takes 5 to 10 minutes, only done once",
        names.join(", ")
    );
    let partial = directory.join("partial");
    fs::create_dir_all(&partial)?;
    let variables = "k8s.io/component-base/version";
    let minor = minor(version)?;
    let flags = format!(
        "-ldflags=-s -w -X {variables}.gitVersion={version} -X {variables}.gitMajor=1 -X {variables}.gitMinor={minor}"
    );
    let mut command = go(module);
    command.args(["build", "-o"]).arg(&partial).args(WITHOUT_DEBUG).arg(flags);
    run_quietly(command.args(sources.iter().map(|source| source.package)))?;
    for source in sources {
        let program = partial.join(built_name(source.package));
        fs::rename(program, directory.join(source.program))?;
    }
    Ok(fs::remove_dir_all(partial)?)
}

/// Name that `go build` gives the program of a package: the last part of its path that is no
/// version.
fn built_name(package: &str) -> &str {
    let is_version = |part: &&str| {
        part.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_kubernetes_have_its_minor_version() {
        let own = "module k8s.io/kubernetes\n\ngo 1.24.0\n\nrequire (\n\tk8s.io/api v0.0.0\n)\n\n\
                   replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        let expected = "module podops/controlplane\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v1.33.13\n\
                        replace k8s.io/api => k8s.io/api v0.33.13\n";
        assert_eq!(manifest(own, "v1.33.13").unwrap(), expected);
        assert_eq!(minor("v1.33.13").unwrap(), 33);
        assert!(minor("1").is_err());
    }

    #[test]
    fn go_names_a_program_by_its_path_without_version() {
        assert_eq!(built_name(ETCD.package), "server");
        assert_eq!(built_name(KUBECTL.package), "kubectl");
    }
}
