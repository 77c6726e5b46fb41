//! Text of errors with their sources.

use std::{error::Error, fmt};

use kube::core::Status;

/// Displays an error and its sources: `<error>: <source>: <source of the source>`. Of a response of
/// the API server, it displays the message.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next = Some(self.0);
        let mut separator = "";
        while let Some(error) = next {
            next = error.source();
            // kube's error repeats its source as text and as the debug output of Rust.
            if next.is_some_and(|source| status(source).is_some()) {
                continue;
            }
            match status(error) {
                Some(Status { message, .. }) => write!(f, "{separator}{message}")?,
                None => write!(f, "{separator}{error}")?,
            }
            separator = ": ";
        }
        Ok(())
    }
}

/// Response of the API server that an error is.
fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    error.downcast_ref::<Box<Status>>().map(AsRef::as_ref).or_else(|| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("failed to write {0}")]
    struct Failed(&'static str, #[source] Response);

    /// Has the text and the source of kube's error.
    #[derive(Debug, thiserror::Error)]
    #[error("ApiError: {0} ({0:?})")]
    struct Response(#[source] Box<Status>);

    #[test]
    fn responses_are_shown_by_their_message() {
        let status = Status::failure("quota is exceeded", "Forbidden").boxed();
        let failed = Failed("pods default/web", Response(status));
        let expected = "failed to write pods default/web: quota is exceeded";
        assert_eq!(Chain(&failed).to_string(), expected);
        assert_eq!(Chain(&failed.1).to_string(), "quota is exceeded");
    }
}
