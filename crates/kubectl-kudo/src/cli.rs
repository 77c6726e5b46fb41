//! Commands and their arguments.

use std::{convert::Infallible, env, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use podops_packages::verify::ParameterCheck;
use podops_terminal::connection::ContextArgs;

use crate::{failure::Failure, repository::Versions};

/// Installs packages of KUDO, and shows and changes their Instances
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-kudo",
    bin_name = "kubectl kudo",
    version = concat!("version ", env!("CARGO_PKG_VERSION"))
)]
pub struct Cli {
    /// Which cluster and namespace.
    #[command(flatten)]
    pub connection: Connection,

    /// Command.
    #[command(subcommand)]
    pub command: Command,
}

/// Returns the path with `$NAME` and `${NAME}` expanded from the environment. A variable that is
/// not set is empty, as in KUDO.
#[allow(clippy::unnecessary_wraps, reason = "the form of parsers of values")]
#[allow(clippy::disallowed_methods, reason = "variables in a path are of the environment")]
fn expanded(path: &str) -> Result<PathBuf, Infallible> {
    let expanded = shellexpand::env_with_context_no_errors(path, |name| {
        Some(env::var(name).unwrap_or_default())
    });
    Ok(PathBuf::from(&*expanded))
}

/// Which cluster, namespace and home folder.
#[derive(Args, Clone, Debug, Default)]
pub struct Connection {
    /// Folder of the repository list; variables in it are expanded
    #[arg(long, global = true, env = "KUDO_HOME", value_name = "DIR", value_parser = expanded)]
    pub home: Option<PathBuf>,
    /// Context and namespace.
    #[command(flatten)]
    pub context: ContextArgs,
    /// Seconds without a byte after which a request fails; 0 is 90
    #[arg(long, global = true, default_value_t = 0, value_name = "SECONDS")]
    pub request_timeout: u64,
    /// Check first that the cluster serves the kinds of KUDO
    #[arg(
        long, global = true, value_name = "BOOL", action = ArgAction::Set,
        default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true,
    )]
    pub validate_install: bool,
    /// Verbosity from 0 to 10; accepted as by KUDO, and without effect
    #[arg(short, long = "v", global = true, default_value_t = 0, value_name = "LEVEL")]
    pub verbosity: u8,
}

/// Command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install instance-operator and the kinds of KUDO, and remove the manager of KUDO if there is
    /// one
    ///
    /// Objects that exist already are updated. The objects of packages are not touched.
    Init(Init),
    /// Install a package: create its Operator, its OperatorVersion and an Instance
    ///
    /// PACKAGE is a folder or an archive (a path with a separator), the URL of an archive, or a
    /// name in the repository. Packages that it depends on are installed with it, without
    /// Instances.
    Install(Install),
    /// Move an Instance to a higher version of its package
    Upgrade(PackageArgs),
    /// Change parameters of an Instance
    Update(Update),
    /// Delete an Instance; its Operator and OperatorVersion stay
    Uninstall {
        /// Instance that is deleted.
        #[command(flatten)]
        instance: InstanceName,
        /// Condition and timeout of the wait.
        #[command(flatten)]
        wait: Wait,
    },
    /// Show and change the plans of an Instance
    #[command(subcommand)]
    Plan(PlanCommand),
    /// List the objects of packages in the namespace
    Get {
        /// instances, operators, operatorversions or all
        what: Option<String>,
        /// Format of the output
        #[arg(short, long)]
        output: Option<String>,
    },
    /// Create, verify and list packages
    #[command(subcommand)]
    Package(PackageCommand),
    /// Show the version of this program
    Version {
        /// Format of the output
        #[arg(short, long)]
        output: Option<String>,
    },
}

/// Name of an Instance.
#[derive(Args, Clone, Debug, Default)]
pub struct InstanceName {
    /// Name of the Instance
    #[arg(long)]
    pub instance: Option<String>,
}

impl InstanceName {
    /// Returns the name of the Instance.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] with this message if the name is missing or empty.
    pub fn required(&self, message: &str) -> Result<&str, Failure> {
        let name = self.instance.as_deref().filter(|name| !name.is_empty());
        name.ok_or_else(|| Failure::Usage(message.to_owned()))
    }
}

/// Condition and timeout of the wait.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Wait {
    /// Wait until it is done
    #[arg(
        short, long, value_name = "BOOL", action = ArgAction::Set,
        default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true,
    )]
    pub wait: bool,
    /// How long to wait, in seconds; 300 by default, and 0 is without limit
    #[arg(long, alias = "wait-timeout", value_name = "SECONDS")]
    pub wait_time: Option<u64>,
}

