//! Admission certificates that are not renewed.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use serde::Deserialize as _;

use crate::{
    finding::Findings,
    installation::{Installation, Object},
};

/// End of the names of the Secrets with the certificates; the rest names their operator.
const SUFFIX: &str = "-admission";
/// Time to the expiry from which on the renewal has failed: operators renew 120 days before.
const LATE: SignedDuration = SignedDuration::from_hours(30 * 24);

pub(super) fn check(installation: &Installation, findings: &mut Findings) {
    for secret in installation.of("Secret") {
        let Some(operator) = secret.name.strip_suffix(SUFFIX) else { continue };
        let Some(expires) = expiry(secret) else { continue };
        let subject = format!("Certificate of {operator}");
        let remedy =
            format!("read the log of {operator}, and see the runbook PodopsCertificateExpiring");
        if expires <= installation.now {
            let message = format!("expired at {expires}: no request reaches its webhooks");
            findings.error(subject, &message, &remedy);
        } else if expires.duration_since(installation.now) < LATE {
            findings.warning(subject, &format!("expires at {expires} and is not renewed"), &remedy);
        }
    }
}

fn expiry(secret: &Object) -> Option<Timestamp> {
    let ByteString(bytes) = ByteString::deserialize(&secret.value["data"]["expires"]).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}
