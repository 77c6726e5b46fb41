//! Texts of parameters and groups for people: checked on request, and reported as warnings.

use std::str::FromStr;

use super::report::Report;
use crate::package::Package;

/// Check of the texts of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterCheck {
    /// The name for people.
    DisplayName,
    /// The hint.
    Hint,
    /// The description.
    Description,
    /// The type is set.
    Type,
    /// The parameter belongs to a group.
    Group,
    /// The texts of the groups.
    Groups,
    /// All of these.
    All,
}

/// Checks by their names on the command line.
const NAMES: [(&str, ParameterCheck); 7] = [
    ("display", ParameterCheck::DisplayName),
    ("hint", ParameterCheck::Hint),
    ("desc", ParameterCheck::Description),
    ("type", ParameterCheck::Type),
    ("hasgroup", ParameterCheck::Group),
    ("groups", ParameterCheck::Groups),
    ("all", ParameterCheck::All),
];

/// No check has the name.
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

/// What a text must be like.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// What the text is.
    name: &'static str,
    starts_with_capital: bool,
    /// Characters of which it ends with one; any if empty.
    ends_with: &'static str,
    /// Character with which it does not end.
    ends_not_with: Option<char>,
}

const PRESENT: Rule =
    Rule { name: "", starts_with_capital: false, ends_with: "", ends_not_with: None };
const DISPLAY_NAME: Rule = Rule {
    name: "display name",
    starts_with_capital: true,
    // A value follows it.
    ends_not_with: Some(':'),
    ..PRESENT
};
const HINT: Rule = Rule { name: "hint", ends_with: ".", ..PRESENT };
const DESCRIPTION: Rule =
    Rule { name: "description", starts_with_capital: true, ends_with: ".!?)", ..PRESENT };
const TYPE: Rule = Rule { name: "type", ..PRESENT };
const GROUP: Rule = Rule { name: "group", ..PRESENT };

impl Rule {
    /// Returns what is wrong with a text; `None` if nothing is.
    fn fault(&self, text: &str) -> Option<String> {
        let (text, name) = (text.trim(), self.name);
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

/// Warns about the texts of parameters and groups.
pub fn check_parameters(package: &Package, checks: &[ParameterCheck], report: &mut Report) {
    let is_wanted =
        |check: &ParameterCheck| checks.contains(check) || checks.contains(&ParameterCheck::All);
    for parameter in &package.parameters.parameters {
        let texts = [
            (ParameterCheck::DisplayName, DISPLAY_NAME, &parameter.display_name),
            (ParameterCheck::Hint, HINT, &parameter.hint),
            (ParameterCheck::Description, DESCRIPTION, &parameter.description),
            (ParameterCheck::Type, TYPE, &parameter.value_type),
            (ParameterCheck::Group, GROUP, &parameter.group),
        ];
        for (_, rule, text) in texts.iter().filter(|(check, ..)| is_wanted(check)) {
            if let Some(fault) = rule.fault(text) {
                report.warn(format!("parameter {:?}: {fault}", parameter.name));
            }
        }
    }
    for group in package.parameters.groups.iter().filter(|_| is_wanted(&ParameterCheck::Groups)) {
        let texts = [(DISPLAY_NAME, &group.display_name), (DESCRIPTION, &group.description)];
        for fault in texts.iter().filter_map(|(rule, text)| rule.fault(text)) {
            report.warn(format!("group {:?}: {fault}", group.name));
        }
    }
}
