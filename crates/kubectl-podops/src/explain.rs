//! Explains why a Pod, a CollaSet or a node waits. Pure: objects in, causes with remedies out.

mod decoration;
mod node;
mod operation;
mod pod;
mod rule;
mod running;
mod set;
mod waits;

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    transition_rule::PodTransitionRule,
};
use serde::Serialize;

pub use node::explain as explain_node;
pub use pod::explain as explain_pod;
pub use set::explain as explain_set;
pub(crate) use waits::waits;

/// Objects of a namespace that an explanation needs.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// CollaSets.
    pub sets: Vec<CollaSet>,
    /// Pods under control, and the Pod that is explained.
    pub pods: Vec<Arc<Pod>>,
    /// PodTransitionRules.
    pub rules: Vec<PodTransitionRule>,
    /// PodDecorations.
    pub decorations: Vec<PodDecoration>,
    /// OperationJobs.
    pub jobs: Vec<OperationJob>,
    /// Operators whose Lease is not renewed; they are not running.
    pub absent_operators: Vec<String>,
    /// Namespace of the operators.
    pub operator_namespace: String,
    /// Facts that could not be read, a sentence each with the reason.
    pub unknown: Vec<String>,
    /// Time of the observation.
    pub now: Timestamp,
}

impl Facts {
    /// Returns the Pod of this name.
    fn pod(&self, name: &str) -> Option<&Pod> {
        let found = self.pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
        found.map(Arc::as_ref)
    }

    /// Returns the CollaSet of this name.
    fn set(&self, name: &str) -> Option<&CollaSet> {
        self.sets.iter().find(|set| set.metadata.name.as_deref() == Some(name))
    }

    /// Cause that an operator is not running, if its Lease shows that.
    fn absence(&self, operator: &str) -> Option<Cause> {
        let is_absent = self.absent_operators.iter().any(|absent| absent == operator);
        is_absent.then(|| {
            let namespace = &self.operator_namespace;
            Cause::new(format!("{operator} is not running: its Lease is not renewed")).remedy(
                format!("kubectl -n {namespace} get pods -l app.kubernetes.io/name={operator}"),
            )
        })
    }
}

/// Cause of a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// State that causes the wait, for people.
    pub message: String,
    /// Since when, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Action that ends the wait; empty if none is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Causes of this cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<Self>,
}

impl Cause {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    fn because(self, causes: impl IntoIterator<Item = Self>) -> Self {
        Self { because: self.because.into_iter().chain(causes).collect(), ..self }
    }
}

/// Explanation of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The object, as `pod/web-1`.
    pub subject: String,
    /// Its state in one sentence.
    pub state: String,
    /// Causes of the wait; empty without one.
    pub causes: Vec<Cause>,
    /// Time of the observation.
    #[serde(skip)]
    pub now: Timestamp,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.subject, self.state)?;
        write_causes(f, &self.causes, self.now, 1)
    }
}

fn write_causes(
    f: &mut fmt::Formatter<'_>,
    causes: &[Cause],
    now: Timestamp,
    depth: usize,
) -> fmt::Result {
    let indent = "  ".repeat(depth);
    for Cause { message, since, remedy, because } in causes {
        write!(f, "{indent}{message}")?;
        if let Some(since) = since {
            write!(f, " (for {})", age(*since, now))?;
        }
        writeln!(f)?;
        write_causes(f, because, now, depth + 1)?;
        if !remedy.is_empty() {
            writeln!(f, "{indent}  To continue: {remedy}")?;
        }
    }
    Ok(())
}

/// Time since a timestamp, as `4m12s`; the two largest units.
#[must_use]
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let largest = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(units.len() - 1);
    let mut left = seconds;
    let mut parts = Vec::new();
    for (unit, name) in units.iter().skip(largest).take(2) {
        if left >= *unit || parts.is_empty() {
            parts.push(format!("{}{name}", left / unit));
        }
        left %= unit;
    }
    parts.concat()
}

#[cfg(test)]
mod tests;
