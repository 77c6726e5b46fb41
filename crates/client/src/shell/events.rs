//! Publishes Kubernetes events, and suppresses repeated ones.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::event::{ObjectEvent, Severity};

/// Time for which an identical event on the same object is suppressed.
const REPEAT_AFTER: Duration = Duration::from_secs(300);
/// Time after which an event that could not be published is published again, if it is still reported.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Timeout of publishing, which delays the reconcile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of published events above which old ones are forgotten.
const CAPACITY: usize = 1024;

/// UID of an object and reason of an event on it.
type Subject = (String, &'static str);

/// Last event with one reason on an object.
struct Published {
    message: String,
    at: Instant,
    failed: bool,
}

/// Publishes events as one controller.
pub struct Events {
    recorder: Recorder,
    /// Minimum interval between events with the same reason and different messages.
    min_interval: Duration,
    published: Mutex<BTreeMap<Subject, Published>>,
}

impl Events {
    /// Creates a publisher for `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &'static str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: None };
        let recorder = Recorder::new(client, reporter);
        Self { recorder, min_interval: Duration::ZERO, published: Mutex::default() }
    }

    /// Sets the minimum interval between events of one reason whose messages differ.
    #[must_use]
    pub fn with_min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// Publishes an event on an object, unless the same was published recently. Errors are only
    /// logged, because nothing depends on events.
    pub async fn publish(&self, object: &ObjectReference, event: &ObjectEvent) {
        if !self.is_due(object.uid.as_deref().unwrap_or_default(), event) {
            return;
        }
        let reason = event.reason.name;
        let type_ = match event.reason.severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        };
        let published = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(event.message.clone()),
            action: reason.to_owned(),
            secondary: None,
        };
        match timeout(TIMEOUT, self.recorder.publish(&published, object)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(%error, reason, "Failed to publish an event"),
            Err(_) => tracing::warn!(reason, "Failed to publish an event: timed out"),
        }
        let uid = object.uid.clone().unwrap_or_default();
        if let Some(last) = self.published.lock().get_mut(&(uid, reason)) {
            last.failed = true;
        }
    }

    fn is_due(&self, uid: &str, event: &ObjectEvent) -> bool {
        let mut published = self.published.lock();
        if published.len() > CAPACITY {
            published.retain(|_, last| last.at.elapsed() < REPEAT_AFTER);
        }
        let last = published.get(&(uid.to_owned(), event.reason.name));
        if last.is_some_and(|last| {
            let suppressed_for = match last.message == event.message {
                true if last.failed => RETRY_AFTER,
                true => REPEAT_AFTER,
                false => self.min_interval,
            };
            last.at.elapsed() < suppressed_for
        }) {
            return false;
        }
        let new = Published { message: event.message.clone(), at: Instant::now(), failed: false };
        published.insert((uid.to_owned(), event.reason.name), new);
        true
    }
}
