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
    effect::{Change, Effect, Outcome},
};

/// How many refusals are kept in mind before old ones are looked for.
const REMEMBERED_MAX: usize = 1000;
/// How long a refusal is kept in mind after its write may be sent again, so that the next wait is
/// longer.
const KEPT: Duration = Duration::from_secs(120);

/// The refusals that still stand, by what was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<u64, Refusal>>);

#[derive(Debug)]
struct Refusal {
    message: String,
    times: u32,
    until: Instant,
}

impl Refusals {
    /// The server's words, if it refused the same a while ago.
    pub(super) fn held(&self, effect: &Effect) -> Option<String> {
        let known = self.lock();
        // Nearly always; a digest of each write would be for nothing.
        if known.is_empty() {
            return None;
        }
        let refusal = known.get(&gist(effect)).filter(|r| r.until > Instant::now())?;
        Some(refusal.message.clone())
    }

    /// Takes note of what came of an effect that was sent.
    pub(super) fn note(&self, effect: &Effect, outcome: &Outcome) {
        let (mut known, now) = (self.lock(), Instant::now());
        let Outcome::Refused(message) = outcome else {
            if !known.is_empty() {
                known.remove(&gist(effect));
            }
            return;
        };
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, refusal| refusal.until + KEPT > now);
        }
        let gist = gist(effect);
        let times = known.get(&gist).map_or(0, |refusal| refusal.times) + 1;
        let until = now + backoff::wait(Kind::Refused, times);
        known.insert(gist, Refusal { message: message.clone(), times, until });
    }

    /// How long until the effect may be sent again.
    pub(super) fn wait(&self, effect: &Effect) -> Duration {
        let known = self.lock();
        let until = known.get(&gist(effect)).map(|refusal| refusal.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an effect is about: the same for two that differ only in stamps and versions, another as
/// soon as somebody mends what was refused.
fn gist(effect: &Effect) -> u64 {
    let mut hasher = DefaultHasher::new();
    (effect.verb(), effect.target().to_string()).hash(&mut hasher);
    match effect {
        Effect::Create(_, body)
        | Effect::Try(_, body)
        | Effect::Patch(_, Change::Merge(body) | Change::Strategic(body)) => {
            digest(body, &mut hasher);
        }
        Effect::Patch(_, Change::Json(patch)) => {
            for operation in &patch.0 {
                operation.path().as_str().hash(&mut hasher);
                if let PatchOperation::Add(AddOperation { value, .. })
                | PatchOperation::Test(TestOperation { value, .. }) = operation
                {
                    digest(value, &mut hasher);
                }
            }
        }
        Effect::Delete { uid, .. } => uid.hash(&mut hasher),
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
    use crate::effect::{JsonPatch, Resource, Target};

    fn pod(stamp: &str, image: &str) -> Effect {
        let resource = Resource { group: "", version: "v1", plural: "pods" };
        let (namespace, name) = ("ns".to_owned(), "web-1".to_owned());
        let body =
            json!({ "metadata": { "labels": { "creating": stamp } }, "spec": { "image": image } });
        Effect::Create(Target { resource, namespace, name, subresource: None }, body)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_waits_longer_each_time_and_a_mended_one_does_not() {
        let refusals = Refusals::default();
        let no = Outcome::Refused("no".to_owned());
        for seconds in [1, 2, 4] {
            refusals.note(&pod("1000000000000000001", "bad"), &no);
            assert_eq!(refusals.held(&pod("1000000000000000002", "bad")).as_deref(), Some("no"));
            assert_eq!(
                refusals.wait(&pod("1000000000000000002", "bad")),
                Duration::from_secs(seconds)
            );
            assert_eq!(refusals.held(&pod("1000000000000000002", "good")), None);
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(refusals.held(&pod("1000000000000000003", "bad")), None);
        }
        refusals.note(&pod("1000000000000000004", "bad"), &Outcome::Done(None));
        assert_eq!(refusals.wait(&pod("1000000000000000004", "bad")), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn another_image_is_another_patch() {
        let refusals = Refusals::default();
        let patch = |image: &str| {
            let patch =
                JsonPatch::default().test(&["metadata", "uid"], "1").add(&["spec", "image"], image);
            Effect::Patch(pod("", "").target().clone(), patch.build())
        };
        refusals.note(&patch("bad"), &Outcome::Refused("no".to_owned()));
        assert!(refusals.held(&patch("bad")).is_some() && refusals.held(&patch("good")).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_refusals_wait_as_long_as_few() {
        let refusals = Refusals::default();
        let all: Vec<Effect> = (0..REMEMBERED_MAX + 10).map(|n| pod("", &n.to_string())).collect();
        for seconds in [1, 2, 4] {
            for effect in &all {
                refusals.note(effect, &Outcome::Refused("no".to_owned()));
            }
            assert_eq!(refusals.wait(&all[0]), Duration::from_secs(seconds));
            tokio::time::advance(Duration::from_secs(seconds)).await;
        }
    }
}
