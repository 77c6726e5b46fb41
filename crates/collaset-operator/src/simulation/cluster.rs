//! The API server under test, which can be made to reject writes.

use std::ops::{Deref, DerefMut};

use podops_client::write::{Outcome, Write};
use podops_simulated_api::Objects;

/// Objects of the namespace `ns`, and the writes that are rejected.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    objects: Objects,
    /// Image whose Pods are rejected on create, and the error message.
    pub(super) rejected_image: Option<(String, String)>,
    /// Name of an object of which every patch is rejected.
    pub(super) rejected_patches: Option<String>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self { objects: Objects::new("ns"), rejected_image: None, rejected_patches: None }
    }
}

impl Deref for Cluster {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.objects
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Objects {
        &mut self.objects
    }
}

impl Cluster {
    /// Applies a write as the API server would: it succeeds, conflicts or is rejected.
    pub(super) fn apply(&mut self, write: &Write) -> Outcome {
        match write {
            Write::Create { body, .. } | Write::DryRunCreate { body, .. } => {
                let image = body["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
                let rejection = self.rejected_image.as_ref().filter(|(name, _)| name == image);
                if let Some((_, message)) = rejection {
                    return Outcome::Rejected(message.clone());
                }
            }
            Write::Patch { target, .. } if self.rejected_patches.as_ref() == Some(&target.name) => {
                return Outcome::Rejected("patch rejected".to_owned());
            }
            Write::Patch { .. } | Write::Delete { .. } => {}
        }
        self.objects.apply(write)
    }
}
