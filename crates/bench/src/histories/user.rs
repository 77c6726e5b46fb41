//! A user's random actions, the same on both workloads of a pair.

use fastrand::Rng;

/// Largest number of replicas.
const MOST_REPLICAS: usize = 4;
/// Images whose Pods become Ready.
const GOOD_IMAGES: [&str; 3] = ["nginx:1", "nginx:2", "nginx:3"];
/// Images whose Pods do not become Ready.
const BAD_IMAGES: [&str; 2] = ["nginx:non-exist", "nginx:crash"];

/// Kind of a native workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Native {
    Deployment,
    StatefulSet,
}

/// Fields of a Pod template that a user changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) image: &'static str,
    pub(super) label: u32,
    pub(super) annotation: u32,
    pub(super) variable: u32,
    pub(super) restart: u32,
}

impl Template {
    fn is_good(&self) -> bool {
        GOOD_IMAGES.contains(&self.image)
    }
}

/// Fields of a workload that a user has written.
#[derive(Clone, Debug)]
pub(super) struct Desired {
    pub(super) replicas: usize,
    pub(super) template: Template,
    pub(super) paused: bool,
    /// Number of Pods that are not updated.
    pub(super) partition: usize,
    /// Template of the latest rollout that completed for all Pods.
    complete: Template,
    /// True if a rollout was interrupted by the next write, so that the versions of the Pods depend
    /// on the speed of the rollout.
    is_interrupted: bool,
}

/// One action of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A write to the workload.
    Write(Change),
    /// A change of a Pod, which is given by its position among those of its workload.
    Disrupt(Disruption, usize),
    /// Nothing, for longer than the progress deadline.
    Wait,
}

/// Write to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Replicas(usize),
    /// Number of replicas that an autoscaler writes, by the subresource `scale`.
    Scale(usize),
    Image(&'static str),
    /// An image whose Pods do not become Ready.
    BadImage(&'static str),
    Label,
    Annotation,
    Variable,
    Restart,
    /// Restores the template of the latest complete rollout.
    Undo,
    Pause,
    Resume,
    /// Another image, for all Pods but a number of them.
    Canary(&'static str, usize),
    LowerPartition(usize),
}

/// Change of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disruption {
    Delete,
    /// The Pod no longer exists at once, as when its node is lost.
    Remove,
    /// All Pods of the workload are deleted.
    DeleteAll,
    Evict,
    /// The kubelet reports that the Pod has failed, as when a node is under pressure.
    Fail,
    /// The kubelet reports for a moment that the Pod is not ready.
    Unready,
    /// A label is changed, so that the selector does not match.
    Release,
    /// The Pod and its claim are deleted, as for a lost volume.
    LoseClaim,
}

impl Action {
    /// Name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write(change) => change.name(),
            Self::Disrupt(disruption, _) => disruption.name(),
            Self::Wait => "waited for longer than the deadline",
        }
    }
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Replicas(_) => "replicas changed",
            Self::Scale(_) => "replicas changed by an autoscaler",
            Self::Image(_) => "other image",
            Self::BadImage(_) => "image that does not run",
            Self::Label => "label of the template changed",
            Self::Annotation => "annotation of the template changed",
            Self::Variable => "environment variable changed",
            Self::Restart => "restarted",
            Self::Undo => "rolled back",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Canary(..) => "update with a partition",
            Self::LowerPartition(_) => "partition lowered",
        }
    }
}

impl Disruption {
    const fn name(self) -> &'static str {
        match self {
            Self::Delete => "Pod deleted",
            Self::Remove => "Pod removed at once",
            Self::DeleteAll => "all Pods deleted",
            Self::Evict => "Pod evicted",
            Self::Fail => "Pod failed",
            Self::Unready => "Pod not ready for a moment",
            Self::Release => "Pod relabelled",
            Self::LoseClaim => "Pod and its claim deleted",
        }
    }
}

impl Desired {
    pub(super) fn random(random: &mut Rng) -> Self {
        let template =
            Template { image: GOOD_IMAGES[0], label: 0, annotation: 0, variable: 0, restart: 0 };
        let replicas = random.usize(1..=MOST_REPLICAS);
        Self {
            replicas,
            complete: template.clone(),
            template,
            paused: false,
            partition: 0,
            is_interrupted: false,
        }
    }

    /// Chooses the next action. Those whose effect differs by a documented decision
    /// (`docs/reference/conventions.md`) are not chosen in the state in which they differ.
    pub(super) fn random_action(&self, native: Native, random: &mut Rng) -> Action {
        loop {
            let action = self.any_action(random);
            if self.is_comparable(action, native) {
                return action;
            }
        }
    }

