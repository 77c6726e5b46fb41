//! Flags that select a cluster and a namespace.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Args;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Context and namespace of a command.
#[derive(Args, Clone, Debug, Default)]
pub struct ContextArgs {
    /// File with the contexts; $KUBECONFIG, or ~/.kube/config by default
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current one by default
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Namespace; that of the context by default
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
}

/// Time without a byte after which a request or watch is given up: the API server sends a bookmark each
/// minute to every watch.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// Error if the kubeconfig cannot be read.
const UNREADABLE: &str = "no cluster: the kubeconfig cannot be read";

impl ContextArgs {
    /// Returns the configuration of a client: that of the kubeconfig, or of the Pod that runs the
    /// program.
    ///
    /// # Errors
    ///
    /// If the kubeconfig cannot be read, or has no such context.
    pub async fn config(&self) -> anyhow::Result<Config> {
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).context(UNREADABLE)?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(anyhow::Error::from)
            }
            None if options.context.is_some() => {
                Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from)
            }
            None => Config::infer().await.map_err(anyhow::Error::from),
        };
        let mut config = config.context(UNREADABLE)?;
        config.read_timeout = Some(READ_TIMEOUT);
        // Otherwise, the time between two requests counts, too.
        config.reset_reader_on_write = true;
        Ok(config)
    }
}
