//! Negative cache of rejected writes: suppresses a rejected write for a backoff period.
//!
//! Each event triggers a reconcile, which plans the same write again; without the cache every
//! reconcile would send it.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    time::Duration,
};

use json_patch::{AddOperation, PatchOperation, TestOperation};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    backoff::{self, Kind},
    write::{Change, Outcome, Write},
};

/// Number of rejections above which expired ones are removed.
const CAPACITY: usize = 1000;
/// Time that a rejection is retained after its write may be sent again, so that the next delay is
/// longer.
const RETENTION: Duration = Duration::from_secs(120);

/// Rejections by the fingerprint of the rejected write.
#[derive(Debug, Default)]
pub(super) struct RejectedWrites(Mutex<HashMap<u64, RejectedWrite>>);

#[derive(Debug)]
struct RejectedWrite {
    message: String,
    /// Number of consecutive rejections.
    count: u32,
    /// Time from which the write may be sent again.
    until: Instant,
}

impl RejectedWrites {
    /// Returns the API server's message if an equal write was rejected and its delay is not over.
    pub(super) fn retained(&self, write: &Write) -> Option<String> {
        let rejections = self.0.lock();
        // The usual case; skips the fingerprint.
        if rejections.is_empty() {
            return None;
        }
        let rejection = rejections.get(&fingerprint(write)).filter(|r| r.until > Instant::now())?;
        Some(rejection.message.clone())
    }

    /// Records the outcome of a write that was sent.
    pub(super) fn record(&self, write: &Write, outcome: &Outcome) {
        let mut rejections = self.0.lock();
        let now = Instant::now();
        let Outcome::Rejected(message) = outcome else {
            if !rejections.is_empty() {
                rejections.remove(&fingerprint(write));
            }
            return;
        };
        if rejections.len() >= CAPACITY {
            rejections.retain(|_, rejection| rejection.until + RETENTION > now);
        }
        let fingerprint = fingerprint(write);
        let count = rejections.get(&fingerprint).map_or(0, |rejection| rejection.count) + 1;
        let until = now + backoff::wait(Kind::Rejected, count);
        rejections.insert(fingerprint, RejectedWrite { message: message.clone(), count, until });
    }

    /// Returns the time until the write may be sent again.
    pub(super) fn retry_after(&self, write: &Write) -> Duration {
        let rejections = self.0.lock();
        let until = rejections.get(&fingerprint(write)).map(|rejection| rejection.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

/// Returns the fingerprint of a write: equal for writes that differ only in timestamps and resource
/// versions, different as soon as the rejected content is fixed.
fn fingerprint(write: &Write) -> u64 {
    let mut hasher = DefaultHasher::new();
    (write.verb(), write.target().to_string()).hash(&mut hasher);
    match write {
        Write::Create { body, .. }
        | Write::DryRunCreate { body, .. }
        | Write::Patch { change: Change::Merge(body) | Change::Strategic(body), .. } => {
            digest(body, &mut hasher);
        }
        Write::Patch { change: Change::Json(patch), .. } => {
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

/// Hashes a body without resource versions and timestamps, which differ between decisions.
fn digest(body: &Value, hasher: &mut DefaultHasher) {
    match body {
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(key, _)| *key != "resourceVersion") {
                key.hash(hasher);
                digest(value, hasher);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| digest(item, hasher)),
        Value::String(text) if is_timestamp(text) => {}
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            body.to_string().hash(hasher);
        }
    }
}

/// Returns whether a text is a time in Unix nanoseconds, as in labels.
fn is_timestamp(text: &str) -> bool {
    const MIN_LENGTH: usize = 16;
    text.len() >= MIN_LENGTH && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::write::{FieldValidation, JsonPatch, PODS, Target};

    fn pod(timestamp: &str, image: &str) -> Write {
        let body = json!({ "metadata": { "labels": { "creating": timestamp } }, "spec": { "image": image } });
        Write::Create {
            target: Target::new(PODS, "ns", "web-1"),
            body,
            validation: FieldValidation::Warn,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_of_a_rejected_write_doubles_until_it_is_fixed() {
        let rejected_writes = RejectedWrites::default();
        let rejected = Outcome::Rejected("no".to_owned());
        for seconds in [1, 2, 4] {
            rejected_writes.record(&pod("1000000000000000001", "bad"), &rejected);
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
    async fn patches_with_different_values_have_different_delays() {
        let rejected_writes = RejectedWrites::default();
        let patch = |image: &str| {
            let patch =
                JsonPatch::default().test(&["metadata", "uid"], "1").add(&["spec", "image"], image);
            Write::Patch { target: pod("", "").target().clone(), change: patch.build() }
        };
        rejected_writes.record(&patch("bad"), &Outcome::Rejected("no".to_owned()));
        assert!(
            rejected_writes.retained(&patch("bad")).is_some()
                && rejected_writes.retained(&patch("good")).is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_doubles_also_above_the_capacity() {
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
