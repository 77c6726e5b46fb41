//! Shows Pods on their way: a line a Pod where there is a terminal, and a line a change of the whole
//! where there is none.

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

/// The set as it was last shown.
pub struct ProgressView {
    all: MultiProgress,
    bar: ProgressBar,
    pods: BTreeMap<String, ProgressBar>,
    what: String,
    note: String,
    told: String,
    began: Instant,
}

impl ProgressView {
    /// Begins to show how `replicas` Pods get where they should be.
    ///
    /// # Errors
    ///
    /// If a template cannot be read.
    pub fn begin(what: &str, replicas: u64) -> anyhow::Result<Self> {
        let all = MultiProgress::new();
        let bar = all.add(ProgressBar::new(replicas));
        let style = "{msg} [{bar:30.green}] {pos}/{len} {elapsed}";
        bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
        bar.set_message(what.to_owned());
        Ok(Self {
            all,
            bar,
            pods: BTreeMap::new(),
            what: what.to_owned(),
            note: String::new(),
            told: String::new(),
            began: Instant::now(),
        })
    }

    /// Shows something beside the Pods.
    pub fn note(&mut self, note: String) {
        self.bar.set_message(format!("{}: {note}", self.what));
        self.note = note;
    }

    /// Shows where the Pods are, and how many of them are where they should be.
    ///
    /// # Errors
    ///
    /// If a template cannot be read.
    pub fn update(&mut self, pods: &[Pod], there: u64) -> anyhow::Result<()> {
        self.bar.set_position(there);
        self.pods.retain(|name, line| {
            let there = pods.iter().any(|pod| pod.name_any() == *name);
            if !there {
                line.finish_and_clear();
            }
            there
        });
        let mut counts = BTreeMap::<&str, usize>::new();
        for pod in pods {
            let at = place(pod);
            *counts.entry(at).or_default() += 1;
            let line = self.pods.entry(pod.name_any()).or_insert_with(|| {
                let line = self.all.add(ProgressBar::new_spinner());
                line.set_prefix(pod.name_any());
                line
            });
            let style = format!("  {{prefix:24}} {{msg:12.{}}}", colour(at));
            line.set_style(ProgressStyle::with_template(&format!("{style} {}", image(pod)))?);
            line.set_message(at);
        }
        self.tell(&counts);
        Ok(())
    }

    /// Says in a line what changed, where nobody sees lines that move.
    fn tell(&mut self, counts: &BTreeMap<&str, usize>) {
        let parts: Vec<String> = counts.iter().map(|(at, count)| format!("{count} {at}")).collect();
        let now = parts.join(", ");
        if !std::io::stderr().is_terminal() && now != self.told {
            let note = if self.note.is_empty() { "" } else { "; " };
            let seconds = self.began.elapsed().as_secs_f64();
            eprintln!("    {seconds:4.1} s  {now}{note}{}", self.note);
            self.told = now;
        }
    }

    /// Takes the picture away; tells how long it was shown.
    #[must_use]
    pub fn end(self) -> Duration {
        self.bar.finish_and_clear();
        self.pods.values().for_each(ProgressBar::finish_and_clear);
        self.began.elapsed()
    }
}

/// Where a Pod is, in one word.
fn place(pod: &Pod) -> &'static str {
    let operation = PodLifecycle::parse(pod.labels()).ok();
    let operation = operation.as_ref().and_then(|l| l.operations.values().next());
    match operation.map(Phase::of) {
        _ if pod.metadata.deletion_timestamp.is_some() => "leaving",
        Some(Phase::Requested | Phase::PreCheck | Phase::PreChecked) => "pre-check",
        Some(Phase::Preparing) => "preparing",
        Some(Phase::Operate) => "operate",
        Some(Phase::Operated | Phase::PostCheck | Phase::PostChecked) => "post-check",
        Some(Phase::Completing) => "completing",
        None if pod.labels().contains_key(well_known::SERVICE_AVAILABLE) => "serving",
        None => "starting",
    }
}

fn colour(place: &str) -> &'static str {
    match place {
        "serving" => "green",
        "leaving" => "red",
        _ => "yellow",
    }
}

fn image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|c| c.image.clone()).collect::<Vec<_>>().join(" ")
}
