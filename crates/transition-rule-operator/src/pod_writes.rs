//! Selects the writes to Pods that are due. Pure.

use std::{collections::BTreeMap, time::Duration};

use podops_api::ids::PodName;
use podops_client::write::Write;

use crate::{
    namespace_state::{NamespaceState, Planned},
    plan::PodChange,
    render,
    view::PodView,
};

/// Maximum number of Pods that one reconcile writes. The remaining ones are written by the next.
const POD_WRITES_MAX: usize = 500;

/// Writes to Pods.
#[derive(Debug)]
pub struct PodWrites {
    /// Writes to send now.
    pub due: Vec<Write>,
    /// Time until the next ones are due; `None` if there are none.
    pub next_in: Option<Duration>,
}

/// Returns the writes to Pods that are due: grants and gates first, because operations wait for
/// them.
#[must_use]
pub fn pod_writes(namespace: &str, planned: &Planned, state: &mut NamespaceState) -> PodWrites {
    let Planned { observed, plan, now } = planned;
    let pods: BTreeMap<&PodName, &PodView> =
        observed.pods.iter().map(|pod| (&pod.name, pod)).collect();
    let mut changes: Vec<&PodChange> = plan.pods.iter().collect();
    changes.sort_by_key(|change| change.only_annotates());
    let mut writes = PodWrites { due: Vec::new(), next_in: None };
    for change in changes {
        if writes.due.len() == POD_WRITES_MAX {
            writes.next_in = Some(Duration::ZERO);
            break;
        }
        let wait = state.wait_before(change, now.instant);
        if !wait.is_zero() {
            writes.next_in = Some(writes.next_in.map_or(wait, |known| known.min(wait)));
        } else if let Some(pod) = pods.get(&change.pod) {
            writes.due.push(render::pod(namespace, pod, change, now.timestamp));
        }
    }
    writes
}
