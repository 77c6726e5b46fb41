//! Soak test: random rollouts under shared budgets while operators are killed, nodes are
//! disconnected and rollouts are reverted. Checks that no budget is ever exceeded and that every
//! rollout completes.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use fastrand::Rng;
use indicatif::ProgressBar;
use podops_test_cluster::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{OPERATORS, TestCluster},
};
use serde_json::json;

/// Timeout of each rollout.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(240);
/// Number of budgets per round.
const TEAMS: usize = 4;

/// Two or three CollaSets that share one budget.
struct Team {
    name: String,
    /// Name and number of Pods of each CollaSet.
    sets: Vec<(String, usize)>,
    budget: usize,
}

/// Totals over all rounds.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of rollouts.
    pub rollouts: usize,
    /// Number of Pods in these rollouts.
    pub pods: usize,
    /// Number of times that an operator was killed.
    pub kills: usize,
    /// Number of times that a node was disconnected.
    pub disconnects: usize,
    /// Number of rollouts reverted while in progress.
    pub reverted: usize,
    /// Number of budgets that were fully used at some time.
    pub fully_used: usize,
    /// Number of budgets.
    pub budgets: usize,
    /// Number of budgets that were exceeded at some time; the test fails unless it is 0.
    pub exceeded: usize,
    /// Duration of all rounds.
    pub duration: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rollouts of {} Pods under {} budgets, {} of them fully used and {} exceeded; \
             {} operators killed, {} nodes disconnected, {} rollouts reverted; {:.0} s",
            self.rollouts,
            self.pods,
            self.budgets,
            self.fully_used,
            self.exceeded,
            self.kills,
            self.disconnects,
            self.reverted,
            self.duration.as_secs_f64()
        )
    }
}

impl Report {
    /// Renders the report as the Markdown page `docs/soak.md`.
    #[must_use]
    pub fn page(&self, rounds: usize, seed: u64) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["metric", "count"]);
        for (metric, count) in [
            ("rollouts, in place and by recreation", self.rollouts),
            ("Pods in these rollouts", self.pods),
            ("budgets, each shared by two or three CollaSets", self.budgets),
            ("budgets fully used at some time", self.fully_used),
            ("budgets exceeded at some time", self.exceeded),
            ("operators killed", self.kills),
            ("nodes disconnected", self.disconnects),
            ("rollouts reverted while in progress", self.reverted),
        ] {
            table.add_row([metric.to_owned(), count.to_string()]);
        }
        format!(
            "# Random rollouts under shared rules\n\n\
             Written by `cargo xtask soak --rounds {rounds} --seed {seed}`, which took {:.0} s.\n\
             Unavailability is measured from the Pod watch stream alone, independently of the operators.\n\n{table}\n",
            self.duration.as_secs_f64()
        )
    }
}

/// Runs `rounds` rounds of rollouts, with random choices from `seed`.
///
/// # Errors
///
/// If a budget is exceeded or a rollout times out.
pub async fn run(cluster: &TestCluster, rounds: usize, seed: u64) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let mut random = Rng::with_seed(seed);
    let started = Instant::now();
    let availability = AvailabilityMonitor::start(cluster).await?;
    let bar = ProgressBar::new(u64::try_from(rounds)?);
    for round in 0..rounds {
        bar.set_position(u64::try_from(round)?);
        let context = || format!("round {round} of seed {seed}");
        let teams: Vec<Team> = (0..TEAMS).map(|n| random_team(round, n, &mut random)).collect();
        for team in &teams {
            create_team(cluster, team).await.with_context(context)?;
        }
        availability.reset();
        roll_out(cluster, &teams, &mut random, &mut report).await.with_context(context)?;
        for team in &teams {
            let unavailable = availability.max_unavailable(&team.name);
            report.budgets += 1;
            report.fully_used += usize::from(unavailable == team.budget);
            report.exceeded += usize::from(unavailable > team.budget);
            anyhow::ensure!(
                unavailable <= team.budget,
                "{}: {unavailable} Pods of {} unavailable, {} allowed",
                context(),
                team.name,
                team.budget
            );
        }
        for team in &teams {
            delete_team(cluster, team).await.with_context(context)?;
        }
    }
    bar.finish_and_clear();
    report.duration = started.elapsed();
    Ok(report)
}

