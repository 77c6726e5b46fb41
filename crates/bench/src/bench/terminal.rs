//! `kubectl podops get --watch` in a terminal, while 1,000 Pods are updated.

use std::{path::Path, time::Instant};

use serde_json::json;
use tokio::{io::AsyncReadExt as _, task::JoinSet};

use super::{
    rows::{Rows, at_most},
    sets::{delete_all_sets, wait_until_rolled_out},
};
use podops_test_cluster::{
    cluster::TestCluster,
    process::{cpu_time, memory},
};

use crate::terminal::{Size, Terminal};

/// Number of Pods that are shown.
const PODS: usize = 1000;

/// Size of the terminal.
const SIZE: Size = Size::new(120, 50);

/// Measures the first output, CPU time and memory.
pub(super) async fn watched_rollout(
    cluster: &TestCluster,
    programs: &Path,
    rows: &mut Rows,
) -> anyhow::Result<()> {
    delete_all_sets(cluster).await?;
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "10%" } } });
    cluster.create_with("watched", PODS, "nginx:1", &limit).await?;
    wait_until_rolled_out(cluster, "watched", PODS).await?;
    let pid = cluster.plane.dir.path().join("watch.pid");
    let program = programs.join("kubectl-podops");
    let mut terminal = Terminal::start(cluster, &program, "get watched --watch", SIZE, &pid)?;
    let first_paint = terminal.first_paint().await?;
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while matches!(terminal.output.read(&mut buffer).await, Ok(1..)) {}
    });
    let pid: u32 = std::fs::read_to_string(&pid)?.trim().parse()?;
    let before = cpu_time(pid)?;
    let began = Instant::now();
    cluster.set_image("watched", "nginx:2").await?;
    wait_until_rolled_out(cluster, "watched", PODS).await?;
    let used = cpu_time(pid)?.saturating_sub(before);
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let peak = memory(pid)?.peak_mebibytes;
    rows.extend([
        at_most("first output of get --watch, 1,000 Pods", first_paint.as_secs_f64(), 1.0, " s"),
        at_most("CPU of get --watch while 1,000 Pods are updated", share, 10.0, " % of a core"),
        at_most("peak memory of get --watch with 1,000 Pods", peak, 60.0, " MiB"),
    ]);
    Ok(())
}
