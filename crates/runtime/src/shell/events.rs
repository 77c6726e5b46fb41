//! Events for users, not repeated.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::time::timeout;

/// How long the same event on the same object is not repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(300);
/// How long publishing may hold up a reconcile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Above this many remembered events the old ones are forgotten.
const CAPACITY: usize = 1024;

/// Something a user should know of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it calls for attention.
    pub warning: bool,
    /// Why, in one CamelCase word.
    pub reason: &'static str,
    /// What happened, for people.
    pub message: String,
}

/// An object's UID and the reason of what was told of it.
type Subject = (String, &'static str);

/// Publishes events in an operator's name.
pub struct Events {
    recorder: Recorder,
    /// How long other words for the same reason are not told either.
    min_interval: Duration,
    published: Mutex<BTreeMap<Subject, (String, Instant)>>,
}

impl Events {
    /// Publishes as `controller`.
    #[must_use]
    pub fn new(client: Client, controller: &'static str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: None };
        let recorder = Recorder::new(client, reporter);
        Self { recorder, min_interval: Duration::ZERO, published: Mutex::default() }
    }

    /// The same, for what may be told in other words each time: not more often than this for one reason.
    #[must_use]
    pub fn with_min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// Publishes a note on an object, unless it was just told the same. A failure is logged: no
    /// work depends on an event.
    pub async fn publish(&self, object: &ObjectReference, note: &Note) {
        if !self.is_due(object.uid.as_deref().unwrap_or_default(), note) {
            return;
        }
        let event = Event {
            type_: if note.warning { EventType::Warning } else { EventType::Normal },
            reason: note.reason.to_owned(),
            note: Some(note.message.clone()),
            action: note.reason.to_owned(),
            secondary: None,
        };
        match timeout(TIMEOUT, self.recorder.publish(&event, object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, reason = note.reason, "Publishing an event"),
            Err(_) => tracing::warn!(reason = note.reason, "Publishing an event takes too long"),
        }
    }

    fn is_due(&self, uid: &str, note: &Note) -> bool {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if published.len() > CAPACITY {
            published.retain(|_, (_, at)| at.elapsed() < REPEAT_AFTER);
        }
        let last = published.get(&(uid.to_owned(), note.reason));
        if last.is_some_and(|(message, at)| {
            let quiet = if *message == note.message { REPEAT_AFTER } else { self.min_interval };
            at.elapsed() < quiet
        }) {
            return false;
        }
        published.insert((uid.to_owned(), note.reason), (note.message.clone(), Instant::now()));
        true
    }
}
