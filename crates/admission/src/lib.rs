//! Admission webhook server of the operators: TLS, a self-managed certificate, secret paths.
//!
//! An operator calls [`start`] with a [`Handler`] for each webhook of its webhook configurations.

mod args;
mod certificate;
mod manager;
mod server;

pub use args::AdmissionArgs;
pub use server::{Answer, Handler, Handlers, METRICS, Verdict, Webhooks, start};
