//! Writes that the server refuses are not sent again for a while, however often they are planned:
//! each event brings a look, and each look would ask once more.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    backoff::{self, Kind},
    effect::{Change, Effect, Outcome},
};

/// How many refusals are kept in mind before old ones are looked for.
const REMEMBERED_MAX: usize = 1000;

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
            known.retain(|_, refusal| refusal.until > now);
        }
        let times = known.get(&gist(effect)).map_or(0, |refusal| refusal.times) + 1;
        let until = now + backoff::wait(Kind::Refused, times);
        known.insert(gist(effect), Refusal { message: message.clone(), times, until });
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
/// soon as somebody mends the spec.
fn gist(effect: &Effect) -> u64 {
    let mut hasher = DefaultHasher::new();
    (effect.verb(), effect.target().to_string()).hash(&mut hasher);
    match effect {
        Effect::Create(_, body) => body["spec"].to_string().hash(&mut hasher),
        Effect::Patch(_, Change::Merge(body) | Change::Strategic(body)) => {
            shape(body, &mut hasher);
            body["spec"].to_string().hash(&mut hasher);
        }
        Effect::Patch(_, Change::Json(patch)) => {
            for operation in &patch.0 {
                operation.path().as_str().hash(&mut hasher);
            }
        }
        Effect::Delete { uid, .. } => uid.hash(&mut hasher),
    }
    hasher.finish()
}

/// The fields of a body, without their values.
fn shape(body: &Value, hasher: &mut DefaultHasher) {
    for (key, value) in body.as_object().into_iter().flatten() {
        key.hash(hasher);
        shape(value, hasher);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::effect::{Resource, Target};

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
            refusals.note(&pod("1", "bad"), &no);
            assert_eq!(refusals.held(&pod("2", "bad")).as_deref(), Some("no"));
            assert_eq!(refusals.wait(&pod("2", "bad")), Duration::from_secs(seconds));
            assert_eq!(refusals.held(&pod("2", "good")), None);
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(refusals.held(&pod("3", "bad")), None);
        }
        refusals.note(&pod("4", "bad"), &Outcome::Done(None));
        assert_eq!(refusals.wait(&pod("4", "bad")), Duration::ZERO);
    }
}
