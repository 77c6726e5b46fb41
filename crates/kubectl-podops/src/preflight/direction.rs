//! Direction of a switch.

/// Which of the two is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Podops replaces Kuperator.
    ToPodops,
    /// Kuperator replaces Podops.
    ToKuperator,
}
