//! Writes that the server refuses are not sent again for a while, however often they are planned:
//! each event brings a look, and each look would ask once more.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use json_patch::{AddOperation, PatchOperation, TestOperation};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    backoff::{self, Kind},
    write::{Change, Outcome, Write},
};

/// How many refusals are kept in mind before old ones are looked for.
const CAPACITY: usize = 1000;
/// How long a refusal is kept in mind after its write may be sent again, so that the next wait is
/// longer.
const RETENTION: Duration = Duration::from_secs(120);

/// The refusals that still stand, by what was refused.
#[derive(Debug, Default)]
pub(super) struct RejectedWrites(Mutex<HashMap<u64, RejectedWrite>>);

#[derive(Debug)]
struct RejectedWrite {
    message: String,
    times: u32,
    until: Instant,
}

impl RejectedWrites {
    /// The server's words, if it refused the same a while ago.
    pub(super) fn retained(&self, write: &Write) -> Option<String> {
        let known = self.lock();
        // Nearly always; a digest of each write would be for nothing.
        if known.is_empty() {
            return None;
        }
        let rejection = known.get(&fingerprint(write)).filter(|r| r.until > Instant::now())?;
        Some(rejection.message.clone())
    }

    /// Takes note of what came of an effect that was sent.
    pub(super) fn record(&self, write: &Write, outcome: &Outcome) {
        let (mut known, now) = (self.lock(), Instant::now());
        let Outcome::Rejected(message) = outcome else {
            if !known.is_empty() {
                known.remove(&fingerprint(write));
            }
            return;
        };
        if known.len() >= CAPACITY {
            known.retain(|_, rejection| rejection.until + RETENTION > now);
        }
        let fingerprint = fingerprint(write);
        let times = known.get(&fingerprint).map_or(0, |rejection| rejection.times) + 1;
        let until = now + backoff::wait(Kind::Rejected, times);
        known.insert(fingerprint, RejectedWrite { message: message.clone(), times, until });
    }

    /// How long until the effect may be sent again.
    pub(super) fn retry_after(&self, write: &Write) -> Duration {
        let known = self.lock();
        let until = known.get(&fingerprint(write)).map(|rejection| rejection.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, RejectedWrite>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an effect is about: the same for two that differ only in stamps and versions, another as
/// soon as somebody mends what was refused.
fn fingerprint(write: &Write) -> u64 {
    let mut hasher = DefaultHasher::new();
    (write.verb(), write.target().to_string()).hash(&mut hasher);
    match write {
        Write::Create(_, body)
        | Write::DryRunCreate(_, body)
        | Write::Patch(_, Change::Merge(body) | Change::Strategic(body)) => {
            digest(body, &mut hasher);
        }
        Write::Patch(_, Change::Json(patch)) => {
            for operation in &patch.0 {
                operation.path().as_str().hash(&mut hasher);
                if let PatchOperation::Add(AddOperation { value, .. })
                | PatchOperation::Test(TestOperation { value, .. }) = operation
                {
                    digest(value, &mut hasher);
                }
            }
        }
        Write::Delete { uid, .. } => uid.hash(&mut hasher),
    }
    hasher.finish()
}

/// A body without versions, and without what the time of the decision put into it.
fn digest(body: &Value, hasher: &mut DefaultHasher) {
    match body {
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(key, _)| *key != "resourceVersion") {
                key.hash(hasher);
                digest(value, hasher);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| digest(item, hasher)),
        Value::String(text) if is_stamp(text) => {}
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            body.to_string().hash(hasher);
        }
    }
}

/// Whether a text is a time in nanoseconds, as labels have it.
fn is_stamp(text: &str) -> bool {
    const SHORTEST: usize = 16;
    text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::write::{JsonPatch, Resource, Target};

    fn pod(stamp: &str, image: &str) -> Write {
        let resource = Resource { group: "", version: "v1", plural: "pods" };
        let (namespace, name) = ("ns".to_owned(), "web-1".to_owned());
        let body =
            json!({ "metadata": { "labels": { "creating": stamp } }, "spec": { "image": image } });
        Write::Create(Target { resource, namespace, name, subresource: None }, body)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_waits_longer_each_time_and_a_mended_one_does_not() {
        let rejected_writes = RejectedWrites::default();
        let no = Outcome::Rejected("no".to_owned());
        for seconds in [1, 2, 4] {
            rejected_writes.record(&pod("1000000000000000001", "bad"), &no);
            assert_eq!(
                rejected_writes.retained(&pod("1000000000000000002", "bad")).as_deref(),
                Some("no")
            );
            assert_eq!(
                rejected_writes.retry_after(&pod("1000000000000000002", "bad")),
                Duration::from_secs(seconds)
            );
            assert_eq!(rejected_writes.retained(&pod("1000000000000000002", "good")), None);
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(rejected_writes.retained(&pod("1000000000000000003", "bad")), None);
        }
        rejected_writes.record(&pod("1000000000000000004", "bad"), &Outcome::Done(None));
        assert_eq!(rejected_writes.retry_after(&pod("1000000000000000004", "bad")), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn another_image_is_another_patch() {
        let rejected_writes = RejectedWrites::default();
        let patch = |image: &str| {
            let patch =
                JsonPatch::default().test(&["metadata", "uid"], "1").add(&["spec", "image"], image);
            Write::Patch(pod("", "").target().clone(), patch.build())
        };
        rejected_writes.record(&patch("bad"), &Outcome::Rejected("no".to_owned()));
        assert!(
            rejected_writes.retained(&patch("bad")).is_some()
                && rejected_writes.retained(&patch("good")).is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn many_refusals_wait_as_long_as_few() {
        let rejected_writes = RejectedWrites::default();
        let all: Vec<Write> = (0..CAPACITY + 10).map(|n| pod("", &n.to_string())).collect();
        for seconds in [1, 2, 4] {
            for write in &all {
                rejected_writes.record(write, &Outcome::Rejected("no".to_owned()));
            }
            assert_eq!(rejected_writes.retry_after(&all[0]), Duration::from_secs(seconds));
            tokio::time::advance(Duration::from_secs(seconds)).await;
        }
    }
}
