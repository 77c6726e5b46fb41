//! Facts about one Instance that are not stored in the cluster. Pure.

use std::sync::Arc;

use podops_api::kudo::InstanceStatus;

use crate::{
    failures::Failures,
    pending_status::PendingStatus,
    run,
    view::{Observed, Version},
};

/// Facts about one Instance that are not stored in the cluster.
#[derive(Debug, Default)]
pub struct InstanceMemory {
    /// Status that the API server may not have stored yet.
    pub pending: Option<PendingStatus>,
    /// Reads and writes that failed.
    pub failures: Failures,
    /// OperatorVersion with which the current run started.
    pub version_of_run: Option<Arc<Version>>,
}

impl InstanceMemory {
    /// Keeps the content of the OperatorVersion with which the current run started.
    pub fn keep_version(&mut self, observed: &Observed, status: &InstanceStatus) {
        let Some(run) = run::running(status) else {
            self.version_of_run = None;
            return;
        };
        let version = observed.version.as_ref();
        if let Some(version) = version.filter(|v| v.identity == run.operator_version) {
            self.version_of_run = Some(version.clone());
        }
    }
}
