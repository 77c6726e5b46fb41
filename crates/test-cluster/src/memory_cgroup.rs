//! Memory limit of a process that the kernel enforces, as it does for a container.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Where memory cgroups of version 1 are mounted. With version 2, a process outside of systemd
/// cannot divide its own cgroup.
const ROOT: &str = "/sys/fs/cgroup/memory";
const PREFIX: &str = "podops-e2e";

/// Memory cgroup of one process.
pub struct MemoryCgroup {
    path: PathBuf,
}

impl MemoryCgroup {
    /// Creates a cgroup with this limit in MiB. Returns `None` on machines where that is not
    /// possible.
    #[must_use]
    pub fn create(mebibytes: f64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_abandoned(Path::new(ROOT)).ok()?;
        let runner = std::process::id();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(ROOT).join(format!("{PREFIX}-{runner}-{number}"));
        fs::create_dir(&path).ok()?;
        let bytes = format!("{:.0}", mebibytes * f64::from(1 << 20));
        fs::write(path.join("memory.limit_in_bytes"), bytes).ok()?;
        Some(Self { path })
    }

    /// Adds a process. Memory that it allocates from now on is limited.
    ///
    /// # Errors
    ///
    /// If the process does not exist.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }
}

/// Removes the cgroups of test programs that have ended: a cgroup cannot be removed before the end
/// of its last process.
fn remove_abandoned(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let runner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        if runner.is_some_and(|runner| !Path::new("/proc").join(runner).exists()) {
            // Another test program may remove it, too.
            drop(fs::remove_dir(entry.path()));
        }
    }
    Ok(())
}
