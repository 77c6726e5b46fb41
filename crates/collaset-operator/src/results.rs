//! Classifies the results of a plan's writes. Pure.

use std::collections::BTreeMap;

use podops_api::{ids::InstanceId, well_known};
use podops_client::{
    error::Chain,
    event::EventReason,
    results::{WriteResult, WriteResults},
    write::{Change, Outcome, Write},
};

use crate::{
    decoration::applied::AppliedDecorations,
    plan::{Blocker, BlockerScope},
    reasons,
    render::CLAIMS,
    view::{DryRunResult, PodSource},
};

/// Returns failed writes as blockers, sorted so that the first, which is reported, is stable.
#[must_use]
pub fn failures(results: &WriteResults) -> Vec<Blocker> {
    let mut failed: Vec<Blocker> = results.iter().filter_map(failure).collect();
    failed.sort_by(|a, b| a.message.cmp(&b.message));
    failed
}

fn failure(result: &WriteResult) -> Option<Blocker> {
    if matches!(result.write, Write::DryRunCreate { .. }) && result.outcome.is_ok() {
        // Results of dry runs are planned on and reported as blockers by the plan.
        return None;
    }
    let target = result.write.target();
    let message = match &result.outcome {
        Ok(Outcome::Rejected(message)) => format!("{target}: {message}"),
        Err(error) => Chain(error).to_string(),
        Ok(Outcome::AlreadyExists) => format!("{target}: an object of this name already exists"),
        Ok(Outcome::Done(_) | Outcome::Conflict | Outcome::NotFound) => return None,
    };
    let (scope, reason): (BlockerScope, &'static EventReason) = match &result.write {
        Write::Create { .. } => (BlockerScope::Scaling, &reasons::SCALE_OUT_FAILED),
        Write::DryRunCreate { .. } => (BlockerScope::Updating, &reasons::TEMPLATE_REJECTED),
        Write::Delete { .. } => (BlockerScope::Scaling, &reasons::SCALE_IN_FAILED),
        Write::Patch { .. } if is_resize(&result.write) => {
            (BlockerScope::Updating, &reasons::RESIZE_REJECTED)
        }
        Write::Patch { .. } if is_growth(&result.write) => {
            (BlockerScope::Updating, &reasons::CLAIM_GROWTH_REJECTED)
        }
        Write::Patch { .. } => (BlockerScope::Updating, &reasons::UPDATE_FAILED),
    };
    Some(Blocker { scope, reason, message })
}

/// Returns whether the API server accepts a Pod; `None` if that is not known.
#[must_use]
pub fn dry_run_result(result: &WriteResult) -> Option<DryRunResult> {
    match &result.outcome {
        // The Pod to be deleted may still use the name and the quota.
        Ok(Outcome::Done(_) | Outcome::AlreadyExists) => Some(DryRunResult::Accepted),
        Ok(Outcome::Rejected(message)) if is_inconclusive(message) => Some(DryRunResult::Accepted),
        Ok(Outcome::Rejected(message)) => {
            Some(DryRunResult::Rejected { message: message.clone(), is_confirmed: false })
        }
        Ok(Outcome::Conflict | Outcome::NotFound) | Err(_) => None,
    }
}

/// Returns whether a rejected dry run does not predict the real create: the deleted Pod frees its
/// quota, and some webhooks reject every dry run.
fn is_inconclusive(message: &str) -> bool {
    message.contains("exceeded quota") || message.contains("does not support dry run")
}

/// Returns whether a write resizes a Pod.
#[must_use]
pub fn is_resize(write: &Write) -> bool {
    write.target().subresource == Some("resize")
}

/// Returns whether a write raises the storage of a PVC: no other changes its spec.
fn is_growth(write: &Write) -> bool {
    let Write::Patch { target, change: Change::Merge(body) } = write else { return false };
    target.resource == CLAIMS && !body["spec"].is_null()
}

/// Groups creates by kind and source, because the API server may reject one group
/// and accept another.
#[must_use]
pub fn group_by_source(creates: Vec<Write>) -> Vec<Vec<Write>> {
    let mut groups = BTreeMap::<(&str, PodSource), Vec<Write>>::new();
    for write in creates {
        let source = source_of(&write);
        groups.entry((write.target().resource.plural, source)).or_default().push(write);
    }
    groups.into_values().collect()
}

/// Returns the source of a new Pod; empty for other writes.
#[must_use]
pub fn source_of(write: &Write) -> PodSource {
    let (Write::Create { body, .. } | Write::DryRunCreate { body, .. }) = write else {
        return PodSource::default();
    };
    let metadata = &body["metadata"];
    let revision = metadata["labels"][well_known::REVISION].as_str().unwrap_or_default();
    let decorations = metadata["annotations"][well_known::DECORATIONS].as_str();
    PodSource { revision: revision.into(), decorations: AppliedDecorations::parse(decorations) }
}

/// Returns the instance of a new Pod; `None` for other writes.
#[must_use]
pub fn instance_of(write: &Write) -> Option<InstanceId> {
    let Write::Create { body, .. } = write else { return None };
    body["metadata"]["labels"][well_known::INSTANCE_ID].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use podops_client::write::{Change, PODS, Target};
    use serde_json::Value;

    use super::*;

    fn rejected(write: Write, message: &str) -> WriteResult {
        WriteResult { write, outcome: Ok(Outcome::Rejected(message.to_owned())), retry_after: None }
    }

    fn dry_run() -> Write {
        Write::DryRunCreate { target: Target::new(PODS, "ns", "web-1"), body: Value::Null }
    }

    fn patch(target: Target) -> Write {
        Write::Patch { target, change: Change::Merge(Value::Null) }
    }

    #[test]
    fn failures_are_sorted_and_classified() {
        let pod = |name| Target::new(PODS, "ns", name);
        let results = [
            rejected(patch(pod("b")), "no"),
            rejected(patch(pod("a").subresource("resize")), "too large"),
            rejected(dry_run(), "forbidden"),
        ];
        let failures = failures(&results.into_iter().collect());
        let text = |blocker: &Blocker| format!("{}: {}", blocker.reason.name, blocker.message);
        assert_eq!(
            failures.iter().map(text).collect::<Vec<_>>(),
            ["ResizeRejected: pods ns/a (resize): too large", "UpdateFailed: pods ns/b: no"]
        );
    }

    #[test]
    fn an_exceeded_quota_does_not_predict_a_rejection() {
        let result = |message| dry_run_result(&rejected(dry_run(), message)).unwrap();
        assert_eq!(result("pods is forbidden: exceeded quota: q"), DryRunResult::Accepted);
        let message = "denied".to_owned();
        assert_eq!(result("denied"), DryRunResult::Rejected { message, is_confirmed: false });
    }
}
