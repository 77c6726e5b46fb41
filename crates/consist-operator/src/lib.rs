//! Keeps Pods and the traffic that is sent to them in agreement: no Pod is operated on or deleted until
//! its traffic was seen to be gone, and none is available until its traffic was seen to flow.
//!
//! Reads: Services labelled `kusionstack.io/control=true`, the Pods that they select, EndpointSlices; what
//! backends such as HAProxy say. Writes: a finalizer and one annotation of those Pods, a finalizer of those
//! Services; what backends send where. Owns: finalizers
//! `prot.podopslifecycle.kusionstack.io/<hash>` of its employers, and their entries in
//! `pod.kusionstack.io/available-conditions`.

pub mod view;

pub mod policy;

pub mod plan;

pub mod render;

#[cfg(feature = "shell")]
pub mod backend;
#[cfg(feature = "shell")]
pub mod shell;
