//! Text output in KUDO's format.

mod output;

pub use self::output::{Format, UnknownFormat, list, object};
