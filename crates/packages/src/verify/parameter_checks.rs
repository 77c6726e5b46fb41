//! Optional checks of the display texts of parameters and groups, reported as warnings.

use std::str::FromStr;

use super::report::Report;
use crate::package::Package;

/// Check of display texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterCheck {
    /// The display name.
    DisplayName,
    /// The hint.
    Hint,
    /// The description.
    Description,
    /// The type is set.
    Type,
    /// The parameter belongs to a group.
    Group,
    /// The display texts of the groups.
    Groups,
    /// All checks.
    All,
}

impl ParameterCheck {
    fn is_wanted(self, checks: &[Self]) -> bool {
        checks.contains(&self) || checks.contains(&Self::All)
    }
}

/// Checks by name on the command line.
const NAMES: [(&str, ParameterCheck); 7] = [
    ("display", ParameterCheck::DisplayName),
    ("hint", ParameterCheck::Hint),
    ("desc", ParameterCheck::Description),
    ("type", ParameterCheck::Type),
    ("hasgroup", ParameterCheck::Group),
    ("groups", ParameterCheck::Groups),
    ("all", ParameterCheck::All),
];

/// No check has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown parameter check: {0}, must be one of [{names}]",
    names = NAMES.map(|(name, _)| name).join(" ")
)]
pub struct UnknownCheck(String);

impl FromStr for ParameterCheck {
    type Err = UnknownCheck;

    fn from_str(text: &str) -> Result<Self, UnknownCheck> {
        let found = NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, check)| check).ok_or_else(|| UnknownCheck(text.to_owned()))
    }
}

/// Rule for a text.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Name of the text, for warnings.
    name: &'static str,
    starts_with_capital: bool,
    /// Allowed last characters; any if empty.
    ends_with: &'static str,
    /// Forbidden last character.
    ends_not_with: Option<char>,
}

const PRESENT: Rule =
    Rule { name: "", starts_with_capital: false, ends_with: "", ends_not_with: None };
const DISPLAY_NAME: Rule = Rule {
    name: "display name",
    starts_with_capital: true,
    // A value follows the name.
    ends_not_with: Some(':'),
    ..PRESENT
};
const HINT: Rule = Rule { name: "hint", ends_with: ".", ..PRESENT };
const DESCRIPTION: Rule =
    Rule { name: "description", starts_with_capital: true, ends_with: ".!?)", ..PRESENT };
const TYPE: Rule = Rule { name: "type", ..PRESENT };
const GROUP: Rule = Rule { name: "group", ..PRESENT };

impl Rule {
    /// Returns the violation of the rule; `None` if the text is valid.
    fn fault(&self, text: &str) -> Option<String> {
        let text = text.trim();
        let name = self.name;
        let (Some(first), Some(last)) = (text.chars().next(), text.chars().next_back()) else {
            return Some(format!("the {name} is missing"));
        };
        if self.starts_with_capital && !first.is_uppercase() {
            return Some(format!("the {name} does not start with a capital letter"));
        }
        if self.ends_not_with == Some(last) {
            return Some(format!("the {name} ends with '{last}'"));
        }
        let has_end = self.ends_with.is_empty() || self.ends_with.contains(last);
        (!has_end).then(|| format!("the {name} does not end with one of {}", self.ends_with))
    }
}

/// Checks the texts of parameters and groups; reports warnings.
pub fn check_parameters(package: &Package, checks: &[ParameterCheck], report: &mut Report) {
    for parameter in &package.parameters.parameters {
        let texts = [
            (ParameterCheck::DisplayName, DISPLAY_NAME, &parameter.display_name),
            (ParameterCheck::Hint, HINT, &parameter.hint),
            (ParameterCheck::Description, DESCRIPTION, &parameter.description),
            (ParameterCheck::Type, TYPE, &parameter.value_type),
            (ParameterCheck::Group, GROUP, &parameter.group),
        ];
        for (_, rule, text) in texts.iter().filter(|(check, ..)| check.is_wanted(checks)) {
            if let Some(fault) = rule.fault(text) {
                report.warn(format!("parameter {:?}: {fault}", parameter.name));
            }
        }
    }
    if !ParameterCheck::Groups.is_wanted(checks) {
        return;
    }
    for group in &package.parameters.groups {
        let texts = [(DISPLAY_NAME, &group.display_name), (DESCRIPTION, &group.description)];
        for fault in texts.iter().filter_map(|(rule, text)| rule.fault(text)) {
            report.warn(format!("group {:?}: {fault}", group.name));
        }
    }
}
