//! Durations of updates, to compare those beside a tenant with undisturbed ones.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::cluster::{OPERATORS, TIMEOUT, TestCluster};

/// How many times as long updates may take at the median, in a test that runs alone.
pub const ALONE: f64 = 1.5;
/// The same in a test that runs beside another one.
pub const BESIDE_ANOTHER: f64 = 2.5;

/// Updates of a CollaSet.
#[derive(Debug)]
pub struct Updates {
    /// How long they took, sorted.
    durations: Vec<Duration>,
    /// How often an operator ended meanwhile, also without an error, for example without its Lease.
    exits: usize,
}

impl Updates {
    /// Updates a CollaSet `count` times, to images with this tag and a number.
    ///
    /// # Errors
    ///
    /// If an update fails, or does not complete in time.
    pub async fn measure(
        cluster: &TestCluster,
        set: &str,
        replicas: i32,
        tag: &str,
        count: usize,
    ) -> anyhow::Result<Self> {
        let mut durations = Vec::new();
        let exits = exits(cluster);
        for n in 0..count {
            let started = Instant::now();
            cluster.set_image(set, &format!("nginx:{tag}-{n}")).await?;
            cluster.wait_until_rolled_out(set, replicas, TIMEOUT).await?;
            durations.push(started.elapsed());
        }
        eprintln!("{tag} updates of {set}: {durations:.1?}");
        durations.sort_unstable();
        Ok(Self { durations, exits: self::exits(cluster) - exits })
    }

    /// Checks that a tenant has not slowed the updates of another namespace: at the median to less
    /// than `factor` times the undisturbed duration, and none to one time more than that; and that
    /// no operator ended.
    ///
    /// # Errors
    ///
    /// If it has.
    pub fn ensure_not_slowed(&self, undisturbed: &Self, factor: f64) -> anyhow::Result<()> {
        let median = undisturbed.median();
        let is_fast = self.median() < median.mul_f64(factor);
        // No reconcile waits for another namespace.
        let Self { durations, exits } = self;
        let is_steady = durations.iter().all(|duration| *duration < median.mul_f64(factor + 1.0));
        ensure!(
            is_fast && is_steady,
            "updates took {durations:.1?}, undisturbed {:.1?}",
            undisturbed.durations
        );
        ensure!(*exits == 0, "operators ended {exits} times");
        Ok(())
    }

    fn median(&self) -> Duration {
        self.durations[self.durations.len() / 2]
    }
}

/// Number of exits of all operators so far.
fn exits(cluster: &TestCluster) -> usize {
    let running = OPERATORS.iter().filter_map(|operator| cluster.operator(operator).ok());
    running.map(|process| process.exits().len()).sum()
}
