//! Names of the artifacts of Pipe tasks, which are known before they exist.

use std::collections::BTreeMap;

use podops_api::kudo::artifact_part;

use super::context::{TaskContext, TaskPath};

/// Returns the name of a Pipe task's Secret or ConfigMap with this key, or of its Pod for the
/// suffix `pipepod`.
#[must_use]
pub fn name(instance: &str, path: &TaskPath<'_>, suffix: &str) -> String {
    let parts = [instance, path.plan, path.phase, path.step, path.task, suffix];
    parts.map(artifact_part).join(".")
}

/// Names of the artifacts of all Pipe tasks of the running plan, by key.
pub(super) fn names(context: &TaskContext<'_>) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let plan = context.path.plan;
    let phases = context.version.spec.plans.get(plan).map(|plan| &plan.phases);
    for phase in phases.into_iter().flatten() {
        for step in &phase.steps {
            for task in step.tasks.iter().filter_map(|name| context.version.task(name)) {
                let path =
                    TaskPath { plan, phase: &phase.name, step: &step.name, task: &task.name };
                let artifacts = task.spec.pipe.iter().map(|file| &file.key);
                names.extend(
                    artifacts.map(|key| (key.clone(), name(&context.observed.name, &path, key))),
                );
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_letters_and_digits_only() {
        let path = TaskPath { plan: "deploy", phase: "My-Phase", step: "gen_1", task: "Certs" };
        assert_eq!(name("kafka", &path, "Key_A"), "kafka.deploy.myphase.gen1.certs.keya");
    }
}
