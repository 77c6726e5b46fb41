//! Processes that the lab starts, by their IDs.

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::{process::Command, task::JoinSet};

/// How long a process that ended stays down.
const BACKOFF: Duration = Duration::from_millis(100);

/// Opens a log to write to its end.
///
/// # Errors
///
/// If it cannot be opened.
pub fn log(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

/// Sends a signal to a process that the lab started.
///
/// # Errors
///
/// If it does not run.
pub fn signal(pid: Option<u32>, signal: Signal) -> anyhow::Result<()> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    Ok(kill_process(pid.context("the process does not run")?, signal)?)
}

/// What is started, and started again whenever it ends: what a kubelet does for a Deployment's Pod.
pub struct Spec {
    /// The program.
    pub program: PathBuf,
    /// What it is told.
    pub args: Vec<String>,
    /// Its environment, beside ours.
    pub env: Vec<(String, String)>,
    /// The credentials it has.
    pub kubeconfig: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A program that is kept running until this is dropped.
pub struct SupervisedProcess {
    state: Arc<Mutex<State>>,
    _task: JoinSet<anyhow::Result<()>>,
}

#[derive(Default)]
struct State {
    pid: Option<u32>,
    exits: Vec<ExitStatus>,
}

impl SupervisedProcess {
    /// Starts the program.
    #[must_use]
    pub fn start(spec: Spec) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let mut task = JoinSet::new();
        task.spawn(keep(spec, state.clone()));
        Self { state, _task: task }
    }

    /// Its process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.look(|state| state.pid)
    }

    /// How it ended so far.
    #[must_use]
    pub fn exits(&self) -> Vec<ExitStatus> {
        self.look(|state| state.exits.clone())
    }

    /// Ends it by a signal; it runs again when this returns. Tells how it ended.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub async fn restart_with(&self, by: Signal) -> anyhow::Result<ExitStatus> {
        let before = self.exits().len();
        signal(self.pid(), by)?;
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if let (Some(_), Some(exit)) = (self.pid(), self.exits().get(before)) {
                return Ok(*exit);
            }
        }
    }

    fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn keep(spec: Spec, state: Arc<Mutex<State>>) -> anyhow::Result<()> {
    loop {
        let log = log(&spec.log)?;
        let mut command = Command::new(&spec.program);
        command
            .envs(spec.env.clone())
            .env("KUBECONFIG", &spec.kubeconfig)
            .args(&spec.args)
            .kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let starting = || format!("starting {}", spec.program.display());
        let mut child = command.spawn().with_context(starting)?;
        state.lock().unwrap_or_else(PoisonError::into_inner).pid = child.id();
        let exit = child.wait().await?;
        {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.pid = None;
            state.exits.push(exit);
        }
        tokio::time::sleep(BACKOFF).await;
    }
}
