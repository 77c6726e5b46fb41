//! Command-line arguments specific to this operator.

use clap::Args;
use podops_admission::AdmissionArgs;

use podops_api::deletion_policy::DeletionPolicy;

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct LifecycleArgs {
    /// Checkers that every new Pod waits for, such as `transition-rule`: adds their gates to new
    /// Pods on clusters without MutatingAdmissionPolicy
    #[arg(
        long,
        env = "PODOPS_GATE_NEW_PODS",
        value_delimiter = ',',
        help_heading = "Lifecycle",
        value_name = "CHECKERS"
    )]
    pub gate_new_pods: Vec<String>,

    /// How delete and evict requests for CollaSet Pods are handled: Delete, or Replace (create a
    /// replacement first). A Pod's annotation overrides it. Requires --admission-address
    #[arg(
        long,
        env = "PODOPS_DELETION_POLICY",
        value_enum,
        default_value_t,
        help_heading = "Lifecycle",
        value_name = "POLICY"
    )]
    pub deletion_policy: DeletionPolicy,

    /// Server for the admission reviews of delete and eviction requests, and of new Pods
    #[command(flatten)]
    pub admission: AdmissionArgs,
}
