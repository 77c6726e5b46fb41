//! Takes packages of KUDO through their life with the command line, on the test cluster:
//! verification, archive, installation from a repository, every plan, a changed parameter, an
//! upgrade, uninstallation.

mod killer;
mod package;
mod repository;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use kubectl_kudo::failure::Failure;
use serde_json::Value;
use tokio::process::Command;

use self::{
    killer::Killer,
    package::{ChangedParameter, NOT_ALLOWED, PackageFolder},
    repository::Repository,
};
use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TestCluster, eventually},
    package_history::{Killed, PackageHistory},
};

use crate::page::conditions;

/// Folder of the community packages, which are data that is not committed, from the root of the
/// repository.
pub const COMMUNITY: &str = "../shared/kudo/packages";

/// Timeout of one plan, in seconds.
const PLAN_TIMEOUT: &str = "60";
/// The same while the operator is killed again and again, and its Lease has to expire.
const KILLED_PLAN_TIMEOUT: &str = "180";
/// Timeout until the objects of a deleted Instance are gone.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
/// StatefulSets keep the claims that they make, and with them the data.
const CLAIMS: &str = "persistentvolumeclaims";
/// Kinds of other projects that packages refer to.
const FOREIGN: [ForeignKind; 1] = [ForeignKind {
    plural: "servicemonitors",
    kind: "ServiceMonitor",
    group: "monitoring.coreos.com",
    version: "v1",
}];

/// Kind of another project.
struct ForeignKind {
    plural: &'static str,
    kind: &'static str,
    group: &'static str,
    version: &'static str,
}

/// Most time that the verification of a package may take.
const VERIFY_MAX: Duration = Duration::from_millis(300);

/// Results of one package.
#[derive(Debug, Default)]
struct Tried {
    name: String,
    verify: Duration,
    deploy: Duration,
    /// Writes of the operator for the plan `deploy`.
    deploy_writes: usize,
    /// Objects that the Instance applied.
    objects: usize,
    plans: Vec<String>,
    changed: String,
    /// Objects that are left after the Instance was deleted.
    left: Vec<String>,
    failure: Option<String>,
}

/// The cluster, the command line, and a repository of packages.
struct Lab {
    cluster: TestCluster,
    program: PathBuf,
    repository: Repository,
    work: tempfile::TempDir,
    /// Kills the operator while plans run.
    killer: Option<Arc<Killer>>,
}

/// A package, and its next version.
struct Published {
    package: PackageFolder,
    next: PackageFolder,
}

/// Returns the folder of the package of an operator below another folder, if there is one.
///
/// # Errors
///
/// If a package cannot be read.
pub fn folder_of(operator: &str, folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut packages = package::find(folder)?.into_iter();
    Ok(packages.find(|package| package.operator == operator).map(|package| package.folder))
}

/// Tries all packages below a folder; returns a Markdown page.
///
/// # Errors
///
/// If there are no packages, the cluster does not start, or a package fails.
pub async fn run(programs: &Path, folder: &Path) -> anyhow::Result<String> {
    let lab = Lab::start(TestCluster::start_with_packages(programs).await?, programs).await?;
    let mut tried = Vec::new();
    for published in lab.publish_all(folder).await? {
        let mut result = Tried { name: published.package.title(), ..Tried::default() };
        if let Err(error) = lab.try_package(&published, &mut result).await {
            result.failure = Some(format!("{error:#}"));
        }
        let end = result.failure.as_deref().unwrap_or("done");
        writeln!(io::stderr(), "{}: {end}", result.name)?;
        tried.push(result);
    }
    lab.cluster.assert_no_forbidden_requests()?;
    let page = page(&tried)?;
    let failed: Vec<String> = tried
        .iter()
        .filter_map(|tried| Some(format!("{}: {}", tried.name, tried.failure.as_ref()?)))
        .collect();
    ensure!(failed.is_empty(), "{}\n{page}", failed.join("\n"));
    Ok(page)
}

