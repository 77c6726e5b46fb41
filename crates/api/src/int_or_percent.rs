//! A number of Pods, or a share of them in percent: how all fields that take either are read.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The validation rule of a field that takes either: not below zero, no number beyond what a count
/// of replicas can be, nor more than all.
pub(crate) const RULE: &str = "type(self) == int ? self >= 0 && self <= 2147483647 : self.matches('^([0-9]|[1-9][0-9]|100)%$')";

/// Which way a share that is not a whole number of Pods is rounded. A CollaSet rounds the careful way:
/// what may be taken out of service down, what has to stay up. A PodTransitionRule rounds as
/// Kuperator does, so that a share of few Pods never forbids every operation: the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next smaller number.
    Down,
    /// To the next larger number.
    Up,
}

/// The number of Pods that a number or a share of `total` is; nothing readable, and nothing below
/// zero, is none.
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
    fn shares_are_rounded_the_careful_way() {
        let percent = |text: &str| IntOrString::String(text.to_owned());
        assert_eq!(resolve(&IntOrString::Int(7), 3, Rounding::Down), 7);
        assert_eq!(resolve(&percent("10%"), 15, Rounding::Down), 1);
        assert_eq!(resolve(&percent("10%"), 15, Rounding::Up), 2);
        assert_eq!(resolve(&percent("100%"), 15, Rounding::Down), 15);
        assert_eq!(resolve(&percent("many"), 15, Rounding::Up), 0);
        assert_eq!(resolve(&IntOrString::Int(-1), 15, Rounding::Up), 0);
    }
}
