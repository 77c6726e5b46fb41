//! Commands and their arguments.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::deletion_policy::DeletionPolicy;
use podops_api::int_or_percent;
use podops_terminal::connection::ContextArgs;

use crate::{
    target::{InvalidArgument, Target, node_name, pod_name, set_name},
    uninstall::Workloads,
};

/// Examples in the help.
const EXAMPLES: &str = "\
Examples:
  kubectl podops get -A                    all workloads under control
  kubectl podops get web --watch           a CollaSet and its Pods, live
  kubectl podops explain pod/web-1         why the Pod waits, and how it continues
  kubectl podops rollout restart web       restart all Pods, in place where possible
  kubectl podops rollout status web        wait until the rollout is complete
  kubectl podops drain NODE                drain a node through the lifecycle";

/// Shows and changes the rollouts of Podops
#[derive(Debug, Parser)]
#[command(name = "kubectl-podops", bin_name = "kubectl podops", version)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// Which cluster and namespace.
    #[command(flatten)]
    pub connection: Connection,

    /// Command.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster and namespace.
#[derive(Args, Debug)]
pub struct Connection {
    /// Context and namespace.
    #[command(flatten)]
    pub context: ContextArgs,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub as_user: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long, global = true, value_name = "GROUP", requires = "as_user")]
    pub as_group: Vec<String>,
    /// Seconds without a byte after which a request or watch fails; 0 waits without limit
    #[arg(
        long,
        global = true,
        default_value = "90",
        value_name = "SECONDS",
        value_parser = seconds
    )]
    pub request_timeout: Duration,
    /// Namespace of the operators
    #[arg(long, global = true, default_value = "podops-system")]
    pub operator_namespace: String,
}

