//! Command-line arguments specific to this operator.

use clap::Args;
use podops_admission::AdmissionArgs;

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct RuleArgs {
    /// Rule kinds to ignore in every PodTransitionRule, for example `availablePolicy,webhook`
    #[arg(
        long,
        env = "SKIP_POD_TRANSITION_RULES",
        value_delimiter = ',',
        help_heading = "Rules",
        value_name = "KINDS"
    )]
    pub skip_rules: Vec<String>,

    /// Allow webhook rules to call loopback, link-local and cloud metadata addresses
    #[arg(long, env = "PODOPS_WEBHOOK_ALLOW_PRIVATE_ADDRESSES", help_heading = "Rules")]
    pub webhook_allow_private_addresses: bool,

    /// Hosts that webhook rules may call, as `<namespace>/<host>`; either part may end with `*`
    #[arg(
        long,
        env = "PODOPS_WEBHOOK_HOSTS",
        value_delimiter = ',',
        default_value = "*/*",
        help_heading = "Rules",
        value_name = "HOSTS"
    )]
    pub webhook_hosts: Vec<String>,

    /// Admission webhook that validates PodTransitionRules
    #[command(flatten)]
    pub admission: AdmissionArgs,
}
