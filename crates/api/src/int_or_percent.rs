//! Resolves fields that are a number of Pods or a percentage of them.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::Schema;
use serde_json::json;

/// Pattern of a percentage; a macro, because `concat!` takes no constants.
macro_rules! percentage {
    () => {
        "^([0-9]|[1-9][0-9]|100)%$"
    };
}

/// CEL validation rule of an int-or-percent field: a number from 0 to the largest number of
/// replicas, or a percentage up to 100%.
pub(crate) const RULE: &str = concat!(
    "type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('",
    percentage!(),
    "')"
);

/// Adds the bounds of [`RULE`] to the schema of an int-or-percent field in a list, where the
/// estimated cost of the rule would exceed the API server's limit: up to Kubernetes 1.33, the
/// estimate ignores `maxLength` of a field that may be a number.
pub(crate) fn bounds(schema: &mut Schema) {
    schema.insert("minimum".to_owned(), json!(0));
    schema.insert("maximum".to_owned(), json!(i32::MAX));
    schema.insert("pattern".to_owned(), json!(percentage!()));
}

/// Rounding of a percentage that is not a whole number of Pods.
///
/// A CollaSet rounds conservatively: `maxUnavailable` down, `partition` up. A PodTransitionRule
/// rounds the other way, as Kuperator does, so that a percentage of few Pods never blocks every
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next smaller number.
    Down,
    /// To the next larger number.
    Up,
}

/// Text that is neither a number of Pods nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a number of Pods nor a percentage from 0% to 100%")]
pub struct InvalidIntOrPercent;

/// Parses a number of Pods or a percentage of them.
///
/// # Errors
///
/// [`InvalidIntOrPercent`] if the text is neither, or out of range.
pub fn parse(text: &str) -> Result<IntOrString, InvalidIntOrPercent> {
    let percent = text.strip_suffix('%').and_then(|percent| percent.parse::<u8>().ok());
    if percent.is_some_and(|percent| percent <= 100) {
        return Ok(IntOrString::String(text.to_owned()));
    }
    let number: Option<i32> = text.parse().ok().filter(|number| *number >= 0);
    number.map(IntOrString::Int).ok_or(InvalidIntOrPercent)
}

/// Returns the number of Pods for a number or a percentage of `total`. Invalid and negative values
/// are 0.
#[must_use]
pub fn resolve(value: &IntOrString, total: usize, rounding: Rounding) -> usize {
    match value {
        IntOrString::Int(number) => usize::try_from(*number).unwrap_or_default(),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|p| p.parse::<usize>().ok());
            let hundredfold = total.saturating_mul(percent.unwrap_or_default());
            match rounding {
                Rounding::Down => hundredfold / 100,
                Rounding::Up => hundredfold.div_ceil(100),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_and_percentages_are_parsed() {
        assert_eq!(parse("25%"), Ok(IntOrString::String("25%".to_owned())));
        assert_eq!(parse("3"), Ok(IntOrString::Int(3)));
        for invalid in ["", "%", "101%", "-1", "-5%", "many"] {
            assert_eq!(parse(invalid), Err(InvalidIntOrPercent), "{invalid}");
        }
    }

    #[test]
    fn percentages_are_rounded_as_requested() {
        let percent = |text: &str| IntOrString::String(text.to_owned());
        assert_eq!(resolve(&IntOrString::Int(7), 3, Rounding::Down), 7);
        assert_eq!(resolve(&percent("10%"), 15, Rounding::Down), 1);
        assert_eq!(resolve(&percent("10%"), 15, Rounding::Up), 2);
        assert_eq!(resolve(&percent("100%"), 15, Rounding::Down), 15);
        assert_eq!(resolve(&percent("many"), 15, Rounding::Up), 0);
        assert_eq!(resolve(&IntOrString::Int(-1), 15, Rounding::Up), 0);
    }
}
