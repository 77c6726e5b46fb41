//! `kubectl podops get --watch` in a terminal, while 1,000 Pods are updated.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::json;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStdout, Command},
    task::JoinSet,
};

use super::{
    rows::{Rows, at_most},
    sets::{delete_all_sets, wait_until_rolled_out},
};
use crate::{
    cluster::TestCluster,
    process::{cpu_time, memory},
};

/// Number of Pods that are shown.
const PODS: usize = 1000;

/// Program in a pseudo-terminal.
struct Terminal {
    child: Child,
    output: ChildStdout,
    started: Instant,
}

impl Terminal {
    /// Starts `script`, which provides the terminal, of 120 columns and 50 lines. The process that
    /// runs the command writes its ID to a file first.
    fn start(cluster: &TestCluster, programs: &Path, pid: &Path) -> anyhow::Result<Self> {
        let program = programs.join("kubectl-podops");
        let command = format!(
            "stty cols 120 rows 50; echo $$ > {}; exec {} get watched --watch",
            pid.display(),
            program.display()
        );
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--command", &command, "/dev/null"])
            .env("KUBECONFIG", cluster.plane.admin_kubeconfig())
            .kill_on_drop(true)
            // Kept open: the end of the input would end the terminal.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting script")?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self { child, output, started: Instant::now() })
    }

    /// Waits until the first line is shown, and returns the time that it took.
    async fn first_paint(&mut self) -> anyhow::Result<Duration> {
        let mut byte = [0];
        anyhow::ensure!(self.output.read(&mut byte).await? == 1, "no output");
        Ok(self.started.elapsed())
    }
}

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
    let mut terminal = Terminal::start(cluster, programs, &pid)?;
    let first_paint = terminal.first_paint().await?;
    let Terminal { child: _child, mut output, .. } = terminal;
    let mut reader = JoinSet::new();
    reader.spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while matches!(output.read(&mut buffer).await, Ok(1..)) {}
    });
    let pid: u32 = std::fs::read_to_string(&pid)?.trim().parse()?;
    let (before, began) = (cpu_time(pid)?, Instant::now());
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
