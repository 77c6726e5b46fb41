//! Waits for states of a test cluster, and assertions about its requests.
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{Api, api::ListParams, runtime::wait::await_condition};
use podops_api::{collaset::CollaSetStatus, transition_rule::PodTransitionRuleStatus};
use serde_json::json;

use super::{TIMEOUT, TestCluster, eventually, is_rolled_out};
use crate::audit;

impl TestCluster {
    /// Requests of all clients since an offset in the audit log, and the offset of its current end.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn requests(&self, since: u64) -> anyhow::Result<(Vec<audit::Request>, u64)> {
        audit::since(&self.plane.dir.path().join("audit.log"), since)
    }

    /// Checks that the shipped roles permitted every request of the operators.
    ///
    /// # Errors
    ///
    /// If a request was forbidden; the error lists the requests.
    pub fn assert_no_forbidden_requests(&self) -> anyhow::Result<()> {
        self.assert_none_forbidden(audit::Request::is_operator_request)
    }

    /// As [`assert_no_forbidden_requests`](Self::assert_no_forbidden_requests), of the requests
    /// that operators make as themselves: Instances may name ServiceAccounts without rights.
    ///
    /// # Errors
    ///
    /// If there is one, or the audit log cannot be read.
    pub fn assert_no_own_forbidden_requests(&self) -> anyhow::Result<()> {
        self.assert_none_forbidden(|r| r.is_operator_request() && !r.is_impersonated())
    }

    pub(super) fn assert_none_forbidden(
        &self,
        is_counted: impl Fn(&audit::Request) -> bool,
    ) -> anyhow::Result<()> {
        let (all, _) = self.requests(0)?;
        let is_forbidden = |r: &&audit::Request| is_counted(r) && r.is_unauthorized();
        let forbidden: Vec<_> = all.iter().filter(is_forbidden).collect();
        anyhow::ensure!(
            forbidden.is_empty(),
            "requests forbidden by the shipped roles: {forbidden:#?}"
        );
        Ok(())
    }

    /// Byte offset of the current end of the audit log.
    ///
    /// # Errors
    ///
    /// If the log cannot be read.
    pub fn audit_log_end(&self) -> anyhow::Result<u64> {
        audit::end(&self.plane.dir.path().join("audit.log"))
    }

    /// Waits until a rule's status is of the current generation and fulfils `condition`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_for_rule(
        &self,
        name: &str,
        condition: impl Fn(&PodTransitionRuleStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(TIMEOUT, async || {
            let rule = self.rules().get(name).await?;
            let current = |s: &PodTransitionRuleStatus| {
                Some(s.observed_generation) == rule.metadata.generation
            };
            Ok(rule.status.as_ref().is_some_and(|s| current(s) && condition(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {TIMEOUT:?}: {:#?}", self.rules().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits until the PodTransitionRule `rule` reports a Pod that its entry `by` rejects, for a
    /// reason that contains `reason`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_until_rejected(
        &self,
        rule: &str,
        by: &str,
        reason: &str,
    ) -> anyhow::Result<()> {
        self.wait_for_rule(rule, |status| {
            let mut infos = status.details.iter().flat_map(|detail| &detail.reject_info);
            infos.any(|info| info.rule_name == by && info.reason.contains(reason))
        })
        .await
    }

    /// Waits until the operators have handled later changes: those of a new CollaSet of this name,
    /// whose Pod becomes available. Effects of earlier changes that have not occurred by then do
    /// not occur.
    ///
    /// # Errors
    ///
    /// As [`Self::create_and_wait`].
    pub async fn wait_until_changes_are_handled(&self, new: &str) -> anyhow::Result<()> {
        self.create_and_wait(new, 1, &json!({})).await
    }

    /// Waits until a CollaSet's status is of the current generation and fulfils `condition`.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_for_status(
        &self,
        name: &str,
        within: Duration,
        condition: impl Fn(&CollaSetStatus) -> bool,
    ) -> anyhow::Result<()> {
        let waited = eventually(within, async || {
            let set = self.sets().get(name).await?;
            let current =
                |s: &CollaSetStatus| Some(s.observed_generation) == set.metadata.generation;
            Ok(set.status.as_ref().is_some_and(|s| current(s) && condition(s)))
        });
        if waited.await.is_err() {
            bail!("{name} after {within:?}: {:#?}", self.sets().get(name).await?.status);
        }
        Ok(())
    }

    /// Waits until a CollaSet's status has the expected replicas, readyReplicas, availableReplicas
    /// and updatedReplicas, and as many Pods exist that are not terminating. Kuperator's own tests
    /// wait for the same.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status or the expected counts.
    pub async fn wait_for_replicas(&self, name: &str, expected: [i32; 4]) -> anyhow::Result<()> {
        let matches = |s: &CollaSetStatus| {
            [s.replicas, s.ready_replicas, s.available_replicas, s.updated_replicas] == expected
        };
        self.wait_for_status(name, TIMEOUT, matches).await?;
        let live = async || {
            let pods = self.pods_of(name).await?;
            let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
            Ok(i32::try_from(live)? == expected[0])
        };
        eventually(TIMEOUT, live).await.with_context(|| format!("waiting for {expected:?} Pods"))
    }

    /// Waits until a Pod fulfils `condition`. Each state of the Pod is observed, however short: a
    /// poll on a busy machine misses a label that an operator removes in the same second.
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the Pod.
    pub async fn wait_for_pod(
        &self,
        name: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> anyhow::Result<()> {
        let fulfilled =
            await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_some_and(&condition));
        match tokio::time::timeout(TIMEOUT, Box::pin(fulfilled)).await {
            Ok(fulfilled) => fulfilled.map(drop).with_context(|| format!("watching Pod {name}")),
            Err(_) => bail!("{name} after {TIMEOUT:?}: {:#?}", self.pods().get(name).await?),
        }
    }

    /// Waits until a Pod no longer exists.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_until_deleted(&self, name: &str) -> anyhow::Result<()> {
        let deleted = async || Ok(self.pods().get_opt(name).await?.is_none());
        let waited = eventually(TIMEOUT, deleted).await;
        waited.with_context(|| format!("waiting for the deletion of Pod {name}"))
    }

    /// Waits for an event with this reason regarding the object of this name.
    ///
    /// # Errors
    ///
    /// If the wait times out.
    pub async fn wait_for_event(&self, object: &str, reason: &str) -> anyhow::Result<()> {
        let events: Api<Event> = self.api();
        let is_published = async || {
            let events = events.list(&ListParams::default()).await?.items;
            Ok(events.iter().any(|event| {
                let regarding = event.regarding.as_ref().and_then(|r| r.name.as_deref());
                event.reason.as_deref() == Some(reason) && regarding == Some(object)
            }))
        };
        let waited = eventually(TIMEOUT, is_published).await;
        waited.with_context(|| format!("waiting for the event {reason} of {object}"))
    }

    /// Waits until a CollaSet is rolled out; see [`is_rolled_out`].
    ///
    /// # Errors
    ///
    /// If the wait times out; the error contains the status.
    pub async fn wait_until_rolled_out(
        &self,
        name: &str,
        replicas: i32,
        within: Duration,
    ) -> anyhow::Result<()> {
        self.wait_for_status(name, within, |status| is_rolled_out(status, replicas)).await
    }
}
