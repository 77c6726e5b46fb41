//! Names of plans with a special meaning.

/// Plans for a change of the OperatorVersion; the first that exists runs.
pub(crate) const UPGRADE: [&str; 3] = ["upgrade", "update", "deploy"];
/// Plans for changed parameters without a trigger; the first that exists runs.
pub(crate) const UPDATE: [&str; 2] = ["update", "deploy"];
/// The plan of a new Instance.
pub const DEPLOY: &str = "deploy";
/// The plan of a deleted Instance.
pub const CLEANUP: &str = "cleanup";

/// Returns whether a plan rolls out the whole Instance.
#[must_use]
pub fn is_rollout(plan: &str) -> bool {
    UPGRADE.contains(&plan)
}
