//! Durations of updates, to compare those beside a tenant with undisturbed ones.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::cluster::{TIMEOUT, TestCluster};

/// How many times as long updates may take at the median, in a test that runs alone.
pub const ALONE: f64 = 1.5;
/// The same in a test that runs beside another one.
pub const BESIDE_ANOTHER: f64 = 2.5;

/// Durations of updates of a CollaSet, sorted.
#[derive(Debug)]
pub struct Updates(Vec<Duration>);

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
        for n in 0..count {
            let started = Instant::now();
            cluster.set_image(set, &format!("nginx:{tag}-{n}")).await?;
            cluster.wait_until_rolled_out(set, replicas, TIMEOUT).await?;
            durations.push(started.elapsed());
        }
        eprintln!("{tag} updates of {set}: {durations:.1?}");
        durations.sort_unstable();
        Ok(Self(durations))
    }

    /// Checks that a tenant has not slowed the updates of another namespace: at the median to less than
    /// `factor` times the undisturbed duration, and none to one time more than that.
    ///
    /// # Errors
    ///
    /// If it has.
    pub fn ensure_not_slowed(&self, undisturbed: &Self, factor: f64) -> anyhow::Result<()> {
        let median = undisturbed.median();
        let is_fast = self.median() < median.mul_f64(factor);
        // No reconcile waits for another namespace.
        let is_steady = self.0.iter().all(|duration| *duration < median.mul_f64(factor + 1.0));
        let Self(durations) = self;
        ensure!(
            is_fast && is_steady,
            "updates took {durations:.1?}, undisturbed {:.1?}",
            undisturbed.0
        );
        Ok(())
    }

    fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }
}
