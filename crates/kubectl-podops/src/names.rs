//! The objects that an output is about, for `--output name`.

use std::collections::BTreeSet;

use podops_simulation::{Method, Prediction};

use crate::{
    explain::Explanation, finding::Findings, rollout::Revision, top::Top, trace::Trace, tree::Tree,
};

/// Something that is about objects.
pub trait Names {
    /// Names of the objects, as `<kind>/<name>`; of findings, their subjects.
    fn names(&self) -> Vec<String>;
}

fn pod(name: impl AsRef<str>) -> String {
    format!("pod/{}", name.as_ref())
}

/// The Pods of the CollaSet.
impl Names for Tree {
    fn names(&self) -> Vec<String> {
        let pods = self.revisions.iter().flat_map(|revision| &revision.pods);
        pods.map(|node| pod(&node.name)).collect()
    }
}

/// The Pods that wait.
impl Names for Top {
    fn names(&self) -> Vec<String> {
        self.waiting.iter().flat_map(|waiting| &waiting.pods).map(pod).collect()
    }
}

/// The explained object.
impl Names for Explanation {
    fn names(&self) -> Vec<String> {
        vec![self.subject.clone()]
    }
}

/// The existing Pods that change.
impl Names for Prediction {
    fn names(&self) -> Vec<String> {
        let changed = self
            .pods
            .iter()
            .filter(|prediction| !matches!(prediction.method, Method::None | Method::ScaleOut));
        changed.map(|prediction| pod(&prediction.pod)).collect()
    }
}

/// The Pod.
impl Names for Trace {
    fn names(&self) -> Vec<String> {
        vec![pod(&self.pod)]
    }
}

/// The subjects of the findings, each once.
impl Names for Findings {
    fn names(&self) -> Vec<String> {
        let subjects: BTreeSet<String> =
            self.0.iter().map(|finding| finding.subject.clone()).collect();
        subjects.into_iter().collect()
    }
}

/// The revisions.
impl Names for Vec<Revision> {
    fn names(&self) -> Vec<String> {
        self.iter().map(|revision| format!("controllerrevision.apps/{}", revision.name)).collect()
    }
}
