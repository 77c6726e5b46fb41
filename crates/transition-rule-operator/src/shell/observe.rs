//! Observes a namespace in the caches, fetches the full Pods that rules read, and plans.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use kube::{Api, core::DynamicObject, discovery::ApiResource};
use podops_api::{ids::PodName, well_known};
use podops_client::{
    decode::Decoded,
    shell::{clock, list::list},
};
use podops_runtime::{
    controller::run_off_thread,
    reconcile_error::{Cause, ReconcileError},
};
use serde_json::Value;

use super::{caches::Pods, reconcile::NamespaceController};
use crate::{
    namespace_state::{NamespaceState, Now, Planned, PodToFetch, pods_to_fetch},
    observe::{SlimPod, newest_pods_version, trim_pod},
    plan::{self, Plan},
    view::{Observed, RuleView},
};

/// Time until Pods that could not be fetched are fetched again.
const FETCH_RETRY: Duration = Duration::from_secs(5);
/// Maximum number of Pods that are fetched concurrently; each may have megabytes.
const CONCURRENT_FETCHES: usize = 8;
/// Maximum number of Pods that one reconcile fetches. The remaining ones are fetched by the next,
/// so that none takes longer than its timeout.
const FETCHES_MAX: usize = 500;

impl NamespaceController {
    /// Observes and plans; if rules need full Pods, fetches them and plans again.
    ///
    /// # Errors
    ///
    /// If the Pods cannot be listed, or planning panics.
    pub(super) async fn observe_and_plan(
        &self,
        namespace: &str,
        rules: Vec<RuleView>,
        state: &mut NamespaceState,
    ) -> Result<Planned, ReconcileError> {
        let pods = self.pods(namespace, &rules).await?;
        let observed = self.caches.observe(namespace, rules, pods);
        let synced = self.webhooks.sync(namespace, observed, clock::now()).await;
        let mut observed = synced.map_err(Cause::Panic)?;
        state.add_full_pods(&mut observed);
        let (mut observed, mut plan) = plan_off_thread(observed).await?;
        if !plan.fetch.is_empty() {
            let remaining = plan.fetch.len().saturating_sub(FETCHES_MAX);
            self.fetch(namespace, &observed, &plan.fetch, state).await;
            state.add_full_pods(&mut observed);
            (observed, plan) = plan_off_thread(observed).await?;
            if !plan.fetch.is_empty() {
                let retry = if remaining > 0 { Duration::ZERO } else { FETCH_RETRY };
                plan.requeue_after = Some(plan.requeue_after.map_or(retry, |wait| wait.min(retry)));
            }
        }
        let now = Now { timestamp: clock::now(), instant: Instant::now() };
        Ok(Planned { observed, plan, now })
    }

    /// Returns the Pods of a namespace: from the cache, or listed if a status reports a newer
    /// `podsVersion`.
    ///
    /// Reserved capacity is released once the end of the operation is observed. On older Pods, the
    /// operation would appear unstarted and its Pod still available. A list that is older than the
    /// status shows that the status is that of another cluster, or of a later state of this one: it
    /// was restored from a backup.
    async fn pods(&self, namespace: &str, rules: &[RuleView]) -> Result<Pods, ReconcileError> {
        let cached_version = self.caches.pods.progress.version().resource_version;
        let reported = newest_pods_version(rules);
        if reported <= cached_version {
            return Ok(Pods { pods: self.caches.pods.find(namespace), version: cached_version });
        }
        tracing::info!("Pod cache is older than status.podsVersion; listing Pods");
        let api: Api<Decoded<SlimPod>> = Api::namespaced(self.client.clone(), namespace);
        let listed = list(&api, well_known::CONTROLLED, trim_pod)
            .await
            .map_err(|source| Cause::List { resource: "pods", source })?;
        Ok(Pods {
            pods: listed.objects.into_iter().map(Arc::new).collect(),
            version: listed.version.unwrap_or(reported),
        })
    }

    /// Fetches full Pods into the state of the namespace.
    async fn fetch(
        &self,
        namespace: &str,
        observed: &Observed,
        names: &BTreeSet<PodName>,
        state: &mut NamespaceState,
    ) {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<Decoded<DynamicObject>> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let names = pods_to_fetch(observed, names).into_iter().take(FETCHES_MAX);
        let fetched: Vec<(PodToFetch, Option<Value>)> = stream::iter(names)
            .map(|pod| fetch_pod(api.clone(), pod))
            .buffer_unordered(CONCURRENT_FETCHES)
            .collect()
            .await;
        for (pod, object) in fetched {
            if let Some(object) = object {
                state.store_full_pod(pod, &object);
            }
        }
    }
}

/// Plans in a thread of its own, because the evaluation of expressions may take seconds. A panic of
/// the interpreter fails the reconcile of this namespace only.
async fn plan_off_thread(observed: Observed) -> Result<(Observed, Plan), ReconcileError> {
    let planned = run_off_thread(move || {
        let plan = plan::plan(&observed, clock::now());
        (observed, plan)
    });
    Ok(planned.await.map_err(Cause::Panic)?)
}

/// Fetches a full Pod. Returns `None` and logs the error if it cannot be fetched.
async fn fetch_pod(
    api: Api<Decoded<DynamicObject>>,
    pod: PodToFetch,
) -> (PodToFetch, Option<Value>) {
    let fetched = api.get_opt(&pod.name).await;
    let object = fetched
        .inspect_err(
            |error| tracing::warn!(%error, name = pod.name.as_str(), "Failed to fetch Pod"),
        )
        .ok()
        .flatten()
        .and_then(Decoded::ok)
        .and_then(|object| serde_json::to_value(object).ok());
    (pod, object)
}
