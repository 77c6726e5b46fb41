//! Keeps Pods and their traffic consistent: no Pod is operated on or deleted before its traffic was
//! observed to end, and none is available before its traffic was observed to start.
//!
//! Reads: Services labelled `kusionstack.io/control=true` and objects of configured kinds
//! (employers), the Pods that they select, EndpointSlices, traffic as reported by backends such as
//! HAProxy.
//! Writes: a finalizer, a condition and an annotation of those Pods, a finalizer and an annotation
//! of the employers, the registered endpoints of backends.
//! Owns: the finalizers `prot.podopslifecycle.kusionstack.io/<hash>` of its employers, and their
//! entries in `pod.kusionstack.io/available-conditions`.

pub mod backends;
pub mod config_error;
pub mod desired;
pub mod employer;
pub mod local_state;
pub mod metrics;
pub mod observe;
pub mod orphans;
pub mod plan;
pub mod policy;
pub mod reasons;
pub mod render;
pub mod report;
#[cfg(feature = "shell")]
pub mod shell;
pub mod traffic;
pub mod view;
