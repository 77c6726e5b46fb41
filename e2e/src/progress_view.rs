//! Shows the progress of a rollout on stderr: one line per Pod on a terminal, otherwise one line
//! per change of the Pods' states.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use podops_api::{
    lifecycle::{Phase, PodLifecycle},
    well_known,
};

/// Progress of one rollout.
pub struct ProgressView {
    all: MultiProgress,
    bar: ProgressBar,
    pods: BTreeMap<String, ProgressBar>,
    title: String,
    note: String,
    printed: String,
    started: Instant,
}

impl ProgressView {
    /// Starts to show the progress of `replicas` Pods.
    ///
    /// # Errors
    ///
    /// If a progress bar template is invalid.
    pub fn start(title: &str, replicas: u64) -> anyhow::Result<Self> {
        let all = MultiProgress::new();
        let bar = all.add(ProgressBar::new(replicas));
        let style = "{msg} [{bar:30.green}] {pos}/{len} {elapsed}";
        bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
        bar.set_message(title.to_owned());
        Ok(Self {
            all,
            bar,
            pods: BTreeMap::new(),
            title: title.to_owned(),
            note: String::new(),
            printed: String::new(),
            started: Instant::now(),
        })
    }

    /// Sets a note to show beside the title.
    pub fn set_note(&mut self, note: String) {
        self.bar.set_message(format!("{}: {note}", self.title));
        self.note = note;
    }

    /// Shows the state of each Pod, and the number of Pods that are done.
    ///
    /// # Errors
    ///
    /// If a progress bar template is invalid.
    pub fn update(&mut self, pods: &[Pod], done: u64) -> anyhow::Result<()> {
        self.bar.set_position(done);
        self.pods.retain(|name, line| {
            let exists = pods.iter().any(|pod| pod.name_any() == *name);
            if !exists {
                line.finish_and_clear();
            }
            exists
        });
        let mut counts = BTreeMap::<&str, usize>::new();
        for pod in pods {
            let state = state_of(pod);
            *counts.entry(state).or_default() += 1;
            let line = self.pods.entry(pod.name_any()).or_insert_with(|| {
                let line = self.all.add(ProgressBar::new_spinner());
                line.set_prefix(pod.name_any());
                line
            });
            let style = format!("  {{prefix:24}} {{msg:12.{}}}", color(state));
            line.set_style(ProgressStyle::with_template(&format!("{style} {}", image(pod)))?);
            line.set_message(state);
        }
        self.print(&counts);
        Ok(())
    }

    /// Prints the counts as a line if they changed and stderr is not a terminal.
    fn print(&mut self, counts: &BTreeMap<&str, usize>) {
        let parts: Vec<String> =
            counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let now = parts.join(", ");
        if !std::io::stderr().is_terminal() && now != self.printed {
            let note = if self.note.is_empty() { "" } else { "; " };
            let seconds = self.started.elapsed().as_secs_f64();
            eprintln!("    {seconds:4.1} s  {now}{note}{}", self.note);
            self.printed = now;
        }
    }

    /// Clears the view; returns the time since its start.
    #[must_use]
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.pods.values().for_each(ProgressBar::finish_and_clear);
        self.started.elapsed()
    }
}

/// State of a Pod: the phase of its operation, or its availability.
#[must_use]
pub fn state_of(pod: &Pod) -> &'static str {
    let operation = PodLifecycle::parse(pod.labels()).ok();
    let operation = operation.as_ref().and_then(|l| l.operations.values().next());
    match operation.map(Phase::of) {
        _ if pod.metadata.deletion_timestamp.is_some() => "terminating",
        Some(Phase::Requested | Phase::PreCheck | Phase::PreChecked) => "pre-check",
        Some(Phase::Preparing) => "preparing",
        Some(Phase::Operate) => "operate",
        Some(Phase::Operated | Phase::PostCheck | Phase::PostChecked) => "post-check",
        Some(Phase::Completing) => "completing",
        None if pod.labels().contains_key(well_known::SERVICE_AVAILABLE) => "available",
        None => "starting",
    }
}

fn color(state: &str) -> &'static str {
    match state {
        "available" => "green",
        "terminating" => "red",
        _ => "yellow",
    }
}

fn image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|c| c.image.clone()).collect::<Vec<_>>().join(" ")
}
