//! Failures with an exit status of their own.

/// Exit status of any other failure.
pub const FAILED: u8 = 1;

/// Error with an exit status of its own.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The timeout of a wait expired.
    #[error("{0}")]
    TimedOut(String),
    /// A plan failed during the wait.
    #[error("{0}")]
    PlanFailed(String),
    /// A preview has differences, which were printed.
    #[error("there are differences")]
    Differences,
    /// A plan of a preview, which was printed, would not end or cannot be predicted.
    #[error("a plan would not end")]
    WouldNotEnd,
}

impl Failure {
    /// Returns the exit status.
    #[must_use]
    pub const fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::TimedOut(_) => 3,
            Self::PlanFailed(_) => 4,
            Self::Differences => 5,
            Self::WouldNotEnd => 6,
        }
    }
}
