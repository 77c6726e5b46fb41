//! Finds or builds etcd, kube-apiserver, kube-controller-manager and kubectl.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context as _, bail};

use super::{
    cache::{VERSION, cache, cache_of, lock},
    go_module::downloaded,
};

/// Environment variable with another version of kube-apiserver and kube-controller-manager, such as `v1.33.13`, which
/// are built from Go modules. Programs that are installed do not count then.
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
    /// takes some minutes. `PODOPS_KUBERNETES` sets another version of the servers, such as `v1.33.13`.
    ///
    /// # Errors
    ///
    /// If a program is not found and cannot be built.
    pub fn find() -> anyhow::Result<Self> {
        let other = env::var_os(OTHER_VERSION).map(|version| version.display().to_string());
        let server = |name: &str| match &other {
            Some(version) => of_other_version(name, version),
            None => kubernetes(name),
        };
        Ok(Self {
            etcd: find("etcd", "go.etcd.io/etcd/server/v3")?,
            apiserver: server("kube-apiserver")?,
            controller_manager: server("kube-controller-manager")?,
            kubectl: Self::find_kubectl()?,
        })
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
        kubernetes("kubectl")
    }
}

/// Minor part of a version such as [`VERSION`].
fn minor(version: &str) -> anyhow::Result<u32> {
    let minor = version.split('.').nth(1).and_then(|part| part.parse().ok());
    minor.with_context(|| format!("{version:?} is no version such as {VERSION}"))
}

fn package(name: &str) -> String {
    format!("k8s.io/kubernetes/cmd/{name}")
}

fn kubernetes(name: &str) -> anyhow::Result<PathBuf> {
    find(name, &package(name))
}

fn find(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(name));
    if let Some(found) = assets.filter(|path| path.is_file()) {
        return Ok(found);
    }
    if let Ok(found) = which::which(name) {
        return Ok(found);
    }
    let cache = cache()?;
    let cached = cache.join(name);
    if cached.is_file() {
        return Ok(cached);
    }
    let _lock = lock(&cache)?;
    if cached.is_file() {
        return Ok(cached);
    }
    let fetched = fetched(&cache).map(|dir| dir.join(name));
    if let Some(found) = fetched.filter(|path| path.is_file()) {
        return Ok(found);
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("controlplane");
    build(package, &module, VERSION, &cached)?;
    Ok(cached)
}

/// Path of a server of another version than [`VERSION`], which is built on first use.
fn of_other_version(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let directory = cache_of(version)?;
    let program = directory.join(name);
    let _lock = lock(&directory)?;
    if !program.is_file() {
        let module = directory.join("module");
        write_module(&module, version, &package(name))?;
        build(&package(name), &module, version, &program)?;
    }
    Ok(program)
}

/// Writes the Go module from which the programs of another version are built.
fn write_module(module: &Path, version: &str, package: &str) -> anyhow::Result<()> {
    let own = downloaded(&format!("k8s.io/kubernetes@{version}"), "GoMod")?;
    fs::create_dir_all(module)?;
    fs::write(module.join("go.mod"), manifest(&fs::read_to_string(own)?, version)?)?;
    // Adds the modules that the package needs, and their checksums.
    let mut list = Command::new("go");
    list.args(["list", "-mod=mod", "-deps", package]).current_dir(module).stdout(Stdio::null());
    anyhow::ensure!(list.status().context("starting go")?.success(), "go list {package} failed");
    Ok(())
}

/// Manifest of a module that requires Kubernetes. Parts of Kubernetes are modules of their own, which its own manifest
/// has by their paths in its repository.
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

/// Directory of the prebuilt archive, which is downloaded unless it is cached; `None` if that failed, for example on a
/// machine that can only reach the Go module proxy.
fn fetched(cache: &Path) -> Option<&'static Path> {
    static FETCHED: OnceLock<Option<PathBuf>> = OnceLock::new();
    FETCHED.get_or_init(|| fetch(cache)).as_deref()
}

fn fetch(cache: &Path) -> Option<PathBuf> {
    let output = Command::new("go")
        .args(["run", SETUP_ENVTEST, "use", VERSION.trim_start_matches('v'), "--print", "path"])
        .arg("--bin-dir")
        .arg(cache)
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(PathBuf::from(path.trim()))
}

/// Builds a program under a temporary name and renames it, so that an interrupted build leaves no
/// incomplete program in the cache.
fn build(package: &str, module: &Path, version: &str, to: &Path) -> anyhow::Result<()> {
    eprintln!("==> building {package} from Go modules; takes some minutes, only done once");
    let partial = to.with_extension("partial");
    let (variables, minor) = ("k8s.io/component-base/version", minor(version)?);
    let flags = format!(
        "-s -w -X {variables}.gitVersion={version} -X {variables}.gitMajor=1 -X {variables}.gitMinor={minor}"
    );
    let status = Command::new("go")
        .current_dir(module)
        // The linker drops debug information, and the compiler needs an eighth of its time for it.
        .args(["build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", &flags, "-o"])
        .arg(&partial)
        .arg(package)
        // Collecting less garbage saves a tenth of the compiler's CPU time, and takes a gigabyte.
        .env("GOGC", "400")
        .status()
        .context("starting go")?;
    if !status.success() {
        bail!("go build {package} failed");
    }
    Ok(fs::rename(partial, to)?)
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
}
