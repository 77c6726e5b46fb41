//! What identifies an object of the API server.

use derive_more::{AsRef, Deref, Display, From};
use serde::Serialize;

/// UID of an object: unlike its name, never used again.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    From,
    Deref,
    AsRef,
    Serialize,
)]
#[from(String, &str)]
pub struct Uid(String);

/// `metadata.resourceVersion` of an object, the precondition of an optimistic write.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    From,
    Deref,
    AsRef,
    Serialize,
)]
#[from(String, &str)]
pub struct ResourceVersion(String);