    fn any_action(&self, random: &mut Rng) -> Action {
        let good = GOOD_IMAGES[random.usize(..GOOD_IMAGES.len())];
        let bad = BAD_IMAGES[random.usize(..BAD_IMAGES.len())];
        let change = match random.usize(..24) {
            0 | 1 => Change::Replicas(random.usize(..=MOST_REPLICAS)),
            2 => Change::Scale(random.usize(..=MOST_REPLICAS)),
            3 | 4 => Change::Image(good),
            5..=7 => Change::BadImage(bad),
            8 => Change::Label,
            9 => Change::Annotation,
            10 => Change::Variable,
            11 => Change::Restart,
            12 | 13 => Change::Undo,
            14 => {
                if self.paused {
                    Change::Resume
                } else {
                    Change::Pause
                }
            }
            15 => Change::Canary(good, random.usize(1..=MOST_REPLICAS)),
            16 => Change::LowerPartition(random.usize(..=self.partition)),
            17 => return Action::Wait,
            _ => {
                let disruptions = [
                    Disruption::Delete,
                    Disruption::Remove,
                    Disruption::DeleteAll,
                    Disruption::Evict,
                    Disruption::Fail,
                    Disruption::Unready,
                    Disruption::Release,
                    Disruption::LoseClaim,
                ];
                let disruption = disruptions[random.usize(..disruptions.len())];
                return Action::Disrupt(disruption, random.usize(..MOST_REPLICAS));
            }
        };
        Action::Write(change)
    }

    /// Returns whether native workloads and CollaSets are documented to do the same.
    fn is_comparable(&self, action: Action, native: Native) -> bool {
        let is_stateful = native == Native::StatefulSet;
        match action {
            Action::Write(change) => self.is_comparable_change(change, is_stateful),
            Action::Disrupt(..) if self.replicas == 0 => false,
            // A StatefulSet keeps a Pod that does not match, and CollaSets with names do so, too.
            Action::Disrupt(Disruption::Release, _) => !is_stateful,
            Action::Disrupt(Disruption::LoseClaim, _) => is_stateful,
            Action::Disrupt(
                Disruption::Delete
                | Disruption::Remove
                | Disruption::DeleteAll
                | Disruption::Evict
                | Disruption::Fail
                | Disruption::Unready,
                _,
            )
            | Action::Wait => true,
        }
    }

    fn is_comparable_change(&self, change: Change, is_stateful: bool) -> bool {
        let is_stuck = !self.template.is_good();
        match change {
            // A StatefulSet that is scaled while it recreates Pods may leave claims behind; and with
            // a partition, the updated revision becomes the current one at 0 Pods. A Deployment
            // comes back from 0 at the revision that does not run.
            Change::Replicas(replicas) | Change::Scale(replicas) => {
                replicas != self.replicas
                    && !(is_stuck && is_stateful)
                    && (replicas > 0 && self.replicas > 0 || self.partition == 0 && !is_stuck)
            }
            Change::Image(image) | Change::BadImage(image) => image != self.template.image,
            Change::Undo => self.template != self.complete,
            // Without a Pod, no revision of a CollaSet becomes the current one.
            Change::Pause => !is_stateful && (self.replicas > 0 || self.template == self.complete),
            Change::Resume => !is_stateful,
            Change::Canary(image, partition) => {
                is_stateful
                    && self.partition == 0
                    && !is_stuck
                    && partition <= self.replicas
                    && image != self.template.image
            }
            Change::LowerPartition(partition) => partition < self.partition,
            Change::Label | Change::Annotation | Change::Variable | Change::Restart => true,
        }
    }

    /// Applies a write to the workload.
    pub(super) fn apply(&mut self, change: Change) {
        let template = &mut self.template;
        match change {
            Change::Replicas(replicas) | Change::Scale(replicas) => self.replicas = replicas,
            Change::Image(image) | Change::BadImage(image) => template.image = image,
            Change::Label => template.label += 1,
            Change::Annotation => template.annotation += 1,
            Change::Variable => template.variable += 1,
            Change::Restart => template.restart += 1,
            Change::Undo => template.clone_from(&self.complete),
            Change::Pause => {
                self.paused = true;
                // Operations in progress are completed, also those that wait for a Pod.
                self.is_interrupted |= !self.template.is_good();
            }
            Change::Resume => self.paused = false,
            Change::Canary(image, partition) => {
                (template.image, self.partition) = (image, partition);
            }
            Change::LowerPartition(partition) => self.partition = partition,
        }
    }

    /// Records that all Pods have settled.
    pub(super) fn settle(&mut self) {
        let is_for_all = !self.paused && self.partition == 0 && self.replicas > 0;
        if self.template.is_good() && is_for_all {
            self.complete = self.template.clone();
            self.is_interrupted = false;
        }
    }

    /// Records that the next action follows at once.
    pub(super) const fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// Returns whether the versions of the Pods follow from the actions alone.
    pub(super) fn is_exact(&self) -> bool {
        let ends = !self.paused && self.partition == 0;
        self.template.is_good() && (ends || !self.is_interrupted)
    }

    /// Returns whether all Pods are available, once the workload has settled.
    pub(super) fn is_healthy(&self) -> bool {
        self.template.is_good() && !self.is_interrupted
    }
}
