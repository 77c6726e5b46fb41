//! Where etcd, kube-apiserver, kube-controller-manager and kubectl are, and what comes as Python wheels.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// The Kubernetes version that is built when none is found; `e2e/controlplane/go.mod` pins it.
const VERSION: &str = "v1.36.3";
/// What knows where the prebuilt archives are and checks what it fetches.
const SETUP_ENVTEST: &str = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1";

/// Where the programs are.
pub struct Programs {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub apiserver: PathBuf,
    /// kube-controller-manager, which no archive has.
    pub controller_manager: PathBuf,
    /// kubectl.
    pub kubectl: PathBuf,
}

impl Programs {
    /// Finds the programs: in `KUBEBUILDER_ASSETS`, on `PATH`, in their own cache, in a prebuilt
    /// archive if one can be fetched; else builds them from Go modules into the cache, which takes
    /// some minutes.
    ///
    /// # Errors
    ///
    /// If one is found nowhere and cannot be built.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self {
            etcd: find("etcd", "go.etcd.io/etcd/server/v3")?,
            apiserver: kubernetes("kube-apiserver")?,
            controller_manager: kubernetes("kube-controller-manager")?,
            kubectl: Self::find_kubectl()?,
        })
    }

    /// Finds kubectl alone.
    ///
    /// # Errors
    ///
    /// If it is found nowhere and cannot be built.
    pub fn find_kubectl() -> anyhow::Result<PathBuf> {
        kubernetes("kubectl")
    }
}

fn kubernetes(name: &str) -> anyhow::Result<PathBuf> {
    find(name, &format!("k8s.io/kubernetes/cmd/{name}"))
}

fn find(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(name));
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
    std::fs::create_dir_all(&cache)?;
    let fetched = fetch(&cache).map(|dir| dir.join(name));
    if let Some(found) = fetched.filter(|path| path.is_file()) {
        return Ok(found);
    }
    build(package, &cached)?;
    Ok(cached)
}

/// Envoy: on `PATH`, or the one that comes as a Python wheel.
///
/// # Errors
///
/// If it cannot be installed.
pub fn envoy() -> anyhow::Result<PathBuf> {
    if let Ok(found) = which::which("envoy") {
        return Ok(found);
    }
    // What a wheel puts among the programs is a script that starts it, and outlives its killer.
    let lib =
        std::fs::read_dir(python()?.join("lib"))?.next().context("Python has no library")??;
    Ok(lib.path().join("site-packages/envoy/_bin/envoy"))
}

/// Where Python's packages of the lab are installed, in an environment of their own; they are fetched
/// once.
///
/// # Errors
///
/// If they cannot be installed.
pub fn python() -> anyhow::Result<PathBuf> {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/requirements.txt");
    let named = std::fs::read_to_string(&wanted)?;
    let at = cache()?.join("python");
    std::fs::create_dir_all(&at)?;
    // Tests that run side by side install it once.
    let lock = std::fs::File::create(at.join("lock"))?;
    lock.lock()?;
    let installed = at.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|before| before == named) {
        return Ok(at);
    }
    eprintln!("==> installing Envoy and an emulator of AWS as Python wheels; this is done once");
    let run = |program: &Path, args: &[&str]| {
        let status = Command::new(program).args(args).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("starting {}", program.display()))?;
        anyhow::ensure!(status.success(), "{} {args:?} failed", program.display());
        Ok(())
    };
    run(Path::new("python3"), &["-m", "venv", &at.display().to_string()])?;
    let file = wanted.display().to_string();
    run(&at.join("bin/pip"), &["install", "--quiet", "--disable-pip-version-check", "-r", &file])?;
    std::fs::write(installed, named)?;
    Ok(at)
}

fn cache() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(home.join("podops").join(VERSION))
}

/// Fetches the prebuilt archive, or finds the one fetched before; `None` where that is not possible,
/// as on a machine that reaches no more than its Go modules.
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

/// Builds a program next to its place and moves it there, so that a build that is cut off leaves
/// nothing that looks like a program.
fn build(package: &str, to: &Path) -> anyhow::Result<()> {
    eprintln!("==> building {package} from Go modules; this is done once and takes some minutes");
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("controlplane");
    std::fs::create_dir_all(to.parent().context("the cache has no parent")?)?;
    let partial = to.with_extension("partial");
    let version = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {version}.gitVersion={VERSION} -X {version}.gitMajor=1 -X {version}.gitMinor=36"
    );
    let status = Command::new("go")
        .current_dir(at)
        .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
        .arg(&partial)
        .arg(package)
        .status()
        .context("starting go")?;
    if !status.success() {
        bail!("go build {package} failed");
    }
    Ok(std::fs::rename(partial, to)?)
}
