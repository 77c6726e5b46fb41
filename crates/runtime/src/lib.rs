//! Shared runtime of the operators.
//!
//! Independent of the custom resources and their labels. The pure parts are at the root: writes as
//! data ([`write`](mod@write)), cache freshness ([`freshness`]) and retry delays ([`backoff`]). All
//! I/O is in [`shell`], behind the feature of that name.

pub mod backoff;
pub mod error;
pub mod event;
pub mod freshness;
pub mod metric;
pub mod write;

#[cfg(feature = "shell")]
pub mod shell;
