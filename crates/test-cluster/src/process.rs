//! Child processes: logs, signals, and supervision with restarts.

use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Seek as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use parking_lot::Mutex;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::{process::Command, task::JoinSet};

use crate::memory_cgroup::MemoryCgroup;

/// Delay before an exited process is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// Time within which an exited process is running again.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a log file for appending; creates it if needed.
///
/// # Errors
///
/// If it cannot be opened.
pub fn log(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("opening {}", path.display()))
}

/// Sends a signal to a child process.
///
/// # Errors
///
/// If the process is not running.
pub fn signal(pid: Option<u32>, signal: Signal) -> anyhow::Result<()> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    Ok(kill_process(pid.context("process is not running")?, signal)?)
}

/// User and system CPU time of a process.
///
/// # Errors
///
/// If it does not exist.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = procfs::process::Process::new(i32::try_from(pid)?)?.stat()?;
    let millis = (stat.utime + stat.stime) * 1000 / procfs::ticks_per_second();
    Ok(Duration::from_millis(millis))
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident memory in MiB.
    pub resident_mebibytes: f64,
    /// Peak resident memory in MiB since the process started.
    pub peak_mebibytes: f64,
    /// Part of the resident memory that consists of mapped files, in MiB. The kernel reclaims it
    /// when a container reaches its limit; the programs of the tests are large, because they
    /// contain debug information.
    pub file_mebibytes: f64,
}

impl Memory {
    /// Peak memory in MiB that the kernel cannot reclaim.
    fn unreclaimable_peak_mebibytes(self) -> f64 {
        self.peak_mebibytes - self.file_mebibytes
    }
}

/// Reads the memory of a process.
///
/// # Errors
///
/// If the process does not exist.
pub fn memory(pid: u32) -> anyhow::Result<Memory> {
    let status = procfs::process::Process::new(i32::try_from(pid)?)?.status()?;
    #[allow(clippy::cast_precision_loss, reason = "memory is small")]
    let mebibytes = |kibibytes: Option<u64>| kibibytes.unwrap_or_default() as f64 / 1024.0;
    Ok(Memory {
        resident_mebibytes: mebibytes(status.vmrss),
        peak_mebibytes: mebibytes(status.vmhwm),
        file_mebibytes: mebibytes(status.rssfile),
    })
}

/// Specification of a supervised process.
pub struct Spec {
    /// Path of the program.
    pub program: PathBuf,
    /// Command-line arguments.
    pub args: Vec<String>,
    /// Environment variables, in addition to the inherited ones.
    pub env: Vec<(String, String)>,
    /// Path passed in `KUBECONFIG`.
    pub kubeconfig: PathBuf,
    /// File that stdout and stderr are appended to.
    pub log: PathBuf,
    /// Memory limit in MiB, where the machine lets tests set one.
    pub memory_mebibytes: f64,
}

/// Process that is restarted whenever it exits, as by a kubelet, until this is dropped.
pub struct SupervisedProcess {
    state: Arc<Mutex<State>>,
    /// Its directory may be removed before this is dropped.
    log: Option<File>,
    _task: JoinSet<anyhow::Result<()>>,
}

#[derive(Default)]
struct State {
    pid: Option<u32>,
    /// Largest peak memory of processes that a test has ended, in MiB.
    peak_mebibytes: f64,
    exits: Vec<Exit>,
    /// True if a test has requested the next exit.
    exit_requested: bool,
}

/// End of a process.
#[derive(Clone, Copy, Debug)]
struct Exit {
    status: ExitStatus,
    requested: bool,
}

impl Exit {
    /// Returns whether the process panicked or was killed, and no test has requested it. A process
    /// that ends by itself, for example because it lost its Lease, has not crashed; whether one of
    /// its tasks panicked is in its log.
    fn is_crash(self) -> bool {
        let is_abnormal = self.status.signal().is_some() || self.status.code() == Some(PANICKED);
        is_abnormal && !self.requested
    }
}

/// Exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

impl SupervisedProcess {
    /// Starts the process and its supervision.
    #[must_use]
    pub fn start(spec: Spec) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let readable = OpenOptions::new().create(true).append(true).read(true).open(&spec.log);
        let mut task = JoinSet::new();
        let log = readable.ok();
        task.spawn(supervise(spec, state.clone()));
        Self { state, log, _task: task }
    }

    /// Process ID; `None` while the process is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.read(|state| state.pid)
    }

    /// Peak memory in MiB that the kernel cannot reclaim: of the running process, and of those that
    /// a test has ended.
    #[must_use]
    pub fn peak_mebibytes(&self) -> f64 {
        let current = self.pid().and_then(|pid| memory(pid).ok()).unwrap_or_default();
        self.read(|state| state.peak_mebibytes.max(current.unreclaimable_peak_mebibytes()))
    }

    /// Exit statuses so far, oldest first.
    #[must_use]
    pub fn exits(&self) -> Vec<ExitStatus> {
        self.read(|state| state.exits.iter().map(|exit| exit.status).collect())
    }

    /// Exit statuses of crashes that no test has requested.
    #[must_use]
    pub fn crashes(&self) -> Vec<ExitStatus> {
        self.read(|state| {
            let crashes = state.exits.iter().filter(|exit| exit.is_crash());
            crashes.map(|exit| exit.status).collect()
        })
    }

    /// Panics in the log, also of tasks whose panic did not end the process.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn panics(&self) -> anyhow::Result<Vec<String>> {
        let mut file = self.log.as_ref().context("the log was not opened")?;
        file.rewind()?;
        let mut log = Vec::new();
        file.read_to_end(&mut log)?;
        let is_panic = |line: &&str| line.starts_with("thread '") && line.contains(" panicked at ");
        let log = String::from_utf8_lossy(&log);
        Ok(log.lines().filter(is_panic).map(str::to_owned).collect())
    }

    /// Sends a signal that ends the process, waits for the restart, and returns the exit status.
    ///
    /// # Errors
    ///
    /// If the process is not running.
    pub async fn restart_with(&self, terminating: Signal) -> anyhow::Result<ExitStatus> {
        let before = self.exits().len();
        let peak_mebibytes = self.peak_mebibytes();
        {
            let mut state = self.state.lock();
            state.exit_requested = true;
            state.peak_mebibytes = peak_mebibytes;
        }
        // A process that has just ended by itself is started again after a moment.
        let deadline = Instant::now() + START_TIMEOUT;
        while self.pid().is_none() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        signal(self.pid(), terminating)?;
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            if let (Some(_), Some(exit)) = (self.pid(), self.exits().get(before)) {
                return Ok(*exit);
            }
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock())
    }
}

async fn supervise(spec: Spec, state: Arc<Mutex<State>>) -> anyhow::Result<()> {
    let cgroup = MemoryCgroup::create(spec.memory_mebibytes);
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
        if let (Some(cgroup), Some(pid)) = (&cgroup, child.id()) {
            // Fails for a process that has ended at once.
            drop(cgroup.add(pid));
        }
        state.lock().pid = child.id();
        let exit = child.wait().await?;
        {
            let mut state = state.lock();
            state.pid = None;
            let requested = std::mem::take(&mut state.exit_requested);
            state.exits.push(Exit { status: exit, requested });
        }
        tokio::time::sleep(RESTART_DELAY).await;
    }
}
