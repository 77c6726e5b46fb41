//! Lifecycle of an operator process: client, metrics and tasks, from startup to graceful shutdown.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use kube::Client;
use prometheus::Registry;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use super::{admin, args::OperatorArgs, client, lease, metrics::Metrics, telemetry};

/// Shutdown signal for tasks.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Creates a shutdown signal and the sender that triggers it.
    #[must_use]
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Waits until shutdown is triggered or the sender is dropped.
    pub async fn wait(mut self) {
        self.0.wait_for(|stop| *stop).await.map_or_else(drop, drop);
    }
}

/// Running operator process.
pub struct Operator {
    /// Flags.
    pub args: OperatorArgs,
    /// Client of the API server.
    pub client: Client,
    /// Registry of the metrics.
    pub registry: Registry,
    /// Metrics that all operators share.
    pub metrics: Metrics,
    /// Leadership of this replica.
    pub lease: lease::Leadership,
    readiness: BTreeMap<&'static str, watch::Receiver<bool>>,
    stop: (watch::Sender<bool>, Shutdown),
    lease_stop: watch::Sender<bool>,
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    lease_task: JoinSet<anyhow::Result<()>>,
}

impl Operator {
    /// Sets up logging, metrics and the client, and starts leader election with the Lease `name`.
    ///
    /// # Errors
    ///
    /// If any of these cannot be set up.
    pub async fn start(name: &'static str, args: OperatorArgs) -> anyhow::Result<Self> {
        telemetry::install(&args)?;
        let registry = Registry::new();
        let metrics = Metrics::register(&registry)?;
        let client = client::connect(&metrics).await?;
        let (lease_stop, stopping) = Shutdown::new();
        let (lease, elector) =
            lease::elector(name, &args.lease, client::connect(&metrics).await?, &metrics);
        let mut lease_task = JoinSet::new();
        lease_task.spawn(elector.run(stopping));
        Ok(Self {
            args,
            client,
            registry,
            metrics,
            lease,
            readiness: BTreeMap::new(),
            stop: Shutdown::new(),
            lease_stop,
            tasks: JoinSet::new(),
            lease_task,
        })
    }

    /// Returns the shutdown signal of the process.
    #[must_use]
    pub fn stop(&self) -> Shutdown {
        self.stop.1.clone()
    }

    /// Makes `/readyz` fail until `ready` is true.
    pub fn ready_when(&mut self, part: &'static str, ready: watch::Receiver<bool>) {
        self.readiness.insert(part, ready);
    }

    /// Adds a task; the process exits when any task ends.
    pub fn task(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// Runs until a signal, the loss of the Lease or the end of a task. After a signal, reconciles
    /// in progress may complete within the grace period; the Lease is released last, so that the
    /// next leader finds no incomplete work.
    ///
    /// # Errors
    ///
    /// If it ends for any reason other than a signal.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let admin = admin::serve(
            self.args.metrics_bind_address,
            self.registry.clone(),
            Arc::new(self.readiness.clone()),
        );
        self.task("admin server", admin);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let ended = tokio::select! {
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            Some(task) = self.tasks.join_next() => Err(task_error(task)),
            Some(lease) = self.lease_task.join_next() => Err(lease_error(lease)),
        };
        tracing::info!(reason = ?ended.as_ref().err(), "Shutting down");
        self.stop.0.send_replace(true);
        // After losing the Lease, stop at once: completing work would overlap with the next leader.
        let grace = if ended.is_ok() { self.args.shutdown_grace } else { Duration::ZERO };
        let drained = timeout(grace, async {
            while self.tasks.len() > 1 && self.tasks.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("Grace period expired; aborting work in progress");
        }
        self.tasks.shutdown().await;
        self.lease_stop.send_replace(true);
        let released = timeout(self.args.shutdown_grace, async {
            while self.lease_task.join_next().await.is_some() {}
        });
        if released.await.is_err() {
            tracing::warn!("Failed to release the Lease within the grace period; it will expire");
        }
        ended
    }
}

fn task_error(
    task: Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>,
) -> anyhow::Error {
    match task {
        Ok((name, Ok(()))) => anyhow::anyhow!("{name} ended unexpectedly"),
        Ok((name, Err(error))) => error.context(format!("{name} failed")),
        Err(error) => anyhow::Error::new(error).context("a task panicked"),
    }
}

fn lease_error(lease: Result<anyhow::Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    match lease {
        Ok(Ok(())) => anyhow::anyhow!("leader election ended unexpectedly"),
        Ok(Err(error)) => error,
        Err(error) => anyhow::Error::new(error).context("leader election panicked"),
    }
}
