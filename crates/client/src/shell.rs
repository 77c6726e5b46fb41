//! All parts with I/O.

pub mod clock;
pub mod metrics;
pub mod object_counts;

pub mod connect;
pub mod discovery;
pub mod read;

pub mod list;
pub mod store;
pub mod watch_backoff;

pub mod apply;
mod rejected_writes;

pub mod events;
