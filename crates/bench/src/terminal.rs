//! A program in a pseudo-terminal.

use std::{
    num::NonZeroU16,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use podops_test_cluster::cluster::TestCluster;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStdout, Command},
};

/// Size of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) columns: NonZeroU16,
    pub(crate) rows: NonZeroU16,
}

impl Size {
    /// Returns a size; at least one column and row.
    pub(crate) const fn new(columns: u16, rows: u16) -> Self {
        Self { columns: at_least_one(columns), rows: at_least_one(rows) }
    }
}

const fn at_least_one(number: u16) -> NonZeroU16 {
    match NonZeroU16::new(number) {
        Some(number) => number,
        None => NonZeroU16::MIN,
    }
}

/// Program in a pseudo-terminal, which ends when this is dropped.
pub(crate) struct Terminal {
    _child: Child,
    pub(crate) output: ChildStdout,
    started: Instant,
}

impl Terminal {
    /// Starts `script`, which provides the terminal, with `kubectl podops` and these arguments. The
    /// process that runs the command writes its ID to a file first.
    pub(crate) fn start(
        cluster: &TestCluster,
        program: &Path,
        arguments: &str,
        Size { columns, rows }: Size,
        pid: &Path,
    ) -> anyhow::Result<Self> {
        let command = format!(
            "stty cols {columns} rows {rows}; echo $$ > {}; exec {} {arguments}",
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
        Ok(Self { _child: child, output, started: Instant::now() })
    }

    /// Waits until the first line is shown, and returns the time that it took.
    pub(crate) async fn first_paint(&mut self) -> anyhow::Result<Duration> {
        let mut byte = [0];
        anyhow::ensure!(self.output.read(&mut byte).await? == 1, "no output");
        Ok(self.started.elapsed())
    }
}
