//! Flags that select a cluster and a namespace.

use clap::Args;

/// Context and namespace of a command.
#[derive(Args, Clone, Debug, Default)]
pub struct ContextArgs {
    /// Context of the kubeconfig; its current one by default
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Namespace; that of the context by default
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
}
