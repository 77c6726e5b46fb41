//! Reasons for which a reconcile fails, and how each is retried.

use std::{error::Error, fmt, time::Duration};

use podops_client::{
    backoff::Kind,
    results::{UnfinishedWrites, WriteError, WriteResults},
    write::{Outcome, Target},
};

/// Error of a reconcile.
#[derive(Debug)]
pub struct ReconcileError {
    /// Cause of the error.
    pub cause: Cause,
    /// Upper limit of the backoff, if something else is due earlier.
    pub requeue_within: Option<Duration>,
}

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Error for ReconcileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

/// Cause of a failed reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A write got no response, or a server error.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Some of several writes must be retried.
    #[error(transparent)]
    Writes(#[from] UnfinishedWrites),
    /// The write of the status got no response, or a server error.
    #[error("failed to report the status")]
    Status(#[source] WriteError),
    /// The API server rejected a write; only an edit, a quota or a role helps.
    #[error("the API server rejected the write of {target}: {message}")]
    Rejected {
        /// Object that was to be written.
        target: Box<Target>,
        /// The API server's message.
        message: String,
    },
    /// Discovery of the served API resources failed.
    #[error("failed to discover the API")]
    Discovery(#[source] kube::Error),
    /// Objects could not be listed.
    #[error("failed to list {resource}")]
    List {
        /// Plural of the kind.
        resource: &'static str,
        /// Cause.
        source: kube::Error,
    },
    /// An object could not be read.
    #[error("failed to get {resource}")]
    Get {
        /// Plural of the kind.
        resource: &'static str,
        /// Cause.
        source: kube::Error,
    },
    /// A blocking task of the reconcile panicked.
    #[error("reconcile panicked")]
    Panic(#[source] tokio::task::JoinError),
    /// The reconcile took too long.
    #[error("reconcile timed out after {0:?}")]
    Timeout(Duration),
}

impl Cause {
    /// Returns the first rejected write, or else the first failed one.
    #[must_use]
    pub fn of_writes(results: WriteResults) -> Option<Self> {
        let mut failed = None;
        for result in results {
            match result.outcome {
                Ok(Outcome::Rejected(message)) => {
                    return Some(Self::rejected(result.write.target(), message));
                }
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(Self::Write(error))),
            }
        }
        failed
    }

    /// Value of the metric label `result`, from a closed set.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Write(_) | Self::Writes(_) => "write",
            Self::Status(_) => "status",
            Self::Rejected { .. } => "rejected",
            Self::Discovery(_) => "discovery",
            Self::List { .. } => "list",
            Self::Get { .. } => "get",
            Self::Panic(_) => "panic",
            Self::Timeout(_) => "timeout",
        }
    }

    /// Kind of failure, which determines the backoff.
    #[must_use]
    pub const fn retry(&self) -> Kind {
        match self {
            // The same input panics again.
            Self::Rejected { .. } | Self::Panic(_) => Kind::Rejected,
            Self::Write(_)
            | Self::Writes(_)
            | Self::Status(_)
            | Self::Discovery(_)
            | Self::List { .. }
            | Self::Get { .. }
            | Self::Timeout(_) => Kind::Transient,
        }
    }

    /// A rejected write.
    #[must_use]
    pub fn rejected(target: &Target, message: String) -> Self {
        Self::Rejected { target: Box::new(target.clone()), message }
    }

    /// The error, with the backoff limited to the time until something else is due.
    #[must_use]
    pub const fn requeue_within(self, requeue_within: Option<Duration>) -> ReconcileError {
        ReconcileError { cause: self, requeue_within }
    }
}

impl<C: Into<Cause>> From<C> for ReconcileError {
    fn from(cause: C) -> Self {
        Self { cause: cause.into(), requeue_within: None }
    }
}