/// Command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a CollaSet, its revisions and its Pods, and the causes of their waits; without a name,
    /// list the workloads whose Pods are under control
    #[command(after_help = "Examples:\n  kubectl podops get -A\n  kubectl podops get web --watch")]
    Get {
        /// Name of the CollaSet; all workloads by default
        #[arg(value_parser = set_name)]
        set: Option<String>,
        /// List the workloads of all namespaces
        #[arg(short = 'A', long, conflicts_with = "set")]
        all_namespaces: bool,
        /// Show changes until the command is interrupted
        #[arg(short, long)]
        watch: bool,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text, conflicts_with = "watch")]
        output: Output,
    },
    /// Show the operations in progress, the waiting Pods by cause, and the budgets of a namespace
    Top {
        /// Show changes until the command is interrupted
        #[arg(short, long)]
        watch: bool,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text, conflicts_with = "watch")]
        output: Output,
    },
    /// Explain why a Pod, a CollaSet or a node waits, and how it continues
    Explain {
        /// pod/<name>, collaset/<name> or node/<name>
        target: Target,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Predict the operations of a changed CollaSet on its Pods: how, why, in which order, and with
    /// how many writes
    ///
    /// Decides as the operators, on a copy of the namespace in memory. Assumes that containers
    /// start and that traffic ends. Nothing is written; the manifest is sent as a dry run.
    Simulate {
        /// File with the manifest of the CollaSet; - is the standard input
        #[arg(short, long)]
        filename: PathBuf,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Show the timeline of a Pod: stages of its operations, conditions, containers and events
    ///
    /// Of operations that have ended, the cluster knows conditions, containers and events only;
    /// with --watch, the stages of the next operation are recorded.
    Trace {
        /// Name of the Pod
        #[arg(value_parser = pod_name)]
        pod: String,
        /// Record until the operation in progress, or the next one, has ended
        #[arg(short, long)]
        watch: bool,
        /// Also draw the timeline to this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Wait until a rollout is complete
    ///
    /// The exit status is 1 if the rollout has failed, and 3 if it is paused until a user resumes
    /// or approves it.
    Status {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// Seconds after which to fail; 0 waits without limit
        #[arg(long, default_value = "0", value_parser = seconds)]
        timeout: Duration,
    },
    /// Change a rollout, or list its revisions
    #[command(subcommand, arg_required_else_help = true)]
    Rollout(Rollout),
    /// Replace Pods of CollaSets: each gets a successor first
    Replace {
        /// Names of the Pods
        #[arg(required = true, value_parser = pod_name)]
        pods: Vec<String>,
        /// Cancel replacements instead
        #[arg(long)]
        cancel: bool,
    },
    /// Delete Pods through the lifecycle: each leaves service first
    Delete {
        /// Names of the Pods
        #[arg(required = true, value_parser = pod_name)]
        pods: Vec<String>,
        /// Required: `kubectl delete pod` deletes without the lifecycle
        #[arg(long, required_unless_present = "cancel")]
        graceful: bool,
        /// Cancel deletions instead
        #[arg(long)]
        cancel: bool,
        /// Policy of Pods without the annotation; lifecycle-operator's flag of this name
        #[arg(long, value_enum, default_value_t)]
        deletion_policy: DeletionPolicy,
    },
    /// Take Pods out of service without deleting them
    Offline {
        /// Names of the Pods
        #[arg(required = true, value_parser = pod_name)]
        pods: Vec<String>,
    },
    /// Return Pods to service that were taken out of it by `offline`
    Online {
        /// Names of the Pods
        #[arg(required = true, value_parser = pod_name)]
        pods: Vec<String>,
    },
    /// Cancel an operation on a Pod
    Undo {
        /// Name of the Pod
        #[arg(value_parser = pod_name)]
        pod: String,
        /// ID of the operation
        #[arg(long, value_name = "ID")]
        operation: String,
    },
    /// Drain a node: its Pods leave service before they are deleted
    Drain {
        /// Name of the node
        #[arg(value_parser = node_name)]
        node: String,
        /// Also delete Pods that nothing creates again
        #[arg(long)]
        force: bool,
        /// Also delete Pods with emptyDir volumes, whose data are lost
        #[arg(long)]
        delete_emptydir_data: bool,
        /// Policy of Pods without the annotation; lifecycle-operator's flag of this name
        #[arg(long, value_enum, default_value_t)]
        deletion_policy: DeletionPolicy,
        /// Seconds after which to fail; 0 waits without limit
        #[arg(long, default_value = "0", value_parser = seconds)]
        timeout: Duration,
    },
    /// Change Pods in place of an operator that is not running
    ///
    /// With the rights of the user, and reported by an event of each Pod. Without --yes, the Pods
    /// are only shown.
    #[command(subcommand, arg_required_else_help = true)]
    Emergency(Emergency),
    /// Remove Podops from the cluster
    ///
    /// May be interrupted and repeated, also after a part was removed by other means.
    Uninstall {
        /// Action on the Pods of CollaSets
        #[arg(long, value_enum)]
        workloads: Workloads,
        /// Only show the actions
        #[arg(long)]
        dry_run: bool,
        /// Delete CollaSets and their Pods without a question
        #[arg(short, long)]
        yes: bool,
        /// Seconds without progress after which to fail
        #[arg(long, default_value = "300", value_parser = seconds)]
        timeout: Duration,
    },
    /// Create a CollaSet, show how it is updated, restored and scaled in, and delete it
    Demo {
        /// Number of Pods
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(i32).range(1..=100))]
        replicas: i32,
        /// Image of the Pods
        #[arg(long, default_value = "nginx:1.27")]
        image: String,
        /// Image that the Pods are updated to
        #[arg(long, default_value = "nginx:1.28")]
        updated_image: String,
        /// Keep the CollaSet
        #[arg(long)]
        keep: bool,
        /// Seconds after which a step fails
        #[arg(long, default_value = "300", value_parser = seconds)]
        timeout: Duration,
    },
    /// Write the completion script of a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Check the installation: operators, CRDs, admission, and Pods whose operation has no running
    /// controller
    ///
    /// Reads only. The exit status is 0 without errors, and 1 otherwise.
    #[command(visible_alias = "doctor")]
    Check {
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Check a cluster before Podops replaces Kuperator, or Kuperator replaces Podops
    ///
    /// Reads only. The exit status is 0 if nothing prevents the next step, and 1 otherwise.
    Preflight {
        /// Controllers that are to run in the cluster
        #[arg(long, value_enum, default_value_t = SwitchTarget::Podops)]
        to: SwitchTarget,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// Change of Pods in place of an operator that is not running.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum Emergency {
    /// Make Pods Ready whose containers are, in place of lifecycle-operator
    OpenGates(EmergencyArgs),
    /// Let deleted Pods go whose finalizers protect their traffic, in place of consist-operator
    Release(EmergencyArgs),
}

/// Pods of an [`Emergency`].
#[derive(Args, Clone, Copy, Debug)]
pub struct EmergencyArgs {
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Change the Pods
    #[arg(long)]
    pub yes: bool,
}

/// Command about a rollout.
#[derive(Debug, Subcommand)]
pub enum Rollout {
    /// List the revisions of a CollaSet
    History {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// Format of the output
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Wait until a rollout is complete
    ///
    /// The exit status is 1 if the rollout has failed, and 3 if it is paused until a user resumes
    /// or approves it.
    Status {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// Seconds after which to fail; 0 waits without limit
        #[arg(long, default_value = "0", value_parser = seconds)]
        timeout: Duration,
    },
    /// Return to the template of an earlier revision
    Undo {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// Number of the revision; the newest earlier one by default
        #[arg(long)]
        to_revision: Option<i64>,
    },
    /// Start no further operations
    Pause {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
    },
    /// Continue a CollaSet that is paused, or whose rollout was halted
    Resume {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
    },
    /// Restart all Pods, in place where possible
    Restart {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
    },
    /// Approve the step after which a rollout pauses
    Approve {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
    },
    /// Set the image of a container
    SetImage {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// <container>=<image>
        #[arg(value_parser = container_image)]
        image: ContainerImage,
    },
    /// Set how many Pods keep their revision
    SetPartition {
        /// Name of the CollaSet
        #[arg(value_parser = set_name)]
        set: String,
        /// Number of Pods, or a percentage
        #[arg(value_parser = int_or_percent::parse)]
        partition: IntOrString,
    },
}

/// Image of a container.
#[derive(Clone, Debug)]
pub struct ContainerImage {
    /// Name of the container.
    pub container: String,
    /// Its image.
    pub image: String,
}

fn container_image(text: &str) -> Result<ContainerImage, InvalidArgument> {
    let parts = text.split_once('=').filter(|(name, image)| !name.is_empty() && !image.is_empty());
    let Some((container, image)) = parts else {
        return Err(InvalidArgument(format!("{text} is not <container>=<image>")));
    };
    Ok(ContainerImage { container: container.to_owned(), image: image.to_owned() })
}

fn seconds(text: &str) -> Result<Duration, InvalidArgument> {
    // A deadline in more seconds may not exist.
    let number = text.strip_suffix('s').unwrap_or(text).parse::<u32>();
    let number = number.map_err(|_| InvalidArgument(format!("{text} is no number of seconds")))?;
    Ok(Duration::from_secs(number.into()))
}

/// Controllers that are to run in the cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SwitchTarget {
    /// Podops.
    Podops,
    /// KusionStack Kuperator.
    Kuperator,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names of the objects that the output is about.
    Name,
}
