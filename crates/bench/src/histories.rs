//! Differential test: the same random actions of a user on a native workload and on a CollaSet,
//! beside each other on one cluster. After each action that both have settled, the user must see
//! the same: Pods of each version and how many are available, the progress deadline, the end of the
//! rollout, and claims. Differences that are decisions are in `docs/reference/conventions.md`, and
//! [`user`] does not make the actions that show them.

mod observer;
mod user;
mod view;
mod workload;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use fastrand::Rng;
use futures::{StreamExt as _, stream};
use indicatif::ProgressBar;
use podops_test_cluster::{
    cluster::{TestCluster, eventually},
    nodes::Delays,
};

use self::{
    observer::Observer,
    user::{Action, Change, Desired, Disruption, Native},
    view::View,
    workload::{DEADLINE, Kind, REPLACE, Setup, Workload},
};

/// Number of histories that run beside each other.
const CONCURRENT: usize = 16;
/// Number of actions of a history.
const ACTIONS: usize = 8;
/// Time without a change after which both workloads have settled.
const STABLE: Duration = Duration::from_millis(800);
/// Time for which views may differ although nothing changes: a status is written with a delay, and
/// a deadline is reported once it has passed.
const PATIENCE: Duration = Duration::from_secs(45);
/// Timeout of everything that ends in any case.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time that a container takes to stop, unless its Pod has no grace period.
const SLOW_STOP: Duration = Duration::from_millis(1500);
/// Interval at which the observed objects are compared.
const INTERVAL: Duration = Duration::from_millis(100);

/// Totals over all histories.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of histories.
    pub histories: usize,
    /// Number of actions, by name.
    actions: BTreeMap<&'static str, usize>,
    /// Differences, each with its history.
    pub differences: Vec<String>,
    /// Claims that two Pods mounted at a time.
    pub shared_claims: usize,
    /// Number of Pods created for native workloads and for CollaSets.
    created: [usize; 2],
    /// Duration of all histories.
    duration: Duration,
}

/// End of one history.
struct End {
    actions: Vec<Action>,
    difference: Option<String>,
    created: [usize; 2],
}

/// Runs the histories of these numbers with random choices from `seed`.
///
/// # Errors
///
/// If the API server rejects a request, or workloads do not settle.
pub async fn run(
    cluster: &TestCluster,
    numbers: Range<usize>,
    seed: u64,
) -> anyhow::Result<Report> {
    let started = Instant::now();
    cluster.nodes()?.set_delays(Delays { stop: SLOW_STOP, ..Delays::default() });
    let observer = Observer::start(cluster);
    wait_for_budgets(cluster, &observer).await?;
    let mut report = Report { histories: numbers.len(), ..Report::default() };
    let bar = ProgressBar::new(u64::try_from(numbers.len())?);
    let histories = stream::iter(numbers).map(|number| history(cluster, &observer, number, seed));
    let mut ends = histories.buffer_unordered(CONCURRENT);
    while let Some(end) = ends.next().await {
        let end = end?;
        for action in &end.actions {
            *report.actions.entry(action.name()).or_default() += 1;
        }
        if let Some(difference) = end.difference {
            bar.suspend(|| eprintln!("{difference}"));
            report.differences.push(difference);
        }
        for (sum, created) in report.created.iter_mut().zip(end.created) {
            *sum += created;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    drop(ends);
    report.shared_claims = observer.read().shared_claims.len();
    report.duration = started.elapsed();
    Ok(report)
}

/// Waits until the disruption controller knows the kind CollaSet, up to half a minute after the
/// definition was created.
async fn wait_for_budgets(cluster: &TestCluster, observer: &Observer) -> anyhow::Result<()> {
    let setup = Setup {
        native: Native::Deployment,
        policy: "Recreate",
        retention: ["Delete"; 2],
        terminates_slowly: false,
        has_budget: true,
    };
    let name = "budget".to_owned();
    let client = &cluster.plane.admin;
    let workload = Workload::new(client, &cluster.namespace, Kind::CollaSet, name, setup);
    workload.create(&Desired::random(&mut Rng::with_seed(0))).await?;
    eventually(TIMEOUT, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let is_known = observer.read().expected_pods(&workload.name) > Some(0);
        if !is_known {
            workload.renew_budget().await?;
        }
        Ok(is_known)
    })
    .await?;
    workload.delete().await
}

/// A native workload and a CollaSet with the same fields.
struct Pair<'a> {
    setup: Setup,
    workloads: [Workload; 2],
    observer: &'a Observer,
    /// True if the next views have to be equal; otherwise, those of a rollout that cannot end,
    /// which depend on the times of its writes: as many Pods, and no fewer available ones.
    is_exact: bool,
}

