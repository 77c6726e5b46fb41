//! Failures with an exit status of their own.

/// Exit status of any other failure.
pub const FAILED: u8 = 1;

/// Why a command has failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments do not make sense.
    #[error("{0}")]
    Usage(String),
    /// What the command waited for has not happened in time.
    #[error("{0}")]
    TimedOut(String),
    /// The plan that the command waited for has failed.
    #[error("{0}")]
    PlanFailed(String),
    /// There are differences, which were shown.
    #[error("there are differences")]
    Differences,
}

impl Failure {
    /// Exit status.
    #[must_use]
    pub const fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::TimedOut(_) => 3,
            Self::PlanFailed(_) => 4,
            Self::Differences => 5,
        }
    }
}
