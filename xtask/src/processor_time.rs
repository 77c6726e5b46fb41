//! Processor time of a command and all its descendants, also of those that are killed or outlive
//! their parent, which the kernel counts in a cgroup of version 2.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use procfs::{Current as _, Uptime, process::Process};

/// Cgroup of processes whose processor time is counted; removed on drop.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup below that of this process. Returns `None` on machines without cgroups of
    /// version 2, or without the right to create one.
    pub(crate) fn create() -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = own_cgroup()?.join(format!("podops-test-{}-{number}", process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self { path })
    }

    /// Moves this process into the cgroup, until it enters another one.
    pub(crate) fn enter(&self) {
        // Without the right, the processor time is shorter; no test fails.
        drop(fs::write(self.members(), process::id().to_string()));
    }

    /// Moves this process to the cgroup above.
    pub(crate) fn leave(&self) {
        if let Some(parent) = self.path.parent() {
            drop(fs::write(parent.join(MEMBERS), process::id().to_string()));
        }
    }

    /// A command that runs `program` in the cgroup.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0"; exec "$@""#]).arg(self.members()).arg(program);
        command
    }

    /// Processor time of all processes that were in the cgroup, and in those below it.
    pub(crate) fn processor_time(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.path.join("cpu.stat")).ok()?;
        let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        microseconds.parse().ok().map(Duration::from_micros)
    }

    fn members(&self) -> PathBuf {
        self.path.join(MEMBERS)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while a process is left; the cgroup costs nothing then.
        drop(fs::remove_dir(&self.path));
    }
}

/// File of a cgroup with the processes in it.
const MEMBERS: &str = "cgroup.procs";

/// Directory of this process's cgroup of version 2.
fn own_cgroup() -> Option<PathBuf> {
    let own = Process::myself().ok()?;
    let mounts = own.mountinfo().ok()?;
    let mount = mounts.into_iter().find(|mount| mount.fs_type == "cgroup2")?.mount_point;
    let cgroups = own.cgroups().ok()?;
    let cgroup = cgroups.into_iter().find(|cgroup| cgroup.hierarchy == 0)?;
    Some(mount.join(cgroup.pathname.trim_start_matches('/')))
}

/// Time since this process started, and processor time of it and its children until now.
/// `cargo run` becomes the program that it has built, so that the build of this program is
/// included.
pub(crate) fn since_start() -> Option<(Duration, Duration)> {
    let stat = Process::myself().ok()?.stat().ok()?;
    let ticks_per_second = procfs::ticks_per_second();
    let duration = |ticks: u64| Duration::from_millis(ticks * 1000 / ticks_per_second);
    let uptime = Duration::from_secs_f64(Uptime::current().ok()?.uptime);
    let of_children = (stat.cutime + stat.cstime).max(0).unsigned_abs();
    let clock = uptime.saturating_sub(duration(stat.starttime));
    Some((clock, duration(stat.utime + stat.stime + of_children)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descendant_that_outlives_its_parent_counts() {
        // Machines without cgroups of version 2 have nothing to count with.
        let Some(cgroup) = Cgroup::create() else { return };
        let script = "timeout 0.3 sh -c 'while :; do :; done' & sleep 0.05";
        let status = cgroup.command(Path::new("/bin/sh")).args(["-c", script]).status().unwrap();
        assert!(status.success());
        while !fs::read_to_string(cgroup.members()).unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(cgroup.processor_time().unwrap() > Duration::from_millis(100));
    }
}