async fn history(
    cluster: &TestCluster,
    observer: &Observer,
    number: usize,
    seed: u64,
) -> anyhow::Result<End> {
    let mut random = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    let native = if random.bool() { Native::Deployment } else { Native::StatefulSet };
    // A StatefulSet adds no Pods during an update.
    let policies = ["InPlaceIfPossible", "Recreate", REPLACE];
    let usable = if native == Native::Deployment { &policies[..] } else { &policies[..2] };
    let policy = usable[random.usize(..usable.len())];
    let retention = [(); 2].map(|()| if random.bool() { "Retain" } else { "Delete" });
    let terminates_slowly = random.bool();
    // The disruption controller takes the next Pod of the same name for the evicted one unless it
    // has seen that terminate.
    let has_budget = terminates_slowly && random.bool();
    let setup = Setup { native, policy, retention, terminates_slowly, has_budget };
    let new = |kind, prefix: &str| {
        let name = format!("{prefix}-{number}");
        Workload::new(&cluster.plane.admin, &cluster.namespace, kind, name, setup)
    };
    let mut pair = Pair {
        setup,
        workloads: [new(Kind::Native(native), "native"), new(Kind::CollaSet, "set")],
        observer,
        is_exact: true,
    };
    let mut desired = Desired::random(&mut random);
    let mut actions = Vec::new();
    let first = desired.replicas;
    let difference = pair.run(&mut desired, &mut actions, &mut random).await?;
    let difference = difference.map(|difference| {
        format!(
            "history {number} of seed {seed}, {setup:?}, {first} Pods, {actions:?}: {difference}"
        )
    });
    let created = |workload: &Workload| {
        observer.read().created.get(&workload.name).copied().unwrap_or_default()
    };
    Ok(End { created: pair.workloads.each_ref().map(created), actions, difference })
}

impl Pair<'_> {
    /// Runs a history, and returns the first difference.
    async fn run(
        &mut self,
        desired: &mut Desired,
        actions: &mut Vec<Action>,
        random: &mut Rng,
    ) -> anyhow::Result<Option<String>> {
        for workload in &self.workloads {
            workload.create(desired).await?;
        }
        let mut difference = self.settle().await?.err();
        while actions.len() < ACTIONS && difference.is_none() {
            let action = desired.random_action(self.setup.native, random);
            actions.push(action);
            difference = self.step(desired, action, random).await?;
        }
        if difference.is_none() {
            difference = self.settle().await?.err();
        }
        for workload in &self.workloads {
            workload.delete().await?;
        }
        let gone = self.end().await?;
        Ok(difference.or(gone))
    }

    /// Does one action, and compares the views afterwards.
    async fn step(
        &mut self,
        desired: &mut Desired,
        action: Action,
        random: &mut Rng,
    ) -> anyhow::Result<Option<String>> {
        let is_next_at_once = match action {
            // A StatefulSet that is scaled while it recreates Pods may leave claims behind. A
            // Deployment that is scaled in to the Pods that its update has left is stuck: its old
            // ReplicaSet has the right size, but not the annotation with the number of replicas.
            Action::Write(Change::Replicas(replicas) | Change::Scale(replicas)) => {
                self.setup.native == Native::Deployment && replicas > desired.replicas
            }
            Action::Write(_) => true,
            // The Pods of both are the same only once they have settled.
            Action::Disrupt(..) | Action::Wait => false,
        };
        if !is_next_at_once && let Err(difference) = self.settle().await? {
            return Ok(Some(difference));
        }
        let was_healthy = desired.is_healthy();
        let before = desired.replicas;
        if let Action::Write(change) = action {
            desired.apply(change);
        }
        self.is_exact = desired.is_exact();
        self.reset();
        self.act(desired, action).await?;
        // Some writes follow each other before the first one has had its effect.
        if matches!(action, Action::Write(_)) && random.u8(..3) == 0 {
            tokio::time::sleep(Duration::from_millis(random.u64(..600))).await;
            desired.interrupt();
            return Ok(None);
        }
        if let Err(difference) = self.settle().await? {
            return Ok(Some(difference));
        }
        let is_rollout = match action {
            Action::Write(change) => !matches!(change, Change::Replicas(_) | Change::Scale(_)),
            Action::Disrupt(..) | Action::Wait => false,
        };
        let healthy = was_healthy && desired.is_healthy();
        let unavailable = usize::from(self.setup.policy != REPLACE);
        let limit = before.min(desired.replicas).saturating_sub(unavailable);
        let fewest = self.fewest_available();
        desired.settle();
        Ok((is_rollout && healthy && fewest[1] < limit && fewest[0] >= limit)
            .then(|| format!("fewest available Pods {fewest:?}, at least {limit} required")))
    }

    fn reset(&self) {
        let mut observed = self.observer.read();
        for workload in &self.workloads {
            observed.reset(&workload.name);
        }
    }

    fn fewest_available(&self) -> [usize; 2] {
        let observed = self.observer.read();
        self.workloads.each_ref().map(|workload| observed.fewest_available(&workload.name))
    }

    /// Does an action on both workloads, or on a Pod of each.
    async fn act(&mut self, desired: &Desired, action: Action) -> anyhow::Result<()> {
        for workload in &mut self.workloads {
            match action {
                Action::Write(Change::Scale(replicas)) => workload.scale(replicas).await?,
                Action::Write(_) => workload.write(desired).await?,
                Action::Disrupt(disruption, position) => {
                    let pods = view::sorted_pods(&workload.name, &self.observer.read());
                    let one = position.checked_rem(pods.len()).map(|index| &pods[index..=index]);
                    let chosen =
                        if disruption == Disruption::DeleteAll { Some(&pods[..]) } else { one };
                    for pod in chosen.unwrap_or_default() {
                        match workload.disrupt(disruption, pod).await {
                            // Deleted meanwhile, or protected by the disruption budget.
                            Err(error) if is_expected(&error, disruption) => {}
                            result => result?,
                        }
                    }
                }
                Action::Wait => tokio::time::sleep(Duration::from_secs(DEADLINE)).await,
            }
        }
        Ok(())
    }

    /// Waits until both workloads have settled, and returns the difference if there is one.
    async fn settle(&mut self) -> anyhow::Result<Result<(), String>> {
        let started = Instant::now();
        let (mut last, mut since) = (None, Instant::now());
        loop {
            tokio::time::sleep(INTERVAL).await;
            let views = self.views();
            if last.as_ref() != Some(&views) {
                (last, since) = (Some(views.clone()), Instant::now());
            }
            let stable = since.elapsed();
            match views {
                [Some(native), Some(own)]
                    if own.is_as_good_as(&native, self.is_exact) && stable >= STABLE =>
                {
                    self.remember_claims();
                    return Ok(Ok(()));
                }
                views if stable >= PATIENCE => {
                    let [native, own] = views;
                    return Ok(Err(format!("native {native:?}, CollaSet {own:?}")));
                }
                _ if started.elapsed() > TIMEOUT => {
                    bail!("{} does not settle", self.workloads[1].name)
                }
                _ => {}
            }
        }
    }

    fn views(&self) -> [Option<View>; 2] {
        let observed = self.observer.read();
        self.workloads.each_ref().map(|workload| View::of(workload, &observed))
    }

    fn remember_claims(&mut self) {
        let observed = self.observer.read();
        for workload in &mut self.workloads {
            workload.claims = view::claim_uids(&workload.name, &observed);
        }
    }

    /// Waits until the deleted workloads and their Pods no longer exist, and compares the claims
    /// that remain. The garbage collector knows a new kind after half a minute.
    async fn end(&self) -> anyhow::Result<Option<String>> {
        let remaining = || {
            let observed = self.observer.read();
            self.workloads.each_ref().map(|workload| {
                let Workload { kind, name, .. } = workload;
                let is_gone = !observed.workloads.contains_key(&(*kind, name.clone()))
                    && observed.pods_of(name).next().is_none();
                is_gone.then(|| view::claim_uids(name, &observed).len())
            })
        };
        let equal = async || Ok(matches!(remaining(), [Some(a), Some(b)] if a == b));
        let waited = eventually(TIMEOUT, equal).await;
        Ok(waited.is_err().then(|| format!("claims after the deletion: {:?}", remaining())))
    }
}

