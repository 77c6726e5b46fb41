//! Chooses the instances that get the updated revision of a decoration with a partition.

use std::collections::BTreeSet;

use podops_api::ids::RevisionName;

use super::Instance;

/// Instance of a CollaSet that a decoration selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The instance.
    pub instance: Instance,
    /// Revision that its Pod has.
    pub applied: Option<RevisionName>,
    /// Revision that is recorded for it in the ResourceContext.
    pub recorded: Option<RevisionName>,
}

/// Returns the instances that get the updated revision: all but `partition`.
///
/// Instances that have it come first, then those that it is recorded for, then by instance ID. The
/// order depends on nothing that changes by itself, such as readiness, so that CollaSets that
/// decide at different times decide the same, and the Pods of one do not take the place of
/// another's.
#[must_use]
pub fn in_scope(
    mut candidates: Vec<Candidate>,
    updated: &RevisionName,
    partition: usize,
) -> BTreeSet<Instance> {
    let count = candidates.len().saturating_sub(partition);
    candidates.sort_by_cached_key(|candidate| {
        let is_updated = candidate.applied.as_ref() == Some(updated);
        let is_recorded = candidate.recorded.as_ref() == Some(updated);
        (!is_updated, !is_recorded, candidate.instance.clone())
    });
    candidates.into_iter().take(count).map(|candidate| candidate.instance).collect()
}

#[cfg(test)]
mod tests {
    use podops_api::ids::InstanceId;

    use super::*;

    fn candidate(id: i64, applied: &str) -> Candidate {
        let instance = Instance { id: InstanceId(id), set: "web".to_owned() };
        Candidate { instance, applied: Some(applied.into()), recorded: None }
    }

    fn held(candidates: &[Candidate], partition: usize) -> Vec<i64> {
        let chosen = in_scope(candidates.to_vec(), &"v2".into(), partition);
        let instances = candidates.iter().map(|candidate| &candidate.instance);
        instances.filter(|i| !chosen.contains(i)).map(|i| i.id.0).collect()
    }

    #[test]
    fn partition_holds_back_the_highest_instance_ids() {
        let equal = [candidate(1, "v1"), candidate(2, "v1"), candidate(10, "v1")];
        assert!(held(&equal, 0).is_empty());
        assert_eq!(held(&equal, 1), [10]);
        assert_eq!(held(&equal, 2), [2, 10]);
        assert_eq!(held(&equal, 5), [1, 2, 10]);
    }

    #[test]
    fn a_pod_with_the_updated_revision_keeps_its_place() {
        let third = [candidate(1, "v1"), candidate(2, "v1"), candidate(3, "v2")];
        assert_eq!(held(&third, 2), [1, 2]);
    }

    #[test]
    fn a_recreated_instance_keeps_its_place() {
        let mut candidates = [candidate(1, "v1"), candidate(2, "v1"), candidate(3, "v1")];
        candidates[1].applied = None;
        candidates[1].recorded = Some("v2".into());
        assert_eq!(held(&candidates, 2), [1, 3]);
    }
}
