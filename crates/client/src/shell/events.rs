//! Publishes Kubernetes events, and suppresses repeated ones.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, VecDeque},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::event::{ObjectEvent, Severity};

/// Time for which an identical event on the same object is suppressed.
const REPEAT_AFTER: Duration = Duration::from_secs(300);
/// Time after which an event that could not be published is published again, if it is still
/// reported.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Timeout of publishing, which delays the reconcile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of published events above which old ones are forgotten.
const CAPACITY: usize = 1024;
/// Number of events of a limited reason that are published in a namespace in a minute.
const LIMIT: Quota = Quota::per_minute(NonZeroU32::new(10).unwrap());

/// UID of an object and reason of an event on it.
type Subject = (String, &'static str);

/// Last events with one reason on an object, the newest first.
type Recent = VecDeque<Published>;

/// Number of different messages of one reason that are remembered.
const MESSAGES: usize = 4;

/// An event that was published.
struct Published {
    message: String,
    at: Instant,
    failed: bool,
    /// Adds repetitions of this message to one Event. It would do so for any message, so another
    /// message has another recorder.
    recorder: Recorder,
}

/// Publishes events as one controller.
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// Minimum interval between events with the same reason and different messages.
    min_interval: Duration,
    published: Mutex<BTreeMap<Subject, Recent>>,
    /// Permits events of limited reasons, by namespace and reason.
    limits: DefaultKeyedRateLimiter<(String, &'static str)>,
}

impl Events {
    /// Creates a publisher for `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &'static str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: None };
        Self {
            client,
            reporter,
            min_interval: Duration::ZERO,
            published: Mutex::default(),
            limits: RateLimiter::keyed(LIMIT),
        }
    }

    /// Sets the minimum interval between events of one reason whose messages differ.
    #[must_use]
    pub fn with_min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// [Publishes](Self::publish) events on an object, one after another.
    pub async fn publish_all<E: Borrow<ObjectEvent>>(
        &self,
        object: &impl Resource<DynamicType = ()>,
        events: impl IntoIterator<Item = E>,
    ) {
        let mut events = events.into_iter().peekable();
        // Most reconciles publish nothing.
        if events.peek().is_none() {
            return;
        }
        let reference = object.object_ref(&());
        for event in events {
            self.publish(&reference, event.borrow()).await;
        }
    }

    /// Publishes an event on an object, unless the same was published recently, or its reason is
    /// limited and too many were. Errors are only logged, because nothing depends on events.
    pub async fn publish(&self, object: &ObjectReference, event: &ObjectEvent) {
        let Some(recorder) = self.due(object, event) else { return };
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
        match timeout(TIMEOUT, recorder.publish(&published, object)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(%error, reason, "Failed to publish an event"),
            Err(_) => tracing::warn!(reason, "Failed to publish an event: timed out"),
        }
        let uid = object.uid.clone().unwrap_or_default();
        let mut published = self.published.lock();
        let recent = published.get_mut(&(uid, reason)).into_iter().flatten();
        for failed in recent.filter(|recent| recent.message == event.message) {
            failed.failed = true;
        }
    }

    /// Returns the recorder that publishes an event; `None` if the event must not be published now.
    fn due(&self, object: &ObjectReference, event: &ObjectEvent) -> Option<Recorder> {
        let mut published = self.published.lock();
        if published.len() > CAPACITY {
            let is_recent = |last: &Published| last.at.elapsed() < REPEAT_AFTER;
            published.retain(|_, recent| recent.front().is_some_and(is_recent));
        }
        let uid = object.uid.clone().unwrap_or_default();
        let recent = published.entry((uid, event.reason.name)).or_default();
        if let Some(last) = recent.front() {
            let suppressed_for = match last.message == event.message {
                true if last.failed => RETRY_AFTER,
                true => REPEAT_AFTER,
                false => self.min_interval,
            };
            if last.at.elapsed() < suppressed_for {
                return None;
            }
        }
        // A repetition that is suppressed takes nothing from the limit.
        if event.reason.is_limited && !self.is_permitted(object, event) {
            return None;
        }
        // A message that alternates with others is added to its own Event.
        let known = recent.iter().position(|known| known.message == event.message);
        let recorder = match known.and_then(|index| recent.remove(index)) {
            Some(known) => known.recorder,
            None => Recorder::new(self.client.clone(), self.reporter.clone()),
        };
        let message = event.message.clone();
        let at = Instant::now();
        recent.push_front(Published { message, at, failed: false, recorder: recorder.clone() });
        recent.truncate(MESSAGES);
        Some(recorder)
    }

    /// Returns true, and counts the event, if the limit of its reason permits it.
    fn is_permitted(&self, object: &ObjectReference, event: &ObjectEvent) -> bool {
        if self.limits.len() > CAPACITY {
            self.limits.retain_recent();
        }
        let namespace = object.namespace.clone().unwrap_or_default();
        self.limits.check_key(&(namespace, event.reason.name)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::event::EventReason;

    static UPDATING: EventReason = EventReason::normal("Updating", "CollaSet", "for a test");

    static WAITING: EventReason = EventReason::warning("Waiting", "Pod", "for a test").limited();

    type Written = Arc<Mutex<Vec<(http::Method, Value)>>>;

    /// A server that stores the requests that it receives, and a publisher that uses it.
    fn publisher() -> (Events, Written) {
        let written = Written::default();
        let stored = written.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let stored = stored.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                stored.lock().push((head.method, serde_json::from_slice(&body)?));
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(body.to_vec())))
            }
        });
        (Events::new(Client::new(server, "default"), "test"), written)
    }

    #[tokio::test]
    async fn another_message_is_another_event() {
        let (events, written) = publisher();
        let object = ObjectReference { uid: Some("a".to_owned()), ..ObjectReference::default() };
        for revision in ["web-1", "web-1", "web-2", "web-1"] {
            events.publish(&object, &UPDATING.with(format!("updating to {revision}"))).await;
        }
        let written = written.lock();
        let notes: Vec<_> = written
            .iter()
            .map(|(method, event)| (method.as_str(), event["note"].as_str().unwrap()))
            .collect();
        let expected = [
            ("POST", "updating to web-1"),
            ("POST", "updating to web-2"),
            ("PATCH", "updating to web-1"),
        ];
        assert_eq!(notes, expected, "a repetition is suppressed; one that alternates is counted");
    }

    #[tokio::test]
    async fn limited_reasons_are_published_for_few_objects() {
        let (events, written) = publisher();
        let pod = |namespace: &str, name: String| ObjectReference {
            namespace: Some(namespace.to_owned()),
            uid: Some(name),
            ..ObjectReference::default()
        };
        // Repetitions take nothing from the limit of the namespace.
        for _ in 0..20 {
            events.publish(&pod("a", "0".to_owned()), &WAITING.with("for a rule")).await;
        }
        for n in 0..20 {
            events.publish(&pod("a", n.to_string()), &WAITING.with("for a rule")).await;
        }
        assert_eq!(written.lock().len(), 10);
        events.publish(&pod("b", "b-0".to_owned()), &WAITING.with("for a rule")).await;
        events.publish(&pod("a", "20".to_owned()), &UPDATING.with("updating")).await;
        assert_eq!(
            written.lock().len(),
            12,
            "other namespaces and reasons have limits of their own"
        );
    }
}
