//! Lifecycle of an operator process: client, metrics and tasks, from startup to graceful shutdown.

use std::{
    collections::BTreeMap, fmt::Debug, future::Future, path::Path, sync::Arc, time::Duration,
};

use kube::Resource;
use podops_client::{
    error::Chain,
    shell::{
        connect::{ConnectError, connect},
        metrics::Metrics as ClientMetrics,
    },
};
use prometheus::Registry;
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    admin,
    args::OperatorArgs,
    certificate_authority,
    controller::{self, ControllerConfig, Requeue},
    election::{Election, ElectionError},
    lease::LeadershipLost,
    metrics::Metrics,
    process::Process,
    reconcile_error::ReconcileError,
    shutdown::Shutdown,
    telemetry::{self, LoggingError},
    traces::{EndpointError, Traces},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reasons for which an operator cannot start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Logging cannot be set up.
    #[error("failed to set up logging")]
    Logging(#[from] LoggingError),
    /// A metric is registered twice.
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    /// Leader election cannot start.
    #[error("failed to start leader election")]
    Election(#[from] ElectionError),
    /// Spans cannot be sent.
    #[error("invalid flag --otlp-endpoint")]
    Traces(#[from] EndpointError),
    /// There is no client of the API server.
    #[error("failed to create a client")]
    Client(#[from] ConnectError),
    /// The operator's own flags or files are invalid.
    #[error("invalid configuration")]
    Config(#[source] BoxError),
    /// Signals cannot be handled.
    #[error("failed to install signal handlers")]
    Signals(#[from] std::io::Error),
    /// A task failed.
    #[error("{task} failed")]
    TaskFailed {
        /// Name of the task.
        task: &'static str,
        /// Cause.
        source: BoxError,
    },
    /// A task ended that runs until shutdown.
    #[error("{task} ended unexpectedly")]
    TaskEnded {
        /// Name of the task.
        task: &'static str,
    },
    /// A task panicked.
    #[error("a task panicked")]
    TaskPanicked(#[source] JoinError),
    /// Another replica may be the leader.
    #[error(transparent)]
    LeadershipLost(#[from] LeadershipLost),
}

impl OperatorError {
    /// Wraps an error of the operator's own configuration.
    #[must_use]
    pub fn config(error: impl Into<BoxError>) -> Self {
        Self::Config(error.into())
    }
}

/// Running operator process.
pub struct Operator {
    /// State that the tasks share.
    pub process: Process,
    /// Registry of the metrics.
    pub registry: Registry,
    readiness: BTreeMap<&'static str, watch::Receiver<bool>>,
    stop: watch::Sender<bool>,
    lease_stop: watch::Sender<bool>,
    tasks: JoinSet<FinishedTask>,
    lease_task: JoinSet<Result<(), LeadershipLost>>,
}

/// Name and result of a task that ended.
struct FinishedTask {
    name: &'static str,
    result: Result<(), BoxError>,
}

impl Operator {
    /// Sets up logging, metrics and the client, and starts leader election with the Lease `name`.
    ///
    /// # Errors
    ///
    /// If any of these cannot be set up.
    pub async fn start(name: &'static str, args: OperatorArgs) -> Result<Self, OperatorError> {
        telemetry::install(&args)?;
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, name)?;
        let client_metrics = ClientMetrics::register(&registry)?;
        let (traces, exporter) = match args.otlp_endpoint.as_deref() {
            // An empty environment variable is as none.
            Some(endpoint) if !endpoint.is_empty() => {
                let (traces, exporter) = Traces::new(endpoint, name, &registry)?;
                (traces, Some(exporter))
            }
            Some(_) | None => (Traces::default(), None),
        };
        let client = connect(name, &client_metrics).await?;
        let (lease_stop, stopping) = Shutdown::new();
        let election = Election {
            name,
            args: args.lease.clone(),
            metrics: metrics.clone(),
            client_metrics: client_metrics.clone(),
            stop: stopping,
        };
        let election = election.start().await?;
        let lease = election.leadership.clone();
        let mut lease_task = JoinSet::new();
        lease_task.spawn(election.ended());
        let (stop, stopping) = Shutdown::new();
        let process =
            Process { name, args, client, lease, stop: stopping, traces, metrics, client_metrics };
        let mut operator = Self {
            process,
            registry,
            readiness: BTreeMap::new(),
            stop,
            lease_stop,
            tasks: JoinSet::new(),
            lease_task,
        };
        if let Some(exporter) = exporter {
            let stop = operator.process.stop.clone();
            operator.task("trace exporter", exporter.run(stop));
        }
        Ok(operator)
    }

    /// Makes `/readyz` fail until `ready` is true.
    pub fn ready_when(&mut self, part: &'static str, ready: watch::Receiver<bool>) {
        self.readiness.insert(part, ready);
    }

    /// Adds a task; the process exits when any task ends. After shutdown has begun, the process
    /// waits for its end within the grace period.
    pub fn task<E: Into<BoxError>>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.tasks
            .spawn(async move { FinishedTask { name, result: task.await.map_err(Into::into) } });
    }

    /// Adds a task that ends as soon as shutdown begins, because it has no work to complete.
    pub fn background_task<E: Into<BoxError>>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let stop = self.process.stop.clone();
        self.task(name, async move {
            tokio::select! {
                result = task => result,
                () = stop.wait() => Ok(()),
            }
        });
    }

    /// Adds the controller of a collection; see [`controller::run`].
    pub fn controller<K, F, Fut>(
        &mut self,
        name: &'static str,
        config: ControllerConfig<K>,
        reconcile: F,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Requeue, ReconcileError>> + Send + 'static,
    {
        self.task(name, controller::run(self.process.clone(), config, reconcile));
    }

    /// Runs until a signal, the loss of the Lease or the end of a task. After a signal, reconciles
    /// in progress may complete within the grace period; the Lease is released last, so that the
    /// next leader finds no incomplete work.
    ///
    /// # Errors
    ///
    /// If it ends for any reason other than a signal.
    pub async fn run(mut self) -> Result<(), OperatorError> {
        let admin = admin::serve(
            self.process.args.metrics_bind_address,
            self.registry.clone(),
            Arc::new(self.readiness.clone()),
        );
        self.task("admin server", admin);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let ended = tokio::select! {
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            () = certificate_authority::changed(Path::new(certificate_authority::FILE)) => {
                tracing::info!("The certificate authority of the cluster has changed; restarting");
                Ok(())
            }
            Some(task) = self.tasks.join_next() => Err(task_error(task)),
            Some(lease) = self.lease_task.join_next() => Err(election_error(lease)),
        };
        let reason = ended.as_ref().err().map(|error| Chain(error).to_string());
        tracing::info!(reason, "Shutting down");
        self.stop.send_replace(true);
        // After losing the Lease, stop at once: completing work would overlap with the next leader.
        let grace = if ended.is_ok() { self.process.args.shutdown_grace } else { Duration::ZERO };
        let drained = timeout(grace, async {
            while self.tasks.len() > 1 && self.tasks.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            tracing::warn!("Grace period expired; aborting work in progress");
        }
        self.tasks.shutdown().await;
        self.lease_stop.send_replace(true);
        let released = timeout(self.process.args.shutdown_grace, async {
            while self.lease_task.join_next().await.is_some() {}
        });
        if released.await.is_err() {
            tracing::warn!("Failed to release the Lease within the grace period; it will expire");
        }
        ended
    }
}

fn task_error(task: Result<FinishedTask, JoinError>) -> OperatorError {
    match task {
        Ok(FinishedTask { name, result: Ok(()) }) => OperatorError::TaskEnded { task: name },
        Ok(FinishedTask { name, result: Err(source) }) => {
            OperatorError::TaskFailed { task: name, source }
        }
        Err(error) => OperatorError::TaskPanicked(error),
    }
}

fn election_error(election: Result<Result<(), LeadershipLost>, JoinError>) -> OperatorError {
    match election {
        Ok(Ok(())) => OperatorError::TaskEnded { task: "leader election" },
        Ok(Err(lost)) => OperatorError::LeadershipLost(lost),
        Err(error) => OperatorError::TaskPanicked(error),
    }
}
