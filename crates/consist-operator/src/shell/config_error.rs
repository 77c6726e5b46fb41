//! Why the operator cannot start with its flags, or a task of it ended.

use std::path::PathBuf;

use podops_adapter::client::AddressError;

use crate::{
    backends::{alibaba_clb::InvalidAccount, external::InvalidAdapterFlag},
    employer::kind::{InvalidKind, InvalidKinds},
};

/// Why the operator cannot start, or a task of it ended.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A metric is registered twice.
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    /// A file that a flag names cannot be read.
    #[error("failed to read {path}")]
    ReadFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// `--employer-kinds` names a file with invalid content.
    #[error("invalid employer kinds in {path}")]
    InvalidKinds {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: Box<InvalidKinds>,
    },
    /// A kind of employers is invalid.
    #[error("invalid employer kind")]
    InvalidKind(#[from] InvalidKind),
    /// A kind of employers is not namespaced.
    #[error("employer kinds must be namespaced: {kind}")]
    NotNamespaced {
        /// API version and kind.
        kind: String,
    },
    /// `--default-backend` names no backend.
    #[error("--default-backend: unknown backend {name}")]
    UnknownBackend {
        /// Name in the flag.
        name: String,
    },
    /// The credentials of Alibaba Cloud are incomplete.
    #[error("invalid credentials of Alibaba Cloud")]
    AlibabaCloud(#[from] InvalidAccount),
    /// TLS for Alibaba Cloud cannot be initialized.
    #[error("failed to initialize TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An entry of `--adapters` has not the form `<namespace>/<adapter>=<address>`.
    #[error("--adapters: {flag}")]
    InvalidAdapter {
        /// The entry.
        flag: String,
        /// Cause.
        source: InvalidAdapterFlag,
    },
    /// An entry of `--adapters` has an invalid address.
    #[error("--adapters: {flag}")]
    InvalidAddress {
        /// The entry.
        flag: String,
        /// Cause.
        source: AddressError,
    },
    /// The xDS server's certificates are invalid.
    #[error("invalid xDS certificates")]
    XdsCertificates(#[source] tonic::transport::Error),
    /// The xDS server failed.
    #[error("xDS server failed")]
    XdsServer(#[source] tonic::transport::Error),
}
