//! Explains why a Pod does not have the updated revision of a PodDecoration that selects it.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::core::{Selector, SelectorExt as _};
use podops_api::{
    pod_decoration::{DecorationRollingUpdate, PodDecoration, PodDecorationStatus},
    well_known,
};

use super::{Cause, Facts, set};
use crate::pods::{label, labels};

/// Explains each PodDecoration whose updated revision the Pod does not have. Only Pods of CollaSets
/// are decorated.
pub(super) fn explain(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    if set::owner(facts, pod).is_none() {
        return Vec::new();
    }
    let decorations = facts.decorations.iter().filter(|decoration| {
        let selector = decoration.spec.selector.as_ref();
        decoration.metadata.deletion_timestamp.is_none()
            && selector.is_some_and(|selector| selects(selector, pod))
    });
    decorations.filter_map(|decoration| outdated(facts, decoration, pod)).collect()
}

fn outdated(facts: &Facts, decoration: &PodDecoration, pod: &Pod) -> Option<Cause> {
    let status = decoration.status.as_ref()?;
    let name = decoration.metadata.name.as_deref().unwrap_or_default();
    let updated = &status.updated_revision;
    let revision = label(pod, &format!("{}{name}", well_known::DECORATION_LABEL_PREFIX));
    let message = match revision {
        Some(revision) if revision == updated => return None,
        Some(revision) => {
            format!("it has revision {revision} of PodDecoration {name}, not {updated}")
        }
        None => format!("it has no revision of PodDecoration {name}, which selects it"),
    };
    let own = held(decoration, status, name, pod);
    let causes = if own.is_empty() { set::explain_wait(facts, pod) } else { own };
    Some(Cause::new(message).because(causes))
}

/// Returns the conditions and settings of the decoration that keep the Pod at its revision.
fn held(
    decoration: &PodDecoration,
    status: &PodDecorationStatus,
    name: &str,
    pod: &Pod,
) -> Vec<Cause> {
    let degraded = status.conditions.iter().filter(|c| c.type_ == "Degraded" && c.status == "True");
    let causes: Vec<Cause> = degraded.map(set::condition_cause).collect();
    if !causes.is_empty() {
        return causes;
    }
    let edit = format!("kubectl edit poddecoration {name}");
    match &decoration.spec.update_strategy.rolling_update {
        Some(DecorationRollingUpdate { selector: Some(selector), .. }) => {
            let cause = Cause::new("rollingUpdate.selector does not select it");
            let cause = cause.remedy(format!("label the Pod, or widen the selector: {edit}"));
            (!selects(selector, pod)).then_some(cause).into_iter().collect()
        }
        Some(DecorationRollingUpdate { partition: Some(partition @ 1..), .. }) => {
            let message = format!("rollingUpdate.partition keeps {partition} Pods");
            vec![Cause::new(message).remedy(format!("lower the partition: {edit}"))]
        }
        _ => Vec::new(),
    }
}

fn selects(selector: &LabelSelector, pod: &Pod) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(&labels(pod)))
}
