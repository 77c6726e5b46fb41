//! Names of plans with a meaning.

/// Plans that run when an Instance moves to another OperatorVersion: the first that exists.
pub(crate) const UPGRADE: [&str; 3] = ["upgrade", "update", "deploy"];
/// Plans that run when parameters without trigger change: the first that exists.
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