impl Wait {
    /// Returns the timeout in seconds; 0 means no limit.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.wait_time.unwrap_or(300)
    }
}

/// Values of parameters.
#[derive(Args, Clone, Debug, Default)]
pub struct Values {
    /// Value of a parameter, as NAME=VALUE
    #[arg(short, long = "parameter", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
    /// YAML file with values of parameters; a later file precedes an earlier one, and -p both
    #[arg(short = 'P', long = "parameter-file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where the value of a parameter comes from, as NAME=secret/OBJECT/KEY or
    /// NAME=configmap/OBJECT/KEY
    #[arg(long = "parameter-from", value_name = "NAME=KIND/OBJECT/KEY")]
    pub sources: Vec<String>,
}

/// Which package in which repository.
#[derive(Args, Clone, Debug, Default)]
pub struct Search {
    /// Name of the repository in the list, or its URL; the current one of the list by default
    #[arg(long)]
    pub repo: Option<String>,
    /// Version of the application
    #[arg(long, value_name = "VERSION")]
    pub app_version: Option<String>,
    /// Version of the operator
    #[arg(long, value_name = "VERSION")]
    pub operator_version: Option<String>,
}

impl Search {
    /// Returns the requested versions.
    #[must_use]
    pub fn versions(&self) -> Versions {
        Versions { app: self.app_version.clone(), operator: self.operator_version.clone() }
    }
}

/// A package, and an Instance of it.
#[derive(Args, Debug)]
pub struct PackageArgs {
    /// Package
    pub package: Option<String>,
    /// Name of the Instance.
    #[command(flatten)]
    pub instance: InstanceName,
    /// Values of parameters.
    #[command(flatten)]
    pub values: Values,
    /// Which package.
    #[command(flatten)]
    pub search: Search,
    /// Replace an OperatorVersion of the same name and another content
    #[arg(long)]
    pub replace_operatorversion: bool,
    /// Condition and timeout of the wait.
    #[command(flatten)]
    pub wait: Wait,
}

impl PackageArgs {
    /// Returns the package; `verb` describes the argument in the error.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] if the argument is missing.
    pub fn named(&self, verb: &str) -> Result<&str, Failure> {
        self.package.as_deref().ok_or_else(|| {
            let argument = format!("name of the package or path to {verb}");
            Failure::Usage(format!("expecting exactly one argument - {argument}"))
        })
    }
}

/// Arguments of `init`.
#[derive(Args, Debug)]
pub struct Init {
    /// Image of instance-operator; that of this release by default
    #[arg(short, long, alias = "kudo-image", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Objects of the installation.
    #[command(flatten)]
    pub scope: InitScope,
    /// Write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the objects
    #[arg(short, long)]
    pub output: Option<String>,
    /// Accepted as by KUDO, and without effect: objects that exist already are always updated
    #[arg(long)]
    pub upgrade: bool,
    /// Remove what `init` installs; the kinds of KUDO stay while there are Instances
    #[arg(long, conflicts_with_all = ["image", "package_admin", "upgrade", "output", "wait"])]
    pub uninstall: bool,
    /// Condition and timeout of the wait until instance-operator is available.
    #[command(flatten)]
    pub wait: Wait,
}

/// Objects that `init` installs.
#[derive(Args, Clone, Copy, Debug)]
pub struct InitScope {
    /// Only the CustomResourceDefinitions
    #[arg(long, conflicts_with_all = ["wait", "upgrade", "uninstall"])]
    pub crd_only: bool,
    /// Grant instance-operator the rights of a cluster administrator, as KUDO had, for Instances
    /// without a ServiceAccount
    #[arg(long)]
    pub package_admin: bool,
}

/// Arguments of `install`.
#[derive(Args, Debug)]
pub struct Install {
    /// Package of the installation; the Instance is <operator>-instance by default.
    #[command(flatten)]
    pub package: PackageArgs,
    /// Create no Instance
    #[arg(long)]
    pub skip_instance: bool,
    /// Create the namespace, which must not exist
    #[arg(long)]
    pub create_namespace: bool,
    /// Take an OperatorVersion that is in the cluster
    #[arg(long)]
    pub in_cluster: bool,
    /// ServiceAccount that writes the objects of the Instance
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
}

/// Arguments of `update`.
#[derive(Args, Debug)]
pub struct Update {
    /// Instance that is changed.
    #[command(flatten)]
    pub instance: InstanceName,
    /// Values of parameters.
    #[command(flatten)]
    pub values: Values,
    /// Condition and timeout of the wait.
    #[command(flatten)]
    pub wait: Wait,
}

