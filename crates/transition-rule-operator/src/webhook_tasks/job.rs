//! Work for the HTTP client: requests to send and tasks to poll.

use std::collections::BTreeMap;

use podops_api::{
    ids::PodName,
    transition_rule::{Poll, TransitionRuleWebhook},
};

use crate::rules::webhook_messages::{Request, RuleRef, Subject, WebhookError};

/// Queued request, or task to poll.
#[derive(Clone, Debug)]
pub struct Job {
    /// Rule that defines the webhook.
    pub rule_ref: RuleRef,
    /// Namespace of the rule.
    pub namespace: String,
    /// Webhook as specified when the job was queued; results for another spec are ignored.
    pub spec: TransitionRuleWebhook,
    /// Request or task.
    pub kind: JobKind,
}

/// Kind of a [`Job`].
#[derive(Clone, Debug)]
pub enum JobKind {
    /// Sends a request.
    Call {
        /// Request body.
        request: Request,
        /// Operations to decide on, by Pod name.
        subjects: BTreeMap<PodName, Subject>,
    },
    /// Polls a task that is already running.
    Poll {
        /// Local number of the task.
        task: u64,
    },
}

/// URL to poll a task.
///
/// # Errors
///
/// [`WebhookError::Address`] if the URL of the rule is invalid.
pub fn task_url(poll: &Poll, task_id: &str) -> Result<String, WebhookError> {
    let mut url = url::Url::parse(&poll.url).map_err(|_| WebhookError::Address)?;
    let key = if poll.raw_query_key.is_empty() { "task-id" } else { &poll.raw_query_key };
    url.query_pairs_mut().append_pair(key, task_id);
    Ok(url.into())
}
