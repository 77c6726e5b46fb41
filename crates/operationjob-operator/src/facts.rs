//! Keys of the further facts of a target, `extraInfo` in the status of a job.

/// The Pod that took over from it.
pub const NEW_POD: &str = "NewPod";
/// The instance ID of the Pod that took over.
pub const NEW_INSTANCE: &str = "NewInstanceID";
/// UID of the Pod when the operation started.
pub const POD_UID: &str = "UID";
/// UID of the Pod's controller.
pub const OWNER: &str = "Owner";
/// instance ID of the Pod.
pub const INSTANCE: &str = "InstanceID";
/// How the operation is carried out.
pub const METHOD: &str = "Method";
/// Event for which the operation waits.
pub const WAITING: &str = "Waiting";
/// `true` once a failed or cancelled operation has left the Pod.
pub const RELEASED: &str = "Released";
/// Reason for which a new Pod of a replacement is not replaced itself.
pub const NOT_ALLOWED: &str = "NotAllowedToReplaceNewPod";
