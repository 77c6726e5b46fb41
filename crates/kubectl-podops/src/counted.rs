//! Numbers of things, in words.

/// A number and its noun: `1 Pod`, `2 Pods`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "Pod")), ["0 Pods", "1 Pod", "2 Pods"]);
    }
}
