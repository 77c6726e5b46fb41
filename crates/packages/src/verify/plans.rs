//! Plans of a package.

use std::collections::BTreeMap;

use podops_api::kudo::{InstancePlan, RETRIES_MAX, parse_duration};

use super::report::{Report, duplicates};
use crate::package::Package;

/// Plan that every package must have.
const DEPLOY: &str = "deploy";

/// Verifies the names and limits in plans, and the plans that parameters trigger.
pub(super) fn verify(package: &Package, report: &mut Report) {
    let plans = &package.operator.plans;
    for parameter in &package.parameters.parameters {
        let plan = &parameter.trigger;
        let name = &parameter.name;
        if !plan.is_empty() && !plans.contains_key(plan) {
            report.error(format!("plan {plan:?} used in parameter {name:?} is not defined"));
        }
    }
    if !plans.contains_key(DEPLOY) {
        report.error("an operator is required to have 'deploy' plan");
    }
    for duplicate in duplicate_names(plans) {
        report.error(duplicate);
    }
    for (plan, content) in plans {
        verify_limits(plan, content, report);
    }
}

/// Verifies the timeouts of a plan and its steps, and the number of retries.
fn verify_limits(name: &str, plan: &InstancePlan, report: &mut Report) {
    if !is_limit(&plan.timeout) {
        report.error(format!("timeout {:?} of plan {name:?} is no duration", plan.timeout));
    }
    for phase in &plan.phases {
        for step in &phase.steps {
            let subject =
                format!("step {:?} of phase {:?} of plan {name:?}", step.name, phase.name);
            if !is_limit(&step.timeout) {
                report.error(format!("timeout {:?} of {subject} is no duration", step.timeout));
            }
            if step.retries > RETRIES_MAX {
                report.error(format!("{} retries of {subject} exceed {RETRIES_MAX}", step.retries));
            }
        }
    }
}

fn is_limit(text: &str) -> bool {
    text.is_empty() || parse_duration(text).is_some()
}

/// Returns the duplicate names of phases and steps: the status of a step is found by name.
pub(super) fn duplicate_names(plans: &BTreeMap<String, InstancePlan>) -> Vec<String> {
    let mut found = Vec::new();
    for (plan, content) in plans {
        for name in duplicates(content.phases.iter().map(|phase| phase.name.as_str())) {
            found.push(format!("phase {name:?} of plan {plan:?} has a duplicate"));
        }
        for phase in &content.phases {
            for name in duplicates(phase.steps.iter().map(|step| step.name.as_str())) {
                found.push(format!(
                    "step {name:?} of phase {:?} of plan {plan:?} has a duplicate",
                    phase.name
                ));
            }
        }
    }
    found
}
