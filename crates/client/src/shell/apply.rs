//! Executes writes; the only place that sends API writes.

use std::{fmt, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use http::{HeaderValue, header::ACCEPT};
use kube::{
    Client,
    api::{
        DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request, ValidationDirective,
    },
    core::Status,
};
use serde::Deserialize;
use tokio::{sync::Semaphore, time::timeout};

use super::{metrics::Metrics, rejected_writes::RejectedWrites};
use crate::write::{Change, FieldValidation, Outcome, Target, Write};

/// Timeout of one request; that of the API server is 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a write failed without an outcome: no response, or a server error. A retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {target}")]
pub struct Error {
    /// Object that was to be written.
    pub target: Box<Target>,
    /// Cause.
    pub source: Source,
}

/// Cause of a failed write.
#[derive(Debug, thiserror::Error)]
pub enum Source {
    /// The connection or the server failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// The request could not be built.
    #[error(transparent)]
    Request(#[from] kube::core::request::Error),
    /// The request timed out.
    #[error("request timed out after {}s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
}

/// Media type of a response with only the object's metadata, which saves the API server the
/// encoding of the rest; the response to a delete may be a `Status`.
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Executes writes with the operator's field manager, and counts them.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    manager: &'static str,
    metrics: Metrics,
    /// Maximum number of concurrent requests of one call.
    concurrency: usize,
    /// Limits the concurrent requests of all calls: each needs a connection with its buffers, and
    /// memory for as many would not be returned later.
    requests: Arc<Semaphore>,
    rejected_writes: Arc<RejectedWrites>,
}

impl Applier {
    /// Creates an applier with the field manager `manager`, and at most `concurrency` concurrent
    /// requests per call, and twice as many of all calls.
    #[must_use]
    pub fn new(client: Client, manager: &'static str, metrics: Metrics, concurrency: u16) -> Self {
        let concurrency = usize::from(concurrency.max(1));
        let requests = Arc::new(Semaphore::new(2 * concurrency));
        Self { client, manager, metrics, concurrency, requests, rejected_writes: Arc::default() }
    }

    /// Executes one write. A write that was rejected recently is not sent; the same rejection is
    /// returned.
    ///
    /// # Errors
    ///
    /// [`Error`] if there was no response, or a server error.
    pub async fn apply(&self, write: &Write) -> Result<Outcome, Error> {
        if let Some(message) = self.rejected_writes.retained(write) {
            return Ok(Outcome::Rejected(message));
        }
        let target = write.target();
        let fail = |source| Error { target: Box::new(target.clone()), source };
        // Never closed, so a permit is always acquired.
        let permit = self.requests.acquire().await;
        let response = timeout(REQUEST_TIMEOUT, self.send(write)).await;
        drop(permit);
        let response = response.unwrap_or(Err(Source::Timeout));
        let result = match response {
            Ok(version) => Ok(Outcome::Done(version)),
            Err(Source::Kube(kube::Error::Api(status))) => error_outcome(write, &status)
                .ok_or_else(|| fail(Source::Kube(kube::Error::Api(status)))),
            Err(other) => Err(fail(other)),
        };
        if let Ok(outcome) = &result {
            self.rejected_writes.record(write, outcome);
        }
        if matches!(result, Ok(Outcome::Conflict)) {
            self.metrics.conflicts.inc();
        }
        let class = result.as_ref().map_or("error", Outcome::class);
        self.metrics.writes.with_label_values(&[write.verb(), target.resource.plural, class]).inc();
        tracing::debug!(verb = write.verb(), %target, class, "API write");
        result
    }

    /// Executes independent writes concurrently. An iterator that renders them is advanced only when
    /// a request can be sent, and the body of a patch that succeeded is dropped, so that a large batch
    /// is never in memory as a whole.
    pub async fn apply_all(
        &self,
        writes: impl IntoIterator<Item = Write>,
    ) -> Vec<(Write, Result<Outcome, Error>)> {
        let one = |mut write: Write| async move {
            let result = self.apply(&write).await;
            if let (Ok(Outcome::Done(_)), Write::Patch { change, .. }) = (&result, &mut write) {
                *change = Change::Merge(serde_json::Value::Null);
            }
            (write, result)
        };
        stream::iter(writes).map(one).buffer_unordered(self.concurrency).collect().await
    }

    /// Executes independent writes in batches of 1, 2, 4, … and stops after a batch with a failed
    /// or rejected write, so that an API server that rejects all of them receives only a few.
    pub async fn apply_slow_start(
        &self,
        writes: Vec<Write>,
    ) -> Vec<(Write, Result<Outcome, Error>)> {
        let (mut results, mut rest, mut size) = (Vec::new(), writes, 1);
        while !rest.is_empty() {
            let later = rest.split_off(size.min(rest.len()));
            let batch = self.apply_all(rest).await;
            let succeeded =
                batch.iter().all(|(_, r)| matches!(r, Ok(o) if !matches!(o, Outcome::Rejected(_))));
            results.extend(batch);
            if !succeeded {
                break;
            }
            (rest, size) = (later, size * 2);
        }
        results
    }

    /// Returns the time until the first of the rejected writes may be sent again; `None` if there
    /// are none.
    #[must_use]
    pub fn retry_after(&self, results: &[(Write, Result<Outcome, Error>)]) -> Option<Duration> {
        let rejected = results.iter().filter(|(_, r)| matches!(r, Ok(Outcome::Rejected(_))));
        rejected.map(|(write, _)| self.rejected_writes.retry_after(write)).min()
    }

    async fn send(&self, write: &Write) -> Result<Option<String>, Source> {
        let request = self.request(write)?;
        let response = self.client.request_text(request).await?;
        // Other fields are not decoded: the write succeeded, whatever they contain.
        let written: Written = serde_json::from_str(&response).map_err(kube::Error::SerdeError)?;
        Ok(written.metadata.resource_version)
    }

    fn request(&self, write: &Write) -> Result<http::Request<Vec<u8>>, Source> {
        let target = write.target();
        let at = Request::new(target.resource.path(&target.namespace));
        let built = match write {
            Write::Create { body, .. } | Write::DryRunCreate { body, .. } => {
                let params = PostParams {
                    dry_run: matches!(write, Write::DryRunCreate { .. }),
                    field_manager: Some(self.manager.to_owned()),
                };
                let request = at.create(&params, body.to_string().into_bytes());
                match write {
                    Write::Create { validation: FieldValidation::Warn, .. } => request,
                    Write::Create { validation: FieldValidation::Strict, .. }
                    | Write::DryRunCreate { .. }
                    | Write::Patch { .. }
                    | Write::Delete { .. } => request.map(strictly_validated),
                }
            }
            Write::Patch { change, .. } => {
                // Patches contain known fields only, and strict decoding costs the API server more.
                let params = PatchParams {
                    field_manager: Some(self.manager.to_owned()),
                    field_validation: Some(ValidationDirective::Ignore),
                    ..PatchParams::default()
                };
                let patch = match change {
                    Change::Merge(body) => Patch::Merge(body),
                    Change::Strategic(body) => Patch::Strategic(body),
                    Change::Json(patch) => Patch::Json::<&serde_json::Value>(patch.clone()),
                };
                match target.subresource {
                    Some(sub) => at.patch_subresource(sub, &target.name, &params, &patch),
                    None => at.patch(&target.name, &params, &patch),
                }
            }
            Write::Delete { uid, version, .. } => {
                let preconditions =
                    Preconditions { uid: Some(uid.clone()), resource_version: version.clone() };
                let params =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                at.delete(&target.name, &params)
            }
        };
        let mut request = built?;
        if !matches!(write, Write::Delete { .. }) {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(METADATA_ONLY));
        }
        Ok(request)
    }
}

