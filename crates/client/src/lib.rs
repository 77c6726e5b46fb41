//! Access to the API server, shared by the operators.
//!
//! Independent of the custom resources and their labels. The pure parts are at the root: writes as
//! data ([`write`](mod@write)) and their results ([`results`]), decoding ([`decode`]), cache
//! freshness ([`freshness`]), rate limits of status writes ([`status_throttle`]) and retry delays
//! ([`backoff`]). All I/O is in [`shell`], behind the feature of that name.

pub mod allow_list;
pub mod backoff;
pub mod decode;
pub mod error;
pub mod event;
pub mod freshness;
pub mod metric;
pub mod object_key;
pub mod pod_condition;
pub mod results;
pub mod status_throttle;
pub mod write;

#[cfg(feature = "shell")]
pub mod shell;
