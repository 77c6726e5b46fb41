//! Results of a batch of writes. Pure: classified here, obtained by `shell::apply`.

use std::{error::Error, fmt, time::Duration};

use crate::write::{Outcome, Target, Write};

/// Failure of a write without an outcome: no response, or a server error. A retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {target}")]
pub struct WriteError {
    /// Object that was to be written.
    pub target: Box<Target>,
    /// Cause.
    pub source: Box<dyn Error + Send + Sync>,
}

/// A write, and the API server's response.
#[derive(Debug)]
pub struct WriteResult {
    /// The write. The body of a patch that succeeded is dropped.
    pub write: Write,
    /// Outcome, or why there is none.
    pub outcome: Result<Outcome, WriteError>,
    /// Time until a rejected write may be sent again; `None` for other outcomes.
    pub retry_after: Option<Duration>,
}

impl WriteResult {
    /// Returns whether the write succeeded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Ok(Outcome::Done(_)))
    }

    /// Returns the API server's message if it rejected the write.
    #[must_use]
    pub fn rejection(&self) -> Option<&str> {
        match &self.outcome {
            Ok(Outcome::Rejected(message)) => Some(message),
            Ok(
                Outcome::Done(_) | Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound,
            )
            | Err(_) => None,
        }
    }
}

/// Results of a batch of writes, in the order of the responses.
#[derive(Debug, Default)]
pub struct WriteResults(Vec<WriteResult>);

impl WriteResults {
    /// Iterates over the results.
    pub fn iter(&self) -> std::slice::Iter<'_, WriteResult> {
        self.0.iter()
    }

    /// Adds the results of another batch.
    pub fn extend(&mut self, results: Self) {
        self.0.extend(results.0);
    }

    /// Adds one result.
    pub fn push(&mut self, result: WriteResult) {
        self.0.push(result);
    }

    /// Returns whether all writes succeeded.
    #[must_use]
    pub fn all_done(&self) -> bool {
        self.iter().all(WriteResult::is_done)
    }

    /// Iterates over the rejected writes, with the API server's messages.
    pub fn rejected(&self) -> impl Iterator<Item = (&Write, &str)> {
        self.iter().filter_map(|result| Some((&result.write, result.rejection()?)))
    }

    /// Returns whether the API server received all writes and rejected none.
    #[must_use]
    pub fn none_failed(&self) -> bool {
        self.iter().all(|result| result.outcome.is_ok() && result.rejection().is_none())
    }

    /// Returns the time until the first of the rejected writes may be sent again; `None` if there
    /// are none.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.iter().filter_map(|result| result.retry_after).min()
    }

    /// Returns the writes that must be retried soon, because they failed and a retry may succeed;
    /// `None` if there are none.
    #[must_use]
    pub fn into_unfinished(self) -> Option<UnfinishedWrites> {
        let unfinished = self.0.into_iter().filter_map(|result| match result.outcome {
            Ok(Outcome::AlreadyExists) if !matches!(result.write, Write::DryRunCreate { .. }) => {
                Some(UnfinishedWrite::AlreadyExists(result.write.target().clone()))
            }
            Ok(_) => None,
            Err(error) => Some(UnfinishedWrite::Failed(error)),
        });
        let unfinished: Vec<UnfinishedWrite> = unfinished.collect();
        (!unfinished.is_empty()).then_some(UnfinishedWrites(unfinished))
    }
}

impl FromIterator<WriteResult> for WriteResults {
    fn from_iter<I: IntoIterator<Item = WriteResult>>(results: I) -> Self {
        Self(results.into_iter().collect())
    }
}

impl IntoIterator for WriteResults {
    type Item = WriteResult;
    type IntoIter = std::vec::IntoIter<WriteResult>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a WriteResults {
    type Item = &'a WriteResult;
    type IntoIter = std::slice::Iter<'a, WriteResult>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Writes of a batch that must be retried soon.
#[derive(Debug)]
pub struct UnfinishedWrites(Vec<UnfinishedWrite>);

/// Write that must be retried soon.
#[derive(Debug, thiserror::Error)]
enum UnfinishedWrite {
    /// The operator's own object will appear in the cache; for another client's object there will
    /// be no event.
    #[error("{0}: an object of this name already exists")]
    AlreadyExists(Target),
    #[error("{0}: {source}", source = .0.source)]
    Failed(WriteError),
}

impl fmt::Display for UnfinishedWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&writes.join("; "))
    }
}

impl Error for UnfinishedWrites {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{FieldValidation, PODS};

    fn result(create: bool, outcome: Outcome) -> WriteResult {
        let target = Target::new(PODS, "ns", "web-1");
        let body = serde_json::Value::Null;
        let write = if create {
            Write::Create { target, body, validation: FieldValidation::Strict }
        } else {
            Write::DryRunCreate { target, body }
        };
        WriteResult { write, outcome: Ok(outcome), retry_after: None }
    }

    fn results(result: WriteResult) -> WriteResults {
        [result].into_iter().collect()
    }

    #[test]
    fn a_create_whose_name_is_taken_is_retried() {
        let unfinished = results(result(true, Outcome::AlreadyExists)).into_unfinished().unwrap();
        let expected = "pods ns/web-1: an object of this name already exists";
        assert_eq!(unfinished.to_string(), expected);
        assert!(results(result(false, Outcome::AlreadyExists)).into_unfinished().is_none());
    }

    #[test]
    fn a_rejected_write_is_not_unfinished_and_is_retried_later() {
        let rejected = result(true, Outcome::Rejected("quota".to_owned()));
        let wait = Some(Duration::from_secs(5));
        let rejected = results(WriteResult { retry_after: wait, ..rejected });
        assert_eq!(rejected.retry_after(), wait);
        assert_eq!(rejected.rejected().map(|(_, message)| message).collect::<Vec<_>>(), ["quota"]);
        assert!(!rejected.all_done());
        assert!(!rejected.none_failed());
        assert!(rejected.into_unfinished().is_none());
    }

    #[test]
    fn a_conflict_is_neither_done_nor_retried() {
        let conflict = results(result(true, Outcome::Conflict));
        assert!(!conflict.all_done());
        assert!(conflict.none_failed());
        assert!(conflict.into_unfinished().is_none());
    }
}
