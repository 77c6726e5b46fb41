//! One process: its client, metrics and tasks, from the first flag to the last signal.

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

/// Tells tasks that it is time to end.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// A stop, and what brings it about.
    #[must_use]
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Waits until it is time; that nobody can say so any more counts too.
    pub async fn wait(mut self) {
        self.0.wait_for(|stop| *stop).await.map_or_else(drop, drop);
    }
}

/// An operator while it runs.
pub struct Operator {
    /// What it was told.
    pub args: OperatorArgs,
    /// The API server.
    pub client: Client,
    /// Where metrics are registered.
    pub registry: Registry,
    /// The metrics all operators share.
    pub metrics: Metrics,
    /// Whether this replica acts.
    pub lease: lease::Leadership,
    readiness: BTreeMap<&'static str, watch::Receiver<bool>>,
    stop: (watch::Sender<bool>, Shutdown),
    lease_stop: watch::Sender<bool>,
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    lease_task: JoinSet<anyhow::Result<()>>,
}

impl Operator {
    /// Sets up logs, metrics, the client and the Lease called `name`.
    ///
    /// # Errors
    ///
    /// If a part cannot be set up.
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

    /// Tells when it is time to end.
    #[must_use]
    pub fn stop(&self) -> Shutdown {
        self.stop.1.clone()
    }

    /// Makes `/readyz` wait for `ready`.
    pub fn ready_when(&mut self, part: &'static str, ready: watch::Receiver<bool>) {
        self.readiness.insert(part, ready);
    }

    /// Adds a task; when one ends, the process ends.
    pub fn task(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, task.await) });
    }

    /// Runs until a signal, the loss of the Lease or the end of a task. After a signal, work under way
    /// may end, and the Lease is given up last, so that the next holder finds nothing half done.
    ///
    /// # Errors
    ///
    /// If it was not a signal that ended it.
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
            Some(task) = self.tasks.join_next() => Err(early_end(task)),
            Some(lease) = self.lease_task.join_next() => Err(lease_end(lease)),
        };
        tracing::info!(reason = ?ended.as_ref().err(), "Stopping");
        self.stop.0.send_replace(true);
        // Who lost the Lease must not go on beside the next holder, not even to end what it began.
        let grace = if ended.is_ok() { self.args.shutdown_grace } else { Duration::ZERO };
        let drained = timeout(grace, async {
            while self.tasks.len() > 1 && self.tasks.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("Abandoning work that did not end in time");
        }
        self.tasks.shutdown().await;
        self.lease_stop.send_replace(true);
        let released = timeout(self.args.shutdown_grace, async {
            while self.lease_task.join_next().await.is_some() {}
        });
        if released.await.is_err() {
            tracing::warn!("Leaving the Lease to expire");
        }
        ended
    }
}

fn early_end(
    task: Result<(&'static str, anyhow::Result<()>), tokio::task::JoinError>,
) -> anyhow::Error {
    match task {
        Ok((name, Ok(()))) => anyhow::anyhow!("{name} ended"),
        Ok((name, Err(error))) => error.context(format!("{name} failed")),
        Err(error) => anyhow::Error::new(error).context("a task panicked"),
    }
}

fn lease_end(lease: Result<anyhow::Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    match lease {
        Ok(Ok(())) => anyhow::anyhow!("leader election ended"),
        Ok(Err(error)) => error,
        Err(error) => anyhow::Error::new(error).context("leader election panicked"),
    }
}
