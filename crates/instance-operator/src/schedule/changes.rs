//! Changes of an Instance's spec since the last scheduled plans.

use std::fmt;

use podops_api::kudo::InstanceStatus;

use super::invalid::Invalid;
use crate::{
    plan_names::{DEPLOY, UPDATE, UPGRADE},
    reasons,
    values::{self, SetValues, digest_in_force},
    view::{Observed, Version},
};

/// Differences between the spec and the observed input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// True if there is no observed input.
    is_new: bool,
    /// True if the Instance moves to another OperatorVersion.
    is_upgrade: bool,
    /// Parameters with another value, in the order of the OperatorVersion.
    changed: Vec<String>,
    /// New or changed parameters of the Instance that the OperatorVersion does not have.
    unknown: Vec<String>,
    /// Immutable parameters that are changed, or that an upgrade makes immutable and that have no
    /// value.
    immutable: Vec<String>,
}

impl Changes {
    pub(super) fn of(
        observed: &Observed,
        version: &Version,
        set: &SetValues,
        status: &InstanceStatus,
    ) -> Self {
        let Some(input) = &status.observed_input else {
            let unknown = set.keys().filter(|name| version.parameter(name).is_none());
            return Self { is_new: true, unknown: unknown.cloned().collect(), ..Self::default() };
        };
        let is_upgrade = input.operator_version != observed.version_key();
        let mut changes = Self { is_upgrade, ..Self::default() };
        for parameter in &version.spec.parameters {
            let name = &parameter.name;
            let before = digest_in_force(parameter, input.parameters.get(name));
            let now = digest_in_force(parameter, set.get(name).map(|set| &set.digest));
            let is_changed = before != now;
            if is_changed {
                changes.changed.push(name.clone());
            }
            let was_immutable = input.immutable.contains(name);
            let lacks_value = !set.contains_key(name) && !was_immutable;
            let is_wrong = if is_upgrade { lacks_value } else { is_changed };
            if parameter.immutable == Some(true) && is_wrong {
                changes.immutable.push(name.clone());
            }
        }
        let unknown = set.iter().filter(|(name, set)| {
            version.parameter(name).is_none() && input.parameters.get(*name) != Some(&set.digest)
        });
        changes.unknown = unknown.map(|(name, _)| name.clone()).collect();
        changes
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_new && !self.is_upgrade && self.changed.is_empty() && self.unknown.is_empty()
    }

    /// Validates the new spec.
    pub(super) fn check(
        &self,
        observed: &Observed,
        version: &Version,
        set: &SetValues,
    ) -> Result<(), Invalid> {
        let unknown = self
            .unknown
            .iter()
            .map(|name| format!("failed to find parameter {name:?} in the OperatorVersion"));
        let immutable = self.immutable.iter().map(|name| {
            if self.is_upgrade {
                format!("parameter '{name}' is immutable in the new OperatorVersion, so it needs a value in the Instance")
            } else {
                format!("parameter '{name}' is immutable but was changed")
            }
        });
        let mut messages: Vec<String> = unknown.chain(immutable).collect();
        messages.extend(values::invalid(version, observed, set));
        if messages.is_empty() {
            return Ok(());
        }
        Err(Invalid { reason: &reasons::PARAMETERS_INVALID, message: messages.join("; ") })
    }

    /// Returns the plans that are due, in the order in which they run.
    pub(super) fn plans(
        &self,
        version: &Version,
        is_deployed: bool,
    ) -> Result<Vec<String>, Invalid> {
        if self.is_new || !is_deployed {
            let Some(deploy) = version.first_plan(&[DEPLOY]) else {
                let message = "couldn't find 'deploy' plan in the operatorVersion".to_owned();
                return Err(Invalid { reason: &reasons::PLAN_INVALID, message });
            };
            return Ok(vec![deploy.to_owned()]);
        }
        let mut due = Vec::new();
        if self.is_upgrade {
            due.extend(version.first_plan(&UPGRADE).map(ToOwned::to_owned));
        }
        let default = version.first_plan(&UPDATE);
        for name in &self.changed {
            let trigger = version.parameter(name).map(|parameter| parameter.trigger.as_str());
            let trigger = trigger.filter(|trigger| !trigger.is_empty());
            if let Some(trigger) = trigger.filter(|t| !version.spec.plans.contains_key(*t)) {
                let message =
                    format!("parameter '{name}' triggers plan {trigger}, which does not exist");
                return Err(Invalid { reason: &reasons::PLAN_INVALID, message });
            }
            // An upgrade covers changed parameters without a trigger.
            let plan = trigger.or(default.filter(|_| !self.is_upgrade));
            let plan = plan.filter(|plan| !due.iter().any(|due| due == plan));
            due.extend(plan.map(ToOwned::to_owned));
        }
        Ok(due)
    }

    /// Returns whether the first due plan replaces a running rollout.
    pub(super) fn replaces_rollout(&self, is_deployed: bool) -> bool {
        self.is_new || self.is_upgrade || !is_deployed
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_new {
            return f.write_str("the Instance is new");
        }
        if self.is_upgrade {
            return f.write_str("the Instance moves to another OperatorVersion");
        }
        write!(f, "parameters changed: {}", self.changed.join(", "))
    }
}
