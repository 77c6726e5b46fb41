//! Admission webhook for new Pods: adds the readiness gate. Sends no requests.

use podops_admission::{Handler, Handlers, Verdict};

use crate::readiness_gate::missing_gate;

/// Name of the webhook in `deploy/components/readiness-gate-webhook`.
const WEBHOOK: &str = "mutating-pod.apps.kusionstack.io";

/// Returns the handlers by webhook name.
pub(super) fn handlers() -> Handlers {
    let handler: Handler = Box::new(|request| {
        let gate = request.object.as_ref().and_then(|pod| missing_gate(&pod.data["spec"]));
        let verdict = gate.map_or(Verdict::Allow, |patch| Verdict::Mutate(patch.into()));
        Box::pin(std::future::ready(verdict))
    });
    Handlers::from([(WEBHOOK, handler)])
}