/// Tries all packages below a folder while the operator is killed this number of times at random
/// points of their runs, in the second half with two operators; returns a paragraph.
///
/// # Errors
///
/// If there are no packages, the cluster does not start, a run does not end, or repeats an action
/// that must be done once.
pub async fn run_with_kills(
    programs: &Path,
    folder: &Path,
    kills: usize,
) -> anyhow::Result<String> {
    let cluster = TestCluster::start_with_packages_for_standby(programs).await?;
    let mut lab = Lab::start(cluster, programs).await?;
    let killer = Arc::new(Killer::new());
    lab.killer = Some(killer.clone());
    let history = PackageHistory::start(&lab.cluster.plane.admin);
    let all = lab.publish_all(folder).await?;
    for (n, published) in all.iter().enumerate() {
        if n == all.len() / 2 {
            lab.cluster.start_standby(INSTANCE_OPERATOR).await?;
        }
        killer.permit(kills * (n + 1) / all.len());
        let title = published.package.title();
        let tried = lab.try_package(published, &mut Tried::default()).await;
        tried.with_context(|| format!("{title}, after {} kills", killer.killed()))?;
        writeln!(io::stderr(), "{title}: done, {} kills so far", killer.killed())?;
    }
    let Killed { runs, made_again, entered_again, .. } = history.judge();
    ensure!((made_again, entered_again) == (0, 0), "{:?}", history.judge());
    lab.cluster.assert_no_forbidden_requests()?;
    Ok(format!(
        "\
After that, they were taken through it again while the operator was killed with `kill -9` at {} random \
points of their runs, in the second half with two operators: {runs} runs became COMPLETE, and no command \
failed; no Secret or Pod of a Pipe task was made twice in a run, and no complete step was entered again.
",
        killer.killed()
    ))
}

fn page(tried: &[Tried]) -> anyhow::Result<String> {
    let slowest = tried.iter().map(|tried| tried.verify).max().unwrap_or_default();
    let is_done = |tried: &&Tried| tried.failure.is_none();
    let done = tried.iter().filter(is_done).count();
    let count = tried.len();
    let conditions = conditions("packages DIR")?;
    let mut page = format!(
        "\
# Packages of KUDO

The community packages of KUDO, taken through their life on the test cluster by `cargo xtask packages`: with
a real API server and controllers, on simulated nodes, and with the rights that KUDO had (component
`package-admin`).
Each is verified, becomes the same archive twice, is installed from an HTTP repository, runs every plan, is
changed, is upgraded to a higher version, and is uninstalled.
{conditions}

{done} of {count} packages did all of this. The slowest verification took {} ms of at most {} ms.
Claims of StatefulSets stay, because they have data, and CustomResourceDefinitions, because their deletion deletes all objects of their kind; anything else that stays would be a failure.

| package | verify | deploy | objects | writes for deploy | other plans | changed parameter | left after uninstall |
|---|---|---|---|---|---|---|---|
",
        slowest.as_millis(),
        VERIFY_MAX.as_millis(),
    );
    for tried in tried {
        let plans = if tried.plans.is_empty() { "–".to_owned() } else { tried.plans.join(", ") };
        let left = if tried.left.is_empty() { "nothing".to_owned() } else { tried.left.join(", ") };
        let deploy = match &tried.failure {
            None => format!("{:.1} s", tried.deploy.as_secs_f64()),
            Some(_) => "failed".to_owned(),
        };
        writeln!(
            page,
            "| {} | {} ms | {deploy} | {} | {} | {plans} | {} | {left} |",
            tried.name,
            tried.verify.as_millis(),
            tried.objects,
            tried.deploy_writes,
            tried.changed,
        )?;
    }
    Ok(page)
}

impl Lab {
    async fn start(cluster: TestCluster, programs: &Path) -> anyhow::Result<Self> {
        cluster.add_package_admin().await?;
        let work = tempfile::tempdir()?;
        for foreign in &FOREIGN {
            let file = work.path().join(foreign.plural);
            std::fs::write(&file, definition(foreign).to_string())?;
            let file = file.to_str().context("a path is not UTF-8")?;
            cluster.plane.kubectl(&["apply", "-f", file]).await?;
        }
        Ok(Self {
            cluster,
            program: programs.join("kubectl-kudo"),
            repository: Repository::start().await?,
            work,
            killer: None,
        })
    }

