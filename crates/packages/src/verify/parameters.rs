//! Parameters of a package.

use std::collections::BTreeSet;

use podops_api::kudo::Parameter;

use super::report::{Report, duplicates};
use crate::{package::Package, values};

/// Verifies the names.
pub(super) fn names(package: &Package, report: &mut Report) {
    let mut known = BTreeSet::new();
    for parameter in &package.parameters.parameters {
        let name = &parameter.name;
        if !known.insert(name.to_lowercase()) {
            report.error(format!("parameter {name:?} has a duplicate"));
        }
        if let Some(character) = name.chars().find(|character| [';', ','].contains(character)) {
            report.error(format!("parameter {name:?} contains invalid character '{character}'"));
        }
    }
}

/// Verifies defaults, allowed values and groups. `converted` are the same parameters in the
/// OperatorVersion.
pub(super) fn values(package: &Package, converted: &[Parameter], report: &mut Report) {
    for (parameter, converted) in package.parameters.parameters.iter().zip(converted) {
        let name = &parameter.name;
        let has_default = !parameter.default.is_null();
        let is_required = parameter.required.unwrap_or(true);
        if parameter.immutable == Some(true) && !is_required && !has_default {
            report.error(format!(
                "parameter {name:?} is immutable but is not marked as required or has a default value"
            ));
        }
        if parameter.sensitive && has_default {
            report.error(format!(
                "parameter {name:?} is sensitive and has a default value, which is stored in clear"
            ));
        }
        let allowed = converted.allowed_values.as_deref();
        match allowed {
            Some([]) => {
                report.error(format!("parameter {name:?} is an enum but has no allowed values"));
            }
            Some(allowed) => {
                for value in allowed {
                    if let Err(why) = values::check(value, &converted.value_type, None) {
                        report
                            .error(format!("parameter {name:?} has an invalid enum value: {why}"));
                    }
                }
            }
            None => {}
        }
        if let Some(default) = converted.default.as_deref().filter(|_| has_default)
            && let Err(why) = values::check(default, &converted.value_type, allowed)
        {
            report.error(format!("parameter {name:?} has an invalid default value: {why}"));
        }
        if parameter.advanced && is_required && !has_default {
            report.error(format!(
                "parameter {name:?} is advanced and required, but has no default value"
            ));
        }
    }
    groups(package, report);
}

fn groups(package: &Package, report: &mut Report) {
    let groups = &package.parameters.groups;
    for group in groups.iter().filter(|group| group.name.contains('/')) {
        report.error(format!("group {:?} contains invalid character '/'", group.name));
    }
    for name in duplicates(groups.iter().map(|group| group.name.as_str())) {
        report.error(format!("group {name:?} has a duplicate"));
    }
    for parameter in &package.parameters.parameters {
        let group = &parameter.group;
        if !group.is_empty() && !groups.iter().any(|known| known.name == *group) {
            report
                .error(format!("group {group:?} of parameter {:?} is not defined", parameter.name));
        }
    }
}
