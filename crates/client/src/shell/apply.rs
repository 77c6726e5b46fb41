//! Executes writes; the only place that sends API writes.

use std::{sync::Arc, time::Duration};

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
use crate::{
    results::{WriteError, WriteResult, WriteResults},
    write::{Change, FieldValidation, Outcome, Write},
};

/// Timeout of one request; that of the API server is 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Cause of a failed write.
#[derive(Debug, thiserror::Error)]
enum Source {
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
    /// [`WriteError`] if there was no response, or a server error.
    pub async fn apply(&self, write: &Write) -> Result<Outcome, WriteError> {
        if let Some(message) = self.rejected_writes.retained(write) {
            return Ok(Outcome::Rejected(message));
        }
        let target = write.target();
        let fail =
            |source: Source| WriteError { target: Box::new(target.clone()), source: source.into() };
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

    /// Executes independent writes concurrently. An iterator that renders them is advanced only
    /// when a request can be sent, and the body of a patch that succeeded is dropped, so that a
    /// large batch is never in memory as a whole.
    pub async fn apply_all(&self, writes: impl IntoIterator<Item = Write>) -> WriteResults {
        let results = stream::iter(writes).map(|write| self.result_of(write));
        let results: Vec<WriteResult> = results.buffer_unordered(self.concurrency).collect().await;
        results.into_iter().collect()
    }

    async fn result_of(&self, mut write: Write) -> WriteResult {
        let outcome = self.apply(&write).await;
        let is_rejected = matches!(outcome, Ok(Outcome::Rejected(_)));
        let retry_after = is_rejected.then(|| self.rejected_writes.retry_after(&write));
        if let (Ok(Outcome::Done(_)), Write::Patch { change, .. }) = (&outcome, &mut write) {
            *change = Change::Merge(serde_json::Value::Null);
        }
        WriteResult { write, outcome, retry_after }
    }

    /// Executes independent writes in batches of 1, 2, 4, … and stops after a batch with a failed
    /// or rejected write, so that an API server that rejects all of them receives only a few.
    pub async fn apply_slow_start(&self, writes: Vec<Write>) -> WriteResults {
        let mut results = WriteResults::default();
        let mut rest = writes;
        let mut size = 1;
        while !rest.is_empty() {
            let later = rest.split_off(size.min(rest.len()));
            let batch = self.apply_all(rest).await;
            let none_failed = batch.none_failed();
            results.extend(batch);
            if !none_failed {
                break;
            }
            (rest, size) = (later, size * 2);
        }
        results
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

/// Sets the field validation of a request that has a query; kube's parameters of a create have
/// none.
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
        // The object has no other version yet. The cause may be a concurrent change of a quota,
        // which the operator does not watch.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{JsonPatch, PODS, Target};

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
        let source = result.unwrap_err().source;
        assert!(matches!(source.downcast_ref(), Some(Source::Timeout)), "{source}");
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
