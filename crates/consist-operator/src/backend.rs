//! What sends traffic to Pods. A backend is told what is wanted and says what it sees; when a Pod may go
//! or counts as available is not its to decide.

pub mod endpointslice;
pub mod haproxy;

use std::{collections::BTreeMap, future::Future, net::IpAddr, pin::Pin};

use serde_json::Value;

use crate::{plan::Want, view::Traffic};

/// An employer, as its backend knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Employer {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What its annotation tells the backend.
    pub params: Value,
}

/// What is wanted for a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its UID.
    pub uid: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// What is wanted.
    pub want: Want,
}

/// Why a backend says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was told what makes no sense; somebody has to edit the employer.
    #[error("{0}")]
    Params(String),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// It answers what cannot be understood.
    #[error("{0}")]
    Garbage(String),
}

impl Fault {
    /// The fault as metrics call it.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Params(_) => "params",
            Self::Unreachable(_) => "unreachable",
            Self::Garbage(_) => "garbage",
        }
    }
}

/// What was seen of each Pod that was asked about, by UID.
pub type Seen = BTreeMap<String, Traffic>;

/// What came of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// What was seen.
    pub seen: Seen,
    /// Why that is not all there is to be seen.
    pub fault: Option<Fault>,
}

impl From<Fault> for Pass {
    fn from(fault: Fault) -> Self {
        Self { seen: Seen::new(), fault: Some(fault) }
    }
}

/// A pass on its way.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Pass> + Send + 'a>>;

/// Something that sends traffic.
pub trait Backend: Send + Sync {
    /// Brings about what is wanted for *all* of an employer's Pods, as far as it can and it is not so
    /// yet, and then looks: what is returned was seen, never concluded from an acknowledgement. May be
    /// repeated, and may find that what was brought about before is lost.
    fn pass<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a>;
}
