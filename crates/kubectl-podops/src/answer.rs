//! Requests that the API server has rejected.

use kube::{core::Status, runtime::watcher};

/// Status code of a request for an object that does not exist, or for a resource that is not
/// served.
const NOT_FOUND: u16 = 404;

/// Returns whether the object does not exist, or the resource is not served.
/// [`Status::is_not_found`] is false for the latter, whose answer has no reason.
#[must_use]
pub fn is_not_found(status: &Status) -> bool {
    status.code == NOT_FOUND
}

/// Returns the API server's answer to a list or watch that it has rejected.
#[must_use]
pub fn rejection(error: &watcher::Error) -> Option<&Status> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
    else {
        return None;
    };
    Some(status)
}