/// Returns whether the API server rejected a change because the Pod no longer exists, or an eviction
/// because of the disruption budget.
fn is_expected(error: &anyhow::Error, disruption: Disruption) -> bool {
    let Some(kube::Error::Api(status)) = error.downcast_ref() else { return false };
    status.is_not_found() || disruption == Disruption::Evict && status.code == 429
}

impl Report {
    /// Checks that no history has a difference, and that no two Pods mounted one claim.
    ///
    /// # Errors
    ///
    /// If one has; [`run`] has printed the differences.
    pub fn ensure_equal(&self) -> anyhow::Result<()> {
        let Self { histories, differences, shared_claims, .. } = self;
        ensure!(
            differences.is_empty() && *shared_claims == 0,
            "{} of {histories} histories differ, and {shared_claims} claims were shared",
            differences.len()
        );
        Ok(())
    }

    /// Renders the report as the Markdown page `docs/histories.md`.
    #[must_use]
    pub fn page(&self, first: usize, seed: u64) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["metric", "count"]);
        let [native, own] = self.created;
        let mut row = |name: &str, count: usize| {
            table.add_row([name, &count.to_string()]);
        };
        row("histories", self.histories);
        row("histories with a difference", self.differences.len());
        row("claims that two Pods mounted at a time", self.shared_claims);
        row("Pods created for native workloads", native);
        row("Pods created for CollaSets", own);
        let first = if first == 0 { String::new() } else { format!(" --first {first}") };
        let mut page = format!(
            "# Histories of users, native workloads and CollaSets\n\n\
             Written by `cargo xtask histories --count {}{first} --seed {seed}`, which took {:.0} s.\n",
            self.histories,
            self.duration.as_secs_f64()
        );
        for (action, count) in &self.actions {
            table.add_row([(*action).to_owned(), count.to_string()]);
        }
        let _ = write!(page, "\n{table}\n");
        page
    }
}
