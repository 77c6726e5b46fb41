//! Clock and processor time of the parts of a long command, as a table.

use std::{
    env,
    fmt::Write as _,
    process::{Child, Command},
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::processor_time::{Cgroup, since_start};

/// Parts that have ended, in order.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    ended: Vec<Part>,
}

/// A part that has ended.
#[derive(Debug)]
struct Part {
    name: String,
    /// Time by the clock.
    clock: Duration,
    /// Processor time of all its processes; `None` if the machine cannot count it.
    processor: Option<Duration>,
}

/// A part that runs beside others.
#[derive(Debug)]
pub(crate) struct Beside {
    name: String,
    process: Child,
    cgroup: Option<Cgroup>,
}

impl Parts {
    /// Parts of a command that `cargo run` has built and started: the build is the first of them.
    pub(crate) fn since_start() -> Self {
        let mut parts = Self::default();
        if let Some((clock, processor)) = since_start() {
            parts.ended.push(Part {
                name: "build of xtask".to_owned(),
                clock,
                processor: Some(processor),
            });
        }
        parts
    }

    /// Runs a part.
    ///
    /// # Errors
    ///
    /// That of the part, whose time counts nevertheless.
    pub(crate) fn run<T>(
        &mut self,
        name: &str,
        part: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        let cgroup = Cgroup::create();
        if let Some(cgroup) = &cgroup {
            cgroup.enter();
        }
        let result = part();
        if let Some(cgroup) = &cgroup {
            cgroup.leave();
        }
        let processor = cgroup.as_ref().and_then(Cgroup::processor_time);
        self.ended.push(Part { name: name.to_owned(), clock: started.elapsed(), processor });
        result
    }

    /// Starts a command of this program beside the next parts.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> anyhow::Result<Beside> {
        let cgroup = Cgroup::create();
        let program = env::current_exe()?;
        let mut command = cgroup
            .as_ref()
            .map_or_else(|| Command::new(&program), |cgroup| cgroup.command(&program));
        let process =
            command.args(arguments).spawn().with_context(|| format!("starting {name}"))?;
        Ok(Beside { name: name.to_owned(), process, cgroup })
    }

    /// Waits for the end of a part that was started beside others; its time is only that of the
    /// wait.
    ///
    /// # Errors
    ///
    /// If it has failed.
    pub(crate) fn wait(&mut self, mut part: Beside) -> anyhow::Result<()> {
        let started = Instant::now();
        let status = part.process.wait()?;
        let processor = part.cgroup.as_ref().and_then(Cgroup::processor_time);
        self.ended.push(Part { name: part.name.clone(), clock: started.elapsed(), processor });
        anyhow::ensure!(status.success(), "{} failed", part.name);
        Ok(())
    }

    /// The table of all parts and their sum.
    pub(crate) fn table(&self) -> String {
        let clock = self.ended.iter().map(|part| part.clock).sum();
        let processor = self.ended.iter().map(|part| part.processor).sum();
        let sum = Part { name: "sum".to_owned(), clock, processor };
        let mut table = format!("{:<36} {:>9} {:>9}\n", "part", "clock", "processor");
        for part in self.ended.iter().chain([&sum]) {
            let processor = part.processor.map_or_else(|| "unknown".to_owned(), minutes);
            let clock = minutes(part.clock);
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{:<36} {clock:>9} {processor:>9}", part.name);
        }
        table
    }
}

/// Minutes and seconds, such as `12:05`.
pub(crate) fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_part_and_the_sum() {
        let part = |name: &str, clock, processor: Option<u64>| Part {
            name: name.to_owned(),
            clock: Duration::from_secs(clock),
            processor: processor.map(Duration::from_secs),
        };
        let mut parts =
            Parts { ended: vec![part("build", 61, Some(120)), part("tests", 5, Some(3))] };
        let lines: Vec<String> = parts.table().lines().map(str::to_owned).collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["build", "1:01", "2:00"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["sum", "1:06", "2:03"]);
        parts.ended.push(part("uncounted", 1, None));
        assert!(parts.table().ends_with("unknown\n"));
    }
}
