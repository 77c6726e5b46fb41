//! Shortens lists of messages.

/// Number of objects that a message names.
const NAMED: usize = 3;

/// Returns the first messages, and the number of further messages.
#[must_use]
pub fn first_of(messages: &[String]) -> String {
    let named = messages.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match messages.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}, and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_bounded() {
        let messages: Vec<String> = ["a", "b", "c", "d", "e"].map(ToOwned::to_owned).to_vec();
        assert_eq!(first_of(&messages), "a, b, c, and 2 more");
        assert_eq!(first_of(&messages[..3]), "a, b, c");
    }
}