/// Sets the field validation of a request that has a query; kube's parameters of a create have none.
fn strictly_validated(mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    // A valid URI remains valid with one more parameter.
    if let Ok(uri) = format!("{}&fieldValidation=Strict", request.uri()).parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// Response to a write: the object, or for a delete a `Status`, which has no resourceVersion.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    metadata: WrittenMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenMetadata {
    resource_version: Option<String>,
}

/// Returns the outcome for an error response; `None` if it is a server error.
fn error_outcome(write: &Write, status: &Status) -> Option<Outcome> {
    match (status.code, write) {
        (404, Write::Delete { .. }) => Some(Outcome::Done(None)),
        // For a create, 404 means that the namespace or the kind does not exist: a rejection.
        (404, Write::Patch { .. }) => Some(Outcome::NotFound),
        (409, Write::Create { .. } | Write::DryRunCreate { .. }) if status.is_already_exists() => {
            Some(Outcome::AlreadyExists)
        }
        // The object has no other version yet. The cause may be a concurrent change of a quota, which
        // the operator does not watch.
        (409, Write::Create { .. } | Write::DryRunCreate { .. }) => None,
        (409, _) => Some(Outcome::Conflict),
        // A failed `test` names no object, unlike an invalid value.
        (422, Write::Patch { change: Change::Json(_), .. })
            if status.details.as_ref().is_none_or(|details| details.name.is_empty()) =>
        {
            Some(Outcome::Conflict)
        }
        // A merge patch with a different UID: another object with the same name.
        (422, Write::Patch { change: Change::Merge(_) | Change::Strategic(_), .. })
            if status.details.iter().flat_map(|d| &d.causes).any(|c| c.field == "metadata.uid") =>
        {
            Some(Outcome::Conflict)
        }
        (400 | 403 | 404 | 405 | 413 | 422, _) => Some(Outcome::Rejected(status.message.clone())),
        _ => None,
    }
}