    /// Runs the command line.
    async fn output(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.program);
        command
            .env("KUBECONFIG", self.cluster.plane.admin_kubeconfig())
            .env("HOME", self.work.path());
        Ok(command.args(args).output().await?)
    }

    /// Runs the command line; returns its output.
    async fn kudo(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.output(args).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl kudo {}: {errors}{text}", args.join(" "));
        }
        Ok(text)
    }

    /// Runs the command line for a plan, during which the operator may be killed.
    async fn run_plan(&self, args: &[&str]) -> anyhow::Result<String> {
        match &self.killer {
            Some(killer) => killer.during(&self.cluster, self.kudo(args)).await,
            None => self.kudo(args).await,
        }
    }

    /// Adds all packages below a folder to the repository.
    async fn publish_all(&self, folder: &Path) -> anyhow::Result<Vec<Published>> {
        let packages = package::find(folder)?;
        ensure!(!packages.is_empty(), "there are no packages in {}", folder.display());
        let mut published = Vec::new();
        for package in &packages {
            published.push(self.publish(package, &packages).await?);
        }
        Ok(published)
    }

    /// Adds a package and its next version to the repository; returns their folders.
    async fn publish(
        &self,
        package: &PackageFolder,
        all: &[PackageFolder],
    ) -> anyhow::Result<Published> {
        let copy = package.copy_to(&self.work.path().join(package.title()), all)?;
        let next =
            copy.copy_to(&self.work.path().join(format!("{}-next", package.title())), &[])?;
        let next = next.raise_version()?;
        for folder in [&copy, &next] {
            let archive = self.archive(folder).await?;
            self.repository.add(folder, archive);
        }
        Ok(Published { package: copy, next })
    }

    /// Creates the archive of a package twice, and checks that both have the same bytes.
    async fn archive(&self, folder: &PackageFolder) -> anyhow::Result<Vec<u8>> {
        let mut archives = Vec::new();
        for _ in 0..2 {
            let target = tempfile::tempdir_in(self.work.path())?;
            let to = target.path().to_str().context("a path is not UTF-8")?;
            self.kudo(&["package", "create", folder.path()?, "--destination", to]).await?;
            let file = std::fs::read_dir(target.path())?.next().context("no archive")??;
            archives.push(std::fs::read(file.path())?);
        }
        ensure!(archives[0] == archives[1], "{} has two archives", folder.title());
        archives.pop().context("no archive")
    }

    /// Shows the effects of a change: there may be differences, and no error.
    async fn preview(&self, args: &[&str]) -> anyhow::Result<()> {
        let args = [&["plan", "diff"], args].concat();
        let output = self.output(&args).await?;
        let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let differences = i32::from(Failure::Differences.status());
        let is_shown = output.status.code().is_some_and(|code| [0, differences].contains(&code));
        let has_error = text.iter().any(|text| text.contains("Error:") || text.contains(" ! "));
        ensure!(is_shown && !has_error, "kubectl kudo {}: {}{}", args.join(" "), text[0], text[1]);
        Ok(())
    }

    async fn try_package(
        &self,
        Published { package, next }: &Published,
        tried: &mut Tried,
    ) -> anyhow::Result<()> {
        let verify = Instant::now();
        self.kudo(&["package", "verify", package.path()?]).await?;
        tried.verify = verify.elapsed();
        // Tests run beside others, and with programs that are not optimized.
        let is_measured = !cfg!(debug_assertions);
        ensure!(!is_measured || tried.verify <= VERIFY_MAX, "verify took {:?}", tried.verify);
        let namespace = package.namespace();
        let operator = package.operator.as_str();
        let repo = self.repository.url.as_str();
        self.cluster.create_namespace(&namespace).await?;
        let before = self.cluster_objects().await?;
        let in_namespace = ["--namespace", namespace.as_str()];
        let instance = ["--instance", operator];
        let timeout = if self.killer.is_some() { KILLED_PLAN_TIMEOUT } else { PLAN_TIMEOUT };
        let waits = ["--wait", "--wait-time", timeout];
        let run = async |args: &[&str]| self.run_plan(&[args, &in_namespace].concat()).await;
        let since = self.cluster.audit_log_end()?;
        let deploy = Instant::now();
        let version = ["--operator-version", package.operator_version.as_str()];
        let install = ["install", operator, "--repo", repo];
        run(&[&install[..], &instance, &version, &waits].concat()).await?;
        tried.deploy = deploy.elapsed();
        tried.deploy_writes = self.writes(since)?;
        tried.objects = self.inventory(package).await?;
        for plan in package.plans.iter().filter(|plan| *plan != "deploy") {
            let trigger = ["plan", "trigger", "--name", plan];
            let name = ["--name", plan];
            self.preview(&[&name[..], &instance, &in_namespace].concat()).await?;
            if plan == NOT_ALLOWED && package.not_allowed_never_ends {
                run(&[&trigger[..], &instance].concat()).await?;
                self.cancel(package).await?;
                tried.plans.push(format!("{plan} (cancelled)"));
                continue;
            }
            run(&[&trigger[..], &instance, &waits].concat()).await.context(plan.clone())?;
            tried.plans.push(plan.clone());
        }
        let ChangedParameter { name, default, value } = package.changed_parameter()?;
        let [change, back] = [value, default].map(|value| format!("{name}={value}"));
        self.preview(&[&["-p", &change][..], &instance, &in_namespace].concat()).await?;
        run(&[&["update", "-p", &change][..], &instance, &waits].concat()).await?;
        for change in [&back, &change].into_iter().cycle() {
            if !self.killer.as_ref().is_some_and(|killer| killer.is_due()) {
                break;
            }
            run(&[&["update", "-p", change][..], &instance, &waits].concat()).await?;
        }
        tried.changed = change;
        let version = ["--operator-version", next.operator_version.as_str()];
        let upgrade = ["upgrade", operator, "--repo", repo];
        run(&[&upgrade[..], &instance, &version, &waits].concat()).await?;
        run(&[&["uninstall"][..], &instance, &waits].concat()).await?;
        tried.left = self.left(package, &before).await?;
        Ok(())
    }

    /// Cancels the plan that runs, once it does.
    async fn cancel(&self, package: &PackageFolder) -> anyhow::Result<()> {
        let operator = package.operator.as_str();
        let namespace = package.namespace();
        let of_instance = ["--instance", operator, "--namespace", namespace.as_str()];
        let cancel = [&["plan", "cancel"][..], &of_instance].concat();
        eventually(GONE_TIMEOUT, async || Ok(self.output(&cancel).await?.status.success())).await?;
        let wait = [&["plan", "wait"][..], &of_instance].concat();
        let status = async || Ok(self.output(&wait).await?.status.code() == Some(4));
        eventually(GONE_TIMEOUT, status).await
    }

    /// Writes of the operator since an offset of the audit log, without those of its Lease.
    fn writes(&self, since: u64) -> anyhow::Result<usize> {
        let (requests, _) = self.cluster.requests(since)?;
        let of_operator =
            requests.iter().filter(|request| request.operator() == Some(INSTANCE_OPERATOR));
        Ok(of_operator
            .filter(|request| request.is_write() && request.is_operator_request())
            .count())
    }

    async fn inventory(&self, package: &PackageFolder) -> anyhow::Result<usize> {
        let name = package.operator.as_str();
        let namespace = package.namespace();
        let get = ["get", "instances.kudo.dev", name, "--namespace", &namespace, "-o", "json"];
        let instance: Value = serde_json::from_str(&self.cluster.plane.kubectl(&get).await?)?;
        Ok(instance["status"]["inventory"].as_array().map_or(0, Vec::len))
    }

    /// Kinds of a scope that can be listed.
    async fn kinds(&self, scope: &str) -> anyhow::Result<String> {
        let kinds = ["api-resources", "--verbs=list", "-o", "name", scope];
        let kinds = self.cluster.plane.kubectl(&kinds).await?;
        let counts = |kind: &&str| !kind.contains("events") && *kind != CLAIMS;
        Ok(kinds.lines().filter(counts).collect::<Vec<_>>().join(","))
    }

    /// Objects of these kinds that Instances have applied.
    async fn applied(&self, kinds: &str, args: &[&str]) -> anyhow::Result<BTreeSet<String>> {
        let get = ["get", kinds, "--selector", "heritage=kudo", "-o", "name"];
        let found = self.cluster.plane.kubectl(&[&get[..], args].concat()).await?;
        Ok(found.lines().map(ToOwned::to_owned).collect())
    }

    async fn cluster_objects(&self) -> anyhow::Result<BTreeSet<String>> {
        self.applied(&self.kinds("--namespaced=false").await?, &[]).await
    }

    /// Returns the rest of the Instance and its children: claims of StatefulSets and
    /// CustomResourceDefinitions. Waits until the garbage collector has deleted all else in its
    /// namespace.
    ///
    /// # Errors
    ///
    /// If anything else is left.
    async fn left(
        &self,
        package: &PackageFolder,
        before: &BTreeSet<String>,
    ) -> anyhow::Result<Vec<String>> {
        let namespace = package.namespace();
        let in_namespace = ["--namespace", namespace.as_str()];
        let namespaced = self.kinds("--namespaced=true").await?;
        let applied = async || self.applied(&namespaced, &in_namespace).await;
        if eventually(GONE_TIMEOUT, async || Ok(applied().await?.is_empty())).await.is_err() {
            bail!("{:?} are left", applied().await?);
        }
        let after = self.cluster_objects().await?;
        let mut left: Vec<String> = after.difference(before).cloned().collect();
        let kept = |name: &String| name.starts_with("customresourcedefinition.");
        ensure!(left.iter().all(kept), "{left:?} are left");
        let claims = self.applied(CLAIMS, &in_namespace).await?.len();
        left.extend((claims > 0).then(|| format!("{claims} claims of StatefulSets")));
        Ok(left)
    }
}

/// Definition of a kind with any content.
fn definition(foreign: &ForeignKind) -> Value {
    let ForeignKind { plural, kind, group, version } = foreign;
    let schema = serde_json::json!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    });
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced", "names": { "plural": plural, "kind": kind },
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}
