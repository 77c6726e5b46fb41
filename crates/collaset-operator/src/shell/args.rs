//! Command-line arguments specific to this operator.

use clap::Args;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::int_or_percent;

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct CollaSetArgs {
    /// maxUnavailable of rolling updates of CollaSets that do not set it: a number of Pods or a
    /// percentage of spec.replicas. Without it, such an update takes all Pods out of service at
    /// once
    #[arg(
        long,
        env = "PODOPS_DEFAULT_MAX_UNAVAILABLE",
        value_parser = int_or_percent::parse,
        help_heading = "CollaSets",
        value_name = "NUMBER|PERCENT"
    )]
    pub default_max_unavailable: Option<IntOrString>,
}
