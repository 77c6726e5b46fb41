//! `podops-e2e demo --package`: the stateful package of the examples is deployed, reconfigured,
//! backed up, upgraded and removed with `kubectl kudo`, and shown as a live tree.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use indicatif::ProgressBar;
use kube::ResourceExt as _;
use podops_test_cluster::{
    cluster::{TestCluster, root},
    folders,
};
use tokio::process::Command;

use crate::progress_view::state_of;

/// Folder of the package.
const PACKAGE: &str = "docs/examples/packages/store";
/// Name of the Instance and its CollaSet.
const NAME: &str = "store";
/// Interval at which the tree is drawn.
const INTERVAL: Duration = Duration::from_millis(200);
/// Exit status of `kubectl kudo plan diff` if the objects would change.
const DIFFERENCES: i32 = 5;
/// Resources that the package applies, besides those that its ServiceAccount may always read.
const RESOURCES: &str =
    "services,collasets.apps.kusionstack.io,podtransitionrules.apps.kusionstack.io,jobs.batch";

/// The cluster and the command line.
struct Demo {
    cluster: TestCluster,
    programs: PathBuf,
    work: tempfile::TempDir,
}

/// Runs the demo with the programs of a directory.
///
/// # Errors
///
/// If the cluster does not start, or a command fails.
pub async fn run(programs: &Path) -> anyhow::Result<()> {
    eprintln!("==> starting etcd, kube-apiserver, fake nodes and operators");
    let mut cluster = TestCluster::start(programs).await?;
    cluster.add_instance_operator().await?;
    cluster.create_writer(NAME, RESOURCES).await?;
    let demo = Demo { cluster, programs: programs.to_owned(), work: tempfile::tempdir()? };
    let package = root().join(PACKAGE).display().to_string();
    let of_store = ["--instance", NAME];
    let wait = ["--wait"];
    let account = ["--service-account", NAME];
    let install = ["install", package.as_str()];
    demo.step("deployed", &[&install[..], &of_store, &account, &wait].concat()).await?;
    let claims = demo.claims().await?;
    let cache = ["-p", "CACHE=512Mi"];
    demo.show_difference(&[&of_store[..], &cache].concat()).await?;
    demo.step("reconfigured", &[&["update"][..], &of_store, &cache, &wait].concat()).await?;
    let trigger = ["plan", "trigger", "--name", "backup"];
    demo.step("backed up", &[&trigger[..], &of_store, &wait].concat()).await?;
    let newer = demo.newer_package()?;
    let upgrade = ["upgrade", newer.as_str()];
    demo.step("upgraded", &[&upgrade[..], &of_store, &wait].concat()).await?;
    ensure!(demo.claims().await? == claims, "the Pods have other claims than before");
    eprintln!("==> the Pods have kept their {} claims", claims.len());
    demo.step("removed", &[&["uninstall"][..], &of_store, &wait].concat()).await?;
    demo.cluster.assert_no_forbidden_requests()?;
    demo.cluster.clean_up().await
}

impl Demo {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("kubectl-kudo"));
        command
            .env("KUBECONFIG", self.cluster.plane.admin_kubeconfig())
            .env("HOME", self.work.path())
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command, and shows the plans and Pods until it has ended.
    async fn step(&self, title: &str, args: &[&str]) -> anyhow::Result<()> {
        eprintln!("$ kubectl kudo {}", shown(args));
        let started = Instant::now();
        let mut view = View::new();
        let mut command = self.command(args);
        let output = command.output();
        let mut output = std::pin::pin!(output);
        let output = loop {
            tokio::select! {
                ended = &mut output => break ended.context("starting kubectl-kudo")?,
                () = tokio::time::sleep(INTERVAL) => view.draw(&self.tree().await?),
            }
        };
        view.draw(&self.tree().await?);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl kudo {}: {errors}", shown(args));
        view.end();
        eprintln!("==> {title} after {:.1} s", started.elapsed().as_secs_f64());
        Ok(())
    }

    async fn show_difference(&self, args: &[&str]) -> anyhow::Result<()> {
        let args = [&["plan", "diff"], args].concat();
        eprintln!("$ kubectl kudo {}", shown(&args));
        let output = self.command(&args).output().await.context("starting kubectl-kudo")?;
        ensure!(output.status.code() == Some(DIFFERENCES), "{output:?}");
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        Ok(())
    }

    /// The plans of the Instance and the Pods of its CollaSet, as text; empty before it exists.
    async fn tree(&self) -> anyhow::Result<String> {
        let status = self.command(&["plan", "status", "--instance", NAME]).output().await?;
        if !status.status.success() {
            return Ok(String::new());
        }
        let mut text = String::from_utf8_lossy(&status.stdout).into_owned();
        for pod in self.cluster.pods_of(NAME).await? {
            writeln!(text, "{:12} {}", pod.name_any(), state_of(&pod))?;
        }
        Ok(text)
    }

    /// Names of the claims.
    async fn claims(&self) -> anyhow::Result<BTreeSet<String>> {
        let claims = self.cluster.plane.kubectl(&["get", "persistentvolumeclaims", "-o", "name"]);
        Ok(claims.await?.lines().map(ToOwned::to_owned).collect())
    }

    /// Copy of the package with a higher version of the operator and the application.
    fn newer_package(&self) -> anyhow::Result<String> {
        let from = root().join(PACKAGE);
        let to = self.work.path().join("store");
        folders::copy(&from, &to)?;
        let operator = fs::read_to_string(from.join("operator.yaml"))?;
        let operator = operator.replace("\"0.1.0\"", "\"0.2.0\"").replace("\"1.27\"", "\"1.28\"");
        fs::write(to.join("operator.yaml"), operator)?;
        Ok(to.display().to_string())
    }
}

/// Arguments as a user writes them; a folder by its name.
fn shown(args: &[&str]) -> String {
    let name = |arg: &&str| {
        let path = Path::new(arg).is_absolute();
        let name = path.then(|| Path::new(arg).file_name()).flatten();
        name.map_or_else(|| (*arg).to_owned(), |name| format!("./{}", name.to_string_lossy()))
    };
    args.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// The tree on a terminal, which is drawn again; elsewhere, each of its lines when it is new.
struct View {
    bar: Option<ProgressBar>,
    lines: BTreeSet<String>,
}

impl View {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        Self { bar, lines: BTreeSet::new() }
    }

    fn draw(&mut self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
            return;
        }
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if self.lines.insert(line.to_owned()) {
                eprintln!("{line}");
            }
        }
    }

    fn end(self) {
        if let Some(bar) = self.bar {
            let last = bar.message();
            bar.finish_and_clear();
            eprintln!("{last}");
        }
    }
}
