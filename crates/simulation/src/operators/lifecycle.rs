//! The reconciles of lifecycle-operator.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use lifecycle_operator::{
    observe::{SlimPod, SlimService},
    plan, render,
};
use podops_client::object_key::ObjectKey;
use serde_json::Value;

use super::{Api, controlled_pods, earlier};
use crate::actors::name;

const OPERATOR: &str = "lifecycle-operator";

/// The operator; remembers which Pods need no reconcile.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Pods that wait for an event, or for a time.
    settled: BTreeMap<String, Settled>,
    services: BTreeMap<ObjectKey, Arc<SlimService>>,
}

#[derive(Debug)]
struct Settled {
    version: Value,
    until: Option<Timestamp>,
}

impl Lifecycle {
    /// Returns an operator that has observed the Services.
    ///
    /// # Errors
    ///
    /// If a Service violates its schema.
    pub(crate) fn new(services: Vec<Value>) -> serde_json::Result<Self> {
        let mut known = BTreeMap::new();
        for service in services {
            let service: SlimService = serde_json::from_value(service)?;
            known.insert(ObjectKey::of(&service), Arc::new(service));
        }
        Ok(Self { settled: BTreeMap::new(), services: known })
    }

    /// Reconciles each Pod that needs it. Returns the time after which one needs it without an
    /// event.
    ///
    /// # Errors
    ///
    /// If a Pod violates its schema.
    pub(crate) fn reconcile(&mut self, api: &mut Api) -> serde_json::Result<Option<Duration>> {
        let now = api.objects.now;
        for object in controlled_pods(&api.objects) {
            let pod_name = name(&object).to_owned();
            let version = object["metadata"]["resourceVersion"].clone();
            let is_settled = self.settled.get(&pod_name).is_some_and(|settled| {
                settled.version == version && settled.until.is_none_or(|until| now < until)
            });
            if is_settled {
                continue;
            }
            let requeue_after = self.reconcile_pod(api, object)?;
            let delay = requeue_after.and_then(|delay| SignedDuration::try_from(delay).ok());
            let until = delay.and_then(|delay| now.checked_add(delay).ok());
            self.settled.insert(pod_name, Settled { version, until });
        }
        let waits = self.settled.values().filter_map(|settled| settled.until);
        let waits = waits.filter(|until| *until > now);
        let next = waits.map(|until| until.duration_since(now).unsigned_abs());
        Ok(next.fold(None, |first, delay| earlier(first, Some(delay))))
    }

    fn reconcile_pod(&self, api: &mut Api, object: Value) -> serde_json::Result<Option<Duration>> {
        let pod: SlimPod = serde_json::from_value(object)?;
        let view = pod.view(|key| self.services.get(key).cloned(), &[]);
        let now = api.objects.now;
        // lifecycle-operator reports a Pod with invalid labels, and leaves it alone.
        let Ok(plan) = plan::plan(&view, now) else { return Ok(None) };
        if !view.deleting
            && let Some(write) = render::render(&plan, &pod, now)
        {
            api.send(OPERATOR, &write);
        }
        Ok(plan.requeue_after)
    }
}
