//! Kills instance-operator while a command waits for a plan.

use std::{pin::pin, time::Duration};

use parking_lot::Mutex;
use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TestCluster},
    process::Signal,
};
use tokio::{select, time::sleep};

/// Seed of the points in time.
const SEED: u64 = 18;
/// Longest time between two kills: an operator that starts has some time to work.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Kills the operator at random points.
pub(super) struct Killer {
    state: Mutex<State>,
}

struct State {
    random: fastrand::Rng,
    /// Number of kills so far.
    killed: usize,
    /// Number of kills after which there is none until it is raised.
    until: usize,
}

impl Killer {
    pub(super) fn new() -> Self {
        let random = fastrand::Rng::with_seed(SEED);
        Self { state: Mutex::new(State { random, killed: 0, until: 0 }) }
    }

    /// Permits kills up to this number in total.
    pub(super) fn permit(&self, until: usize) {
        self.state.lock().until = until;
    }

    /// Returns whether more kills are permitted.
    pub(super) fn is_due(&self) -> bool {
        let state = self.state.lock();
        state.killed < state.until
    }

    /// Number of kills so far.
    pub(super) fn killed(&self) -> usize {
        self.state.lock().killed
    }

    /// Kills the leading operator at random points until this work is done.
    pub(super) async fn during<T>(
        &self,
        cluster: &TestCluster,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut work = pin!(work);
        loop {
            select! {
                result = &mut work => return result,
                () = sleep(self.pause()), if self.is_due() => {
                    let leader = cluster.leading_instance(INSTANCE_OPERATOR).await?;
                    leader.restart_with(Signal::KILL).await?;
                    self.state.lock().killed += 1;
                }
            }
        }
    }

    fn pause(&self) -> Duration {
        PAUSE_MAX.mul_f64(self.state.lock().random.f64())
    }
}
