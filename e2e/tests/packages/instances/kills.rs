//! The operator is killed at random points of runs.

use podops_test_cluster::{
    package_kills,
    suite::{Lane, Suite},
};

use super::cluster::Cluster;

const KILLS: usize = 12;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, killed_operators_lose_and_repeat_nothing)
}

/// Each run ends, each Secret of a Pipe task is made once in its run, and no complete step is
/// entered again. `cargo xtask bench --packages` does the same with 200 kills.
async fn killed_operators_lose_and_repeat_nothing() {
    let mut cluster = Cluster::start_for_standby().await;
    let killed = package_kills::run(&mut cluster.cluster, KILLS).await.unwrap();
    assert!(killed.runs > KILLS, "{killed:?}");
    assert_eq!((killed.made_again, killed.entered_again), (0, 0), "{killed:?}");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
