//! Random rollouts under shared rules, with operators killed, nodes silenced and users who change
//! their minds: nobody's budget is ever exceeded, and everything comes to rest.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use fastrand::Rng;
use indicatif::ProgressBar;
use serde_json::json;

use crate::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{OPERATORS, TestCluster},
};

/// How long a round may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(240);
/// Budgets in force side by side.
const TEAMS: usize = 4;

/// Two or three sets under one budget.
struct Team {
    name: String,
    /// Each set's name and size.
    sets: Vec<(String, usize)>,
    budget: usize,
}

/// What came of the rounds.
#[derive(Debug, Default)]
pub struct Report {
    /// Sets that were rolled out.
    pub rollouts: usize,
    /// Pods that they had, together.
    pub pods: usize,
    /// Operators that were killed.
    pub kills: usize,
    /// Nodes that fell silent for a time.
    pub silences: usize,
    /// Rollouts that were taken back on the way.
    pub undone: usize,
    /// Budgets that were used up at some instant.
    pub used_up: usize,
    /// Budgets that were watched.
    pub budgets: usize,
    /// Instants at which more were out than a budget allows: none, or the soak fails.
    pub exceeded: usize,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rollouts of {} Pods under {} budgets, {} of which were used up: {} exceeded; {} operators killed, \
             {} nodes silenced, {} rollouts taken back; {:.0} s",
            self.rollouts,
            self.pods,
            self.budgets,
            self.used_up,
            self.exceeded,
            self.kills,
            self.silences,
            self.undone,
            self.took.as_secs_f64()
        )
    }
}

impl Report {
    /// The report as a page of the documentation.
    #[must_use]
    pub fn page(&self, rounds: usize, seed: u64) -> String {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["what", "how many"]);
        for (what, count) in [
            ("rollouts, in place and by recreation", self.rollouts),
            ("Pods that these sets had, together", self.pods),
            ("budgets, each shared by two or three sets", self.budgets),
            ("of these, used up at some instant", self.used_up),
            ("of these, exceeded at some instant", self.exceeded),
            ("operators killed without warning", self.kills),
            ("nodes that fell silent for a time", self.silences),
            ("rollouts taken back on the way", self.undone),
        ] {
            table.add_row([what.to_owned(), count.to_string()]);
        }
        format!(
            "# Random rollouts under shared rules\n\n\
             Written by `cargo xtask soak --rounds {rounds} --seed {seed}`, which took {:.0} s.\n\
             Who is out because of an operation is told from the watch stream of Pods alone.\n\n{table}\n",
            self.took.as_secs_f64()
        )
    }
}

/// Runs rounds of rollouts.
///
/// # Errors
///
/// If a budget is exceeded, or something gets stuck.
pub async fn run(cluster: &TestCluster, rounds: usize, seed: u64) -> anyhow::Result<Report> {
    let (mut report, mut dice) = (Report::default(), Rng::with_seed(seed));
    let began = Instant::now();
    let availability = AvailabilityMonitor::start(cluster).await?;
    let bar = ProgressBar::new(u64::try_from(rounds)?);
    for round in 0..rounds {
        bar.set_position(u64::try_from(round)?);
        let context = || format!("round {round} of seed {seed}");
        let teams: Vec<Team> = (0..TEAMS).map(|n| team(round, n, &mut dice)).collect();
        for team in &teams {
            establish(cluster, team).await.with_context(context)?;
        }
        availability.reset();
        roll_out(cluster, &teams, &mut dice, &mut report).await.with_context(context)?;
        for team in &teams {
            let worst = availability.max_unavailable(&team.name);
            report.budgets += 1;
            report.used_up += usize::from(worst == team.budget);
            report.exceeded += usize::from(worst > team.budget);
            anyhow::ensure!(
                worst <= team.budget,
                "{}: {} were out, and {} may be ({})",
                context(),
                worst,
                team.budget,
                team.name
            );
        }
        for team in &teams {
            abolish(cluster, team).await.with_context(context)?;
        }
    }
    bar.finish_and_clear();
    report.took = began.elapsed();
    Ok(report)
}

fn team(round: usize, number: usize, dice: &mut Rng) -> Team {
    let name = format!("r{round}t{number}");
    let sets: Vec<(String, usize)> = (0..dice.usize(2..=3))
        // Mostly small, sometimes large: what matters is how sets share.
        .map(|n| {
            (
                format!("{name}s{n}"),
                if dice.usize(0..8) == 0 { dice.usize(20..=50) } else { dice.usize(1..=10) },
            )
        })
        .collect();
    let all: usize = sets.iter().map(|(_, size)| size).sum();
    Team { name, budget: dice.usize(1..=all.div_ceil(3)), sets }
}

async fn establish(cluster: &TestCluster, team: &Team) -> anyhow::Result<()> {
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
        cluster.wait_until_rolled_out(set, i32::try_from(*size)?, STUCK).await?;
    }
    Ok(())
}

async fn roll_out(
    cluster: &TestCluster,
    teams: &[Team],
    dice: &mut Rng,
    report: &mut Report,
) -> anyhow::Result<()> {
    let sets: Vec<&(String, usize)> = teams.iter().flat_map(|team| &team.sets).collect();
    for (set, size) in &sets {
        let policy = *dice.choice(["InPlaceIfPossible", "Recreate"].iter()).context("no policy")?;
        let containers = json!([{ "name": "web", "image": "nginx:2" }]);
        let change = json!({
            "updateStrategy": { "podUpgradePolicy": policy },
            "template": { "spec": { "containers": containers } },
        });
        cluster.patch(set, change).await?;
        (report.rollouts, report.pods) = (report.rollouts + 1, report.pods + size);
    }
    let mut silent: Vec<String> = Vec::new();
    for _ in 0..dice.usize(2..=5) {
        tokio::time::sleep(Duration::from_millis(dice.u64(100..2500))).await;
        match dice.usize(0..3) {
            0 => {
                let name = *dice.choice(OPERATORS.iter()).context("no operator")?;
                cluster.kill_and_restart(name).await?;
                report.kills += 1;
            }
            1 => {
                let node = format!("node-{}", dice.usize(0..5));
                cluster.nodes()?.disconnect(&node).await?;
                silent.push(node);
                report.silences += 1;
            }
            _ => {
                let (set, _) = dice.choice(sets.iter()).context("no set")?;
                cluster.set_image(set, "nginx:1").await?;
                report.undone += 1;
            }
        }
    }
    tokio::time::sleep(Duration::from_millis(dice.u64(100..2500))).await;
    for node in silent {
        cluster.nodes()?.reconnect(&node).await?;
    }
    for (set, size) in sets {
        cluster.wait_until_rolled_out(set, i32::try_from(*size)?, STUCK).await?;
    }
    Ok(())
}

async fn abolish(cluster: &TestCluster, team: &Team) -> anyhow::Result<()> {
    cluster.rules().delete(&team.name, &kube::api::DeleteParams::default()).await?;
    for (set, _) in &team.sets {
        cluster.sets().delete(set, &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}
