//! What every operator needs and none should write twice.
//!
//! Knows no resource, label or word of the domain. At the root stand the pure parts: writes as data
//! ([`write`]), what has been written and seen ([`freshness`]), how long to wait ([`backoff`]).
//! Everything that talks to the world is in [`shell`], behind the feature of that name.

pub mod backoff;
pub mod freshness;
pub mod write;

#[cfg(feature = "shell")]
pub mod shell;
