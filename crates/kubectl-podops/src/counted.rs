//! Numbers and names of objects, in words.

/// Maximum number of objects that are named.
const NAMED: usize = 3;

/// A number and its noun: `1 Pod`, `2 Pods`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The first names: `web-1, web-2, web-3`.
pub(crate) fn first_names(names: &[String]) -> String {
    names[..names.len().min(NAMED)].join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "Pod")), ["0 Pods", "1 Pod", "2 Pods"]);
    }
}
