//! Errors of webhook requests.

use std::time::Duration;

/// Maximum size of a response body, in bytes.
pub const RESPONSE_MAX: usize = 64 * 1024;

/// Maximum size of a request body, in bytes.
pub const REQUEST_MAX: usize = 1 << 20;

/// Error of one webhook request. Statuses and events contain these texts only: no part of an
/// invalid response is copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// The URL cannot be called.
    #[error("webhook URL is not an http or https address")]
    Address,
    /// Rules must not call the address.
    #[error("webhook address is not allowed (loopback, link-local or cloud metadata)")]
    Forbidden,
    /// The operator's flag does not allow the host for the rule's namespace.
    #[error("webhook host is not allowed for this namespace by the operator's --webhook-hosts")]
    HostNotAllowed,
    /// The CA bundle of the rule is invalid.
    #[error("webhook caBundle is not base64-encoded PEM")]
    CaBundle,
    /// The connection failed.
    #[error("webhook cannot be reached")]
    Unreachable,
    /// The service did not respond within this time.
    #[error("webhook timed out after {}s", .0.as_secs())]
    Timeout(Duration),
    /// The service returned this HTTP status.
    #[error("webhook returned HTTP status {0}")]
    Status(u16),
    /// The parameters of one Pod are larger than [`REQUEST_MAX`].
    #[error("webhook parameters of a Pod are larger than {} MiB", REQUEST_MAX >> 20)]
    RequestTooLarge,
    /// The response is larger than [`RESPONSE_MAX`].
    #[error("webhook response is larger than {} KiB", RESPONSE_MAX / 1024)]
    TooLarge,
    /// The response is not of the protocol.
    #[error("webhook response is invalid")]
    Invalid,
}

impl WebhookError {
    /// Value of the metric label `result`.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Forbidden => "forbidden",
            Self::HostNotAllowed => "host_not_allowed",
            Self::CaBundle => "ca_bundle",
            Self::Unreachable => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Status(_) => "status",
            Self::RequestTooLarge => "request_too_large",
            Self::TooLarge => "response_too_large",
            Self::Invalid => "invalid_response",
        }
    }
}