fn random_team(round: usize, number: usize, random: &mut Rng) -> Team {
    let name = format!("r{round}t{number}");
    let sets: Vec<(String, usize)> = (0..random.usize(2..=3))
        // Mostly small, because the subject of the test is sharing a budget, not size.
        .map(|n| {
            (
                format!("{name}s{n}"),
                if random.usize(0..8) == 0 { random.usize(20..=50) } else { random.usize(1..=10) },
            )
        })
        .collect();
    let all: usize = sets.iter().map(|(_, size)| size).sum();
    Team { name, budget: random.usize(1..=all.div_ceil(3)), sets }
}

async fn create_team(cluster: &TestCluster, team: &Team) -> anyhow::Result<()> {
    let selector = json!({ "matchLabels": { TEAM: team.name } });
    let budget =
        json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": team.budget } }]);
    cluster.create_rule(&team.name, selector, budget).await?;
    for (set, size) in &team.sets {
        let labels = json!({ "app": set, TEAM: team.name });
        let template = json!({
            "metadata": { "labels": labels },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        cluster.create_with(set, *size, "nginx:1", &json!({ "template": template })).await?;
    }
    for (set, size) in &team.sets {
        cluster.wait_until_rolled_out(set, i32::try_from(*size)?, ROLLOUT_TIMEOUT).await?;
    }
    Ok(())
}

async fn roll_out(
    cluster: &TestCluster,
    teams: &[Team],
    random: &mut Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let sets: Vec<&(String, usize)> = teams.iter().flat_map(|team| &team.sets).collect();
    for (set, size) in &sets {
        let policy =
            *random.choice(["InPlaceIfPossible", "Recreate"].iter()).context("no policy")?;
        let containers = json!([{ "name": "web", "image": "nginx:2" }]);
        let change = json!({
            "updateStrategy": { "podUpgradePolicy": policy },
            "template": { "spec": { "containers": containers } },
        });
        cluster.patch(set, change).await?;
        (report.rollouts, report.pods) = (report.rollouts + 1, report.pods + size);
    }
    let mut disconnected: Vec<String> = Vec::new();
    for _ in 0..random.usize(2..=5) {
        tokio::time::sleep(Duration::from_millis(random.u64(100..2500))).await;
        match random.usize(0..3) {
            0 => {
                let name = *random.choice(OPERATORS.iter()).context("no operator")?;
                cluster.kill_and_restart(name).await?;
                report.kills += 1;
            }
            1 => {
                let node = format!("node-{}", random.usize(0..5));
                cluster.nodes()?.disconnect(&node).await?;
                disconnected.push(node);
                report.disconnects += 1;
            }
            _ => {
                let (set, _) = random.choice(sets.iter()).context("no set")?;
                cluster.set_image(set, "nginx:1").await?;
                report.reverted += 1;
            }
        }
    }
    tokio::time::sleep(Duration::from_millis(random.u64(100..2500))).await;
    for node in disconnected {
        cluster.nodes()?.reconnect(&node).await?;
    }
    for (set, size) in sets {
        cluster.wait_until_rolled_out(set, i32::try_from(*size)?, ROLLOUT_TIMEOUT).await?;
    }
    Ok(())
}

async fn delete_team(cluster: &TestCluster, team: &Team) -> anyhow::Result<()> {
    cluster.rules().delete(&team.name, &kube::api::DeleteParams::default()).await?;
    for (set, _) in &team.sets {
        cluster.sets().delete(set, &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}
