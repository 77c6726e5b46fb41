//! Runs leader election on a thread of its own, with a connection of its own.
//!
//! The Lease must be renewed in time even while reconciles use all threads of the process. A
//! process that hangs keeps its Lease until its liveness probe fails.

use std::{io, thread};

use kube::Client;
use podops_client::shell::{
    connect::{ConnectError, connect},
    metrics::Metrics as ClientMetrics,
};
use tokio::{runtime, sync::oneshot};

use crate::{
    args::LeaseArgs,
    lease::{self, Leadership, LeadershipLost},
    metrics::Metrics,
    shutdown::Shutdown,
};

/// Input of leader election.
pub(crate) struct Election {
    /// Name of the operator and of its Lease.
    pub(crate) name: &'static str,
    pub(crate) args: LeaseArgs,
    pub(crate) metrics: Metrics,
    pub(crate) client_metrics: ClientMetrics,
    pub(crate) stop: Shutdown,
}

/// Leader election that runs.
pub(crate) struct RunningElection {
    /// True while this replica is the leader.
    pub(crate) leadership: Leadership,
    name: &'static str,
    ended: oneshot::Receiver<Result<(), LeadershipLost>>,
}

/// Reasons for which leader election cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// Its thread cannot be started.
    #[error("failed to start the thread of leader election")]
    Thread(#[from] io::Error),
    /// There is no client of the API server.
    #[error("failed to create a client")]
    Client(#[from] ConnectError),
    /// Its thread has ended.
    #[error("the thread of leader election has ended")]
    Ended(#[from] oneshot::error::RecvError),
}

impl Election {
    /// Starts the thread, and returns once it contends for the Lease.
    pub(crate) async fn start(self) -> Result<RunningElection, ElectionError> {
        let client_metrics = self.client_metrics.clone();
        let connect = async move { connect(self.name, &client_metrics).await };
        self.start_with(connect).await
    }

    /// As [`Self::start`], with the client that `connect` returns on the thread.
    async fn start_with(
        self,
        connect: impl Future<Output = Result<Client, ConnectError>> + Send + 'static,
    ) -> Result<RunningElection, ElectionError> {
        let name = self.name;
        let (started, start) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async move {
            // The receivers exist while the process runs.
            match connect.await {
                Ok(client) => {
                    let (leadership, elector) =
                        lease::elector(self.name, &self.args, client, &self.metrics);
                    drop(started.send(Ok(leadership)));
                    drop(end.send(elector.run(self.stop).await));
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        thread::Builder::new().name("lease".to_owned()).spawn(move || runtime.block_on(run))?;
        Ok(RunningElection { leadership: start.await??, name, ended })
    }
}

impl RunningElection {
    /// Waits until the Lease is lost, or released after shutdown has begun.
    pub(crate) async fn ended(self) -> Result<(), LeadershipLost> {
        // A thread that panicked renews nothing.
        self.ended.await.unwrap_or(Err(LeadershipLost::NotRenewed { lease: self.name }))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use clap::Parser as _;
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use parking_lot::Mutex;
    use prometheus::Registry;
    use serde_json::{Value, json};
    use tower::BoxError;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        lease: LeaseArgs,
    }

    /// Stores the Lease that was written last; counts the writes in `resourceVersion`.
    async fn serve(
        stored: Arc<Mutex<Option<Value>>>,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let is_read = request.method() == Method::GET;
        let body = request.into_body().collect().await?.to_bytes();
        let mut stored = stored.lock();
        if !is_read {
            let writes = stored.as_ref().map_or(0, version);
            let mut lease: Value = serde_json::from_slice(&body)?;
            lease["metadata"]["resourceVersion"] = json!((writes + 1).to_string());
            *stored = Some(lease);
        }
        let missing = json!({ "kind": "Status", "code": 404, "reason": "NotFound" });
        let status = if stored.is_some() { 200 } else { 404 };
        let body = stored.clone().unwrap_or(missing).to_string();
        Ok(Response::builder().status(status).body(Body::from(body.into_bytes()))?)
    }

    fn version(lease: &Value) -> u64 {
        lease["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_busy_process_keeps_its_lease() {
        let flags = [
            "test",
            "--leader-elect-lease-duration=900ms",
            "--leader-elect-renew-deadline=600ms",
            "--leader-elect-retry-period=100ms",
        ];
        let registry = Registry::new();
        let stored = Arc::new(Mutex::new(None));
        let (_stop, stopping) = Shutdown::new();
        let election = Election {
            name: "test",
            args: Flags::parse_from(flags).lease,
            metrics: Metrics::register(&registry, "test").unwrap(),
            client_metrics: ClientMetrics::register(&registry).unwrap(),
            stop: stopping,
        };
        let server = stored.clone();
        let connect = async {
            let service = tower::service_fn(move |request| serve(server.clone(), request));
            Ok(Client::new(service, "default"))
        };
        let running = election.start_with(connect).await.unwrap();
        running.leadership.clone().wait().await;
        // Nothing else runs on this thread meanwhile.
        thread::sleep(Duration::from_secs(2));
        assert!(running.leadership.is_leader());
        let renewals = version(stored.lock().as_ref().unwrap());
        assert!(renewals > 10, "{renewals} renewals");
    }
}
