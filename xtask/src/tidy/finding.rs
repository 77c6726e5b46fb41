//! A violation that a rule finds.

/// One violation of a rule.
pub(super) struct Finding {
    /// Path from the repository's root, and the line where there is one: `<path>[:<line>]`.
    pub(super) place: String,
    /// The rule that is violated and the text to write instead.
    pub(super) message: String,
}