/// Writes of a batch that must be retried soon.
#[derive(Debug)]
pub struct UnfinishedWrites(Vec<UnfinishedWrite>);

/// Write that must be retried soon.
#[derive(Debug, thiserror::Error)]
enum UnfinishedWrite {
    /// The operator's own object will appear in the cache; for another client's object there will be
    /// no event.
    #[error("{0}: an object of this name already exists")]
    AlreadyExists(Target),
    #[error("{0}: {source}", source = .0.source)]
    Failed(Error),
}

impl fmt::Display for UnfinishedWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&writes.join("; "))
    }
}

impl std::error::Error for UnfinishedWrites {}

/// Returns the writes of a batch that must be retried soon, because they failed and a retry may
/// succeed; `None` if there are none.
#[must_use]
pub fn unfinished(results: Vec<(Write, Result<Outcome, Error>)>) -> Option<UnfinishedWrites> {
    let unfinished: Vec<UnfinishedWrite> = results
        .into_iter()
        .filter_map(|(write, result)| match result {
            Ok(Outcome::AlreadyExists) if !matches!(write, Write::DryRunCreate { .. }) => {
                Some(UnfinishedWrite::AlreadyExists(write.target().clone()))
            }
            Ok(_) => None,
            Err(error) => Some(UnfinishedWrite::Failed(error)),
        })
        .collect();
    (!unfinished.is_empty()).then_some(UnfinishedWrites(unfinished))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{JsonPatch, PODS};

    fn pod() -> Target {
        Target::new(PODS, "ns", "web-1")
    }

    fn status(code: u16, name: &str) -> Status {
        let details = serde_json::json!({ "name": name });
        let text = serde_json::json!({ "status": "Failure", "message": "no", "code": code, "details": details });
        serde_json::from_value(text).unwrap()
    }

    /// The client of kube 5 waits for a response as long as the connection is open.
    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_response_times_out() {
        type Pending = Result<http::Response<kube::client::Body>, tower::BoxError>;
        let hanging = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Pending>()
        });
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let applier = Applier::new(Client::new(hanging, "default"), "test", metrics, 1);
        let write = Write::Patch { target: pod(), change: JsonPatch::default().build() };
        let result = timeout(REQUEST_TIMEOUT * 10, applier.apply(&write)).await.expect("times out");
        assert!(matches!(result, Err(Error { source: Source::Timeout, .. })));
    }

    #[test]
    fn a_failed_test_is_a_conflict_and_an_invalid_value_is_not() {
        let write = Write::Patch { target: pod(), change: JsonPatch::default().build() };
        assert_eq!(error_outcome(&write, &status(422, "")), Some(Outcome::Conflict));
        assert_eq!(
            error_outcome(&write, &status(422, "web-1")),
            Some(Outcome::Rejected("no".to_owned()))
        );
    }

    #[test]
    fn deleting_a_missing_object_is_done() {
        let write = Write::Delete { target: pod(), uid: "1".to_owned(), version: None };
        assert_eq!(error_outcome(&write, &status(404, "web-1")), Some(Outcome::Done(None)));
    }

    fn create(validation: FieldValidation) -> Write {
        Write::Create { target: pod(), body: serde_json::Value::Null, validation }
    }

    #[tokio::test]
    async fn a_strict_create_rejects_unknown_fields() {
        type Response = Result<http::Response<kube::client::Body>, tower::BoxError>;
        let server = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Response>()
        });
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let applier = Applier::new(Client::new(server, "default"), "test", metrics, 1);
        let query =
            |write: &Write| applier.request(write).unwrap().uri().query().map(str::to_owned);
        let strict = query(&create(FieldValidation::Strict)).unwrap();
        assert!(strict.contains("fieldManager=test&fieldValidation=Strict"), "{strict}");
        let warn = query(&create(FieldValidation::Warn)).unwrap();
        assert!(!warn.contains("fieldValidation"), "{warn}");
    }

    #[test]
    fn a_server_error_is_not_an_outcome() {
        let write = create(FieldValidation::Warn);
        assert_eq!(error_outcome(&write, &status(409, "")), None, "the quota has changed");
        assert_eq!(error_outcome(&write, &status(429, "")), None);
        assert_eq!(error_outcome(&write, &status(500, "")), None);
    }
}