/// Commands about the plans of an Instance.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Show the plans, their phases and steps
    Status {
        /// Instance that is shown.
        #[command(flatten)]
        instance: InstanceName,
        /// Show changes until the plan that runs has ended
        #[arg(long)]
        wait: bool,
        /// Format of the output
        #[arg(short, long)]
        output: Option<String>,
    },
    /// Show the last runs, with their reason and duration
    History {
        /// Instance that is shown.
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Run a plan
    Trigger {
        /// Instance that is changed.
        #[command(flatten)]
        instance: InstanceName,
        /// Name of the plan
        #[arg(long)]
        name: Option<String>,
        /// Condition and timeout of the wait.
        #[command(flatten)]
        wait: Wait,
    },
    /// Show which plans a change would run, and the changes of each step; nothing is written
    ///
    /// The change is another package, values of parameters, or a plan by its name. The exit status
    /// is 0 if no object would change, 5 if an object would, and 6 if a plan would
    /// not end or cannot be predicted.
    Diff(Diff),
    /// Wait until the plans that are due have run
    Wait {
        /// Instance that is waited for.
        #[command(flatten)]
        instance: InstanceName,
        /// Condition of the wait
        #[arg(long = "for", value_enum, default_value_t = WaitFor::Complete)]
        wait_for: WaitFor,
        /// How long to wait, in seconds
        #[arg(long, default_value_t = 300, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Begin no further step
    Pause {
        /// Instance that is changed.
        #[command(flatten)]
        instance: InstanceName,
    },
    /// Continue after `pause`
    Resume {
        /// Instance that is changed.
        #[command(flatten)]
        instance: InstanceName,
    },
    /// End the plan that runs; its changes stay
    Cancel {
        /// Instance that is changed.
        #[command(flatten)]
        instance: InstanceName,
    },
}

/// Arguments of `plan diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// Package that the Instance would be moved to, or be created of
    pub package: Option<String>,
    /// Instance that would be changed.
    #[command(flatten)]
    pub instance: InstanceName,
    /// Name of a plan that would be requested
    #[arg(long)]
    pub name: Option<String>,
    /// Values of parameters.
    #[command(flatten)]
    pub values: Values,
    /// Which package.
    #[command(flatten)]
    pub search: Search,
    /// Format of the output
    #[arg(short, long)]
    pub output: Option<String>,
}

/// Condition of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// The plans that are due have run.
    Complete,
    /// The plans have run, and all workloads are healthy.
    Ready,
    /// The Instance does not exist.
    Deleted,
}

/// Commands about packages.
#[derive(Debug, Subcommand)]
pub enum PackageCommand {
    /// Verify a package, and write its archive
    Create {
        /// Folder of the package
        folder: PathBuf,
        /// Folder that the archive is written to
        #[arg(short, long, default_value = ".", value_name = "DIR")]
        destination: PathBuf,
        /// Replace the archive if it exists
        #[arg(short = 'w', long)]
        overwrite: bool,
        /// Format of the output of the verification
        #[arg(short, long)]
        output: Option<String>,
    },
    /// Show the errors of a package that would occur when it is installed or when a plan runs
    Verify {
        /// Folder or archive of the package
        package: PathBuf,
        /// Warn also about texts of parameters for people: display, hint, desc, type, hasgroup,
        /// groups, all
        #[arg(long, value_name = "CHECK", value_delimiter = ',')]
        param_checks: Vec<ParameterCheck>,
        /// Format of the output
        #[arg(short, long)]
        output: Option<String>,
    },
    /// List the parameters, tasks or plans of a package
    #[command(subcommand)]
    List(ListCommand),
}

/// Part of a package that is listed.
#[derive(Debug, Subcommand)]
pub enum ListCommand {
    /// List the parameters
    Parameters {
        /// Package
        #[arg(default_value = ".")]
        package: String,
        /// Which package.
        #[command(flatten)]
        search: Search,
        /// With their descriptions
        #[arg(short, long)]
        descriptions: bool,
        /// Only those that are required and have no default
        #[arg(short, long, conflicts_with_all = ["names", "descriptions"])]
        required: bool,
        /// Only their names
        #[arg(long, conflicts_with = "descriptions")]
        names: bool,
    },
    /// List the tasks
    Tasks {
        /// Package
        package: String,
        /// Which package.
        #[command(flatten)]
        search: Search,
    },
    /// List the plans, their phases and steps
    Plans {
        /// Package
        package: String,
        /// Which package.
        #[command(flatten)]
        search: Search,
        /// With the effect of each task
        #[arg(short = 't', long)]
        with_tasks: bool,
    },
}
