//! Reasons for which the operator cannot start with its flags, or one of its tasks failed.

use std::{net::SocketAddr, path::PathBuf};

use podops_adapter::client::AddressError;

use crate::{
    backends::{UnknownBackend, alibaba_clb::InvalidAccount, external::InvalidAdapterFlag},
    employer::kind::{InvalidKind, InvalidKinds},
};

/// Cause of another library.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Reasons for which the operator cannot start, or one of its tasks failed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A metric is registered twice.
    #[error("failed to register metrics")]
    Metrics(#[source] BoxError),
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
    #[error("--default-backend")]
    UnknownBackend(#[source] UnknownBackend),
    /// The credentials of Alibaba Cloud are incomplete.
    #[error("invalid credentials of Alibaba Cloud")]
    AlibabaCloud(#[from] InvalidAccount),
    /// TLS for Alibaba Cloud cannot be initialized.
    #[error("failed to initialize TLS")]
    Tls(#[source] BoxError),
    /// An entry of `--adapters` does not have the form `<namespace>/<adapter>=<address>`.
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
    /// The xDS server has neither certificates nor the permission to serve without.
    #[error(
        "--xds-address requires --xds-tls; on a network that only your Envoys reach, \
         --xds-insecure serves without TLS"
    )]
    XdsWithoutTls,
    /// The xDS server's certificates are invalid.
    #[error("invalid xDS certificates in {directory}")]
    XdsCertificates {
        /// Directory of the certificates.
        directory: PathBuf,
        /// Cause.
        source: BoxError,
    },
    /// The xDS server failed.
    #[error("failed to serve xDS on {address}")]
    XdsServer {
        /// Address of the server.
        address: SocketAddr,
        /// Cause.
        source: BoxError,
    },
}
