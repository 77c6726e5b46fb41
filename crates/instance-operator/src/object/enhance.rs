//! Adds the operator's labels and annotations, namespace and owner to the objects of a package.

use serde_json::{Map, Value, json};

use super::{
    ObjectType, Scope, controller, hash, map_at, object_type, retention::outlives_instance, text,
};

/// Label `heritage=kudo` of every applied object.
pub const HERITAGE: (&str, &str) = ("heritage", "kudo");
/// Label with the name of the operator.
pub const OPERATOR: &str = "kudo.dev/operator";
/// Label with the name of the Instance.
pub const INSTANCE: &str = "kudo.dev/instance";
/// Annotation with the name of the plan that last changed the object.
pub const PLAN: &str = "kudo.dev/plan";
/// Annotation with the name of the phase that last changed the object.
pub const PHASE: &str = "kudo.dev/phase";
/// Annotation with the name of the step that last changed the object.
pub const STEP: &str = "kudo.dev/step";
/// Annotation with the identity of the run that last changed the object.
pub const RUN: &str = "kudo.dev/last-plan-execution-uid";
/// Annotation with the Instance's UID and the generation for which the object was last changed, as
/// `<uid>/<generation>`: an operator that has observed only an earlier generation does not revert
/// the change. Podops extension.
pub const GENERATION: &str = "kudo.dev/instance-generation";
/// Annotation of Pod templates with the version of the operator.
pub const OPERATOR_VERSION: &str = "kudo.dev/operator-version";

/// Annotations that differ with each run.
pub const OF_RUN: [&str; 5] = [PLAN, PHASE, STEP, RUN, GENERATION];

/// Instance and step that apply an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context<'a> {
    /// Namespace of the Instance.
    pub namespace: &'a str,
    /// Name of the Instance.
    pub instance: &'a str,
    /// UID of the Instance.
    pub instance_uid: &'a str,
    /// Generation of the Instance.
    pub generation: i64,
    /// Name of the operator.
    pub operator: &'a str,
    /// Version of the operator.
    pub operator_version: &'a str,
    /// Name of the plan.
    pub plan: &'a str,
    /// Name of the phase.
    pub phase: &'a str,
    /// Name of the step.
    pub step: &'a str,
    /// Identity of the run.
    pub run: &'a str,
}

/// The template of an object has another controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its template has the controller {kind} {name}, and an object has one controller only")]
pub struct ControllerConflict {
    /// Kind of the controller.
    pub kind: String,
    /// Name of the controller.
    pub name: String,
}

/// Adds labels and annotations; to a namespaced object also the namespace and the owner.
///
/// # Errors
///
/// [`ControllerConflict`] if a namespaced object has another controller.
pub fn enhance(
    object: &mut Value,
    scope: Scope,
    context: &Context<'_>,
) -> Result<(), ControllerConflict> {
    let object_type = object_type(object);
    let labels =
        [(HERITAGE.0, HERITAGE.1), (OPERATOR, context.operator), (INSTANCE, context.instance)];
    add(object, &["metadata", "labels"], &labels);
    annotate_run(object, context);
    for path in template_paths(&object_type).iter().copied() {
        // A missing Pod template is not created.
        if object.pointer(&format!("/{}", path.join("/"))).is_some_and(Value::is_object) {
            add(object, &[path, &["metadata", "labels"]].concat(), &labels);
            let version = [(OPERATOR_VERSION, context.operator_version)];
            add(object, &[path, &["metadata", "annotations"]].concat(), &version);
        }
    }
    if object_type.is("apps", "StatefulSet") {
        let claims = object.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
        for claim in claims.into_iter().flatten() {
            add(claim, &["metadata", "labels"], &labels);
        }
    }
    match scope {
        Scope::Namespaced => own(object, context),
        Scope::Cluster => Ok(()),
    }
}

/// Adds the annotations of the run.
pub fn annotate_run(object: &mut Value, context: &Context<'_>) {
    let generation = format!("{}/{}", context.instance_uid, context.generation);
    let of_run = [
        (PLAN, context.plan),
        (PHASE, context.phase),
        (STEP, context.step),
        (RUN, context.run),
        (GENERATION, &generation),
    ];
    add(object, &["metadata", "annotations"], &of_run);
}

/// Paths of the Pod templates of a type.
fn template_paths(object_type: &ObjectType) -> &'static [&'static [&'static str]] {
    match (object_type.group(), object_type.kind.as_str()) {
        ("apps", "StatefulSet" | "Deployment")
        | (_, "ReplicaSet" | "ReplicationController" | "DaemonSet")
        | ("batch", "Job") => &[&["spec", "template"]],
        ("batch", "CronJob") => &[&["spec", "jobTemplate", "spec", "template"]],
        _ => &[],
    }
}

/// Sets entries of a map, which is created if missing. A map with a value that is not a string is
/// not changed, as in KUDO.
fn add(object: &mut Value, path: &[&str], entries: &[(&str, &str)]) {
    let Some(map) = map_at(object, path) else { return };
    if map.values().all(Value::is_string) {
        map.extend(entries.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
    }
}

/// Moves an object to the namespace of the Instance, which becomes its controller unless the object
/// outlives it.
fn own(object: &mut Value, context: &Context<'_>) -> Result<(), ControllerConflict> {
    if let Some(other) = controller(object).filter(|o| o["uid"] != context.instance_uid) {
        let kind = text(other, "/kind").to_owned();
        let name = text(other, "/name").to_owned();
        return Err(ControllerConflict { kind, name });
    }
    let outlives = outlives_instance(&object_type(object), object);
    let owner = owner(context);
    let Some(metadata) = map_at(object, &["metadata"]) else { return Ok(()) };
    metadata.insert("namespace".to_owned(), json!(context.namespace));
    let owners = metadata.entry("ownerReferences").or_insert_with(|| json!([]));
    if let Some(owners) = owners.as_array_mut() {
        owners.retain(|known| known["uid"] != context.instance_uid);
        if !outlives {
            owners.push(owner);
        }
        if owners.is_empty() {
            metadata.remove("ownerReferences");
        }
    }
    Ok(())
}

/// Returns the owner reference to the Instance, as controller.
fn owner(context: &Context<'_>) -> Value {
    json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
        "name": context.instance, "uid": context.instance_uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Copies the live annotations of the last run to an object without other changes.
pub fn keep_run(object: &mut Value, live: &Value) {
    let known: Map<String, Value> = OF_RUN
        .iter()
        .filter_map(|key| {
            Some(((*key).to_owned(), live.pointer("/metadata/annotations")?.get(key)?.clone()))
        })
        .collect();
    if known.len() == OF_RUN.len()
        && let Some(annotations) = map_at(object, &["metadata", "annotations"])
    {
        annotations.extend(known);
    }
}

/// Copies the operator's annotations from the Pod template of the live Job: the template is
/// immutable, and a new version of the package alone must not run the Job again.
pub fn keep_job_template(job: &mut Value, live: &Value) {
    let known = live.pointer("/spec/template/metadata/annotations");
    let annotations = job.pointer_mut("/spec/template/metadata/annotations");
    let Some(annotations) = annotations.and_then(Value::as_object_mut) else { return };
    for key in [OPERATOR_VERSION, hash::DEPENDENCIES_HASH] {
        match known.and_then(|known| known.get(key)) {
            Some(value) => drop(annotations.insert(key.to_owned(), value.clone())),
            None => drop(annotations.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context<'static> {
        Context {
            namespace: "default",
            instance: "zk",
            instance_uid: "uid",
            generation: 3,
            operator: "zookeeper",
            operator_version: "0.1.0",
            plan: "deploy",
            phase: "nodes",
            step: "everything",
            run: "run",
        }
    }

    fn enhanced(mut object: Value) -> Value {
        enhance(&mut object, Scope::Namespaced, &context()).unwrap();
        object
    }

    fn labels() -> Value {
        json!({ "heritage": "kudo", "kudo.dev/operator": "zookeeper", "kudo.dev/instance": "zk" })
    }

    #[test]
    fn every_object_gets_labels_annotations_namespace_and_owner() {
        let object = enhanced(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "namespace": "other", "labels": { "a": "b" } },
        }));
        let metadata = &object["metadata"];
        assert_eq!(metadata["namespace"], "default");
        assert_eq!(metadata["labels"]["a"], "b");
        assert_eq!(metadata["labels"]["kudo.dev/instance"], "zk");
        let annotations = json!({
            "kudo.dev/plan": "deploy", "kudo.dev/phase": "nodes", "kudo.dev/step": "everything",
            "kudo.dev/last-plan-execution-uid": "run", "kudo.dev/instance-generation": "uid/3",
        });
        assert_eq!(metadata["annotations"], annotations);
        let owners = json!([{
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "name": "zk", "uid": "uid",
            "controller": true, "blockOwnerDeletion": true,
        }]);
        assert_eq!(metadata["ownerReferences"], owners);
        assert_eq!(object.as_object().unwrap().len(), 3, "nothing else is added");
        assert_eq!(enhanced(object.clone()), object, "a second time changes nothing");
    }

    #[test]
    fn an_object_that_outlives_the_instance_has_no_owner() {
        let kept = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "a", "annotations": { "kudo.dev/prune": "false" } },
        });
        let object = enhanced(kept);
        assert_eq!(object["metadata"]["labels"], labels());
        assert!(object["metadata"].get("ownerReferences").is_none());
    }

    #[test]
    fn cluster_scoped_objects_have_no_owner_and_no_namespace() {
        let mut role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "a" } });
        enhance(&mut role, Scope::Cluster, &context()).unwrap();
        assert_eq!(role["metadata"]["labels"], labels());
        assert!(role["metadata"].get("namespace").is_none());
        assert!(role["metadata"].get("ownerReferences").is_none());
    }

    #[test]
    fn pod_templates_and_claims_get_labels_and_the_version() {
        let version = json!({ "kudo.dev/operator-version": "0.1.0" });
        let kinds = [
            ("apps/v1", "StatefulSet"),
            ("apps/v1", "Deployment"),
            ("apps/v1", "DaemonSet"),
            ("apps/v1", "ReplicaSet"),
            ("v1", "ReplicationController"),
            ("batch/v1", "Job"),
        ];
        for (api_version, kind) in kinds {
            let spec = json!({ "template": { "spec": {} }, "selector": { "matchLabels": {} } });
            let object = enhanced(json!({
                "apiVersion": api_version, "kind": kind, "metadata": { "name": "a" }, "spec": spec,
            }));
            assert_eq!(object["spec"]["template"]["metadata"]["labels"], labels(), "{kind}");
            assert_eq!(object["spec"]["template"]["metadata"]["annotations"], version, "{kind}");
            assert_eq!(object["spec"]["selector"], json!({ "matchLabels": {} }), "{kind}");
        }
        let claims = json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
        let set = enhanced(
            json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {}, "spec": claims }),
        );
        assert_eq!(set["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"], labels());
        assert!(set["spec"].get("template").is_none());
    }

    /// K24: KUDO adds a `spec.template`, which the API server rejects.
    #[test]
    fn cron_jobs_get_no_template_of_their_own() {
        let spec = json!({ "jobTemplate": { "spec": { "template": {} } } });
        let job = enhanced(
            json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": spec }),
        );
        let template = &job["spec"]["jobTemplate"]["spec"]["template"];
        assert_eq!(template["metadata"]["labels"], labels());
        assert_eq!(job["spec"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn kinds_of_others_get_the_top_level_only() {
        let spec = json!({ "template": { "metadata": {} } });
        let object = enhanced(
            json!({ "apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {}, "spec": spec }),
        );
        assert_eq!(object["spec"], spec);
    }

    #[test]
    fn a_map_with_values_that_are_no_text_is_left_alone() {
        let object = enhanced(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "labels": { "a": 1 }, "annotations": null },
        }));
        assert_eq!(object["metadata"]["labels"], json!({ "a": 1 }));
        assert_eq!(object["metadata"]["annotations"].as_object().unwrap().len(), OF_RUN.len());
    }

    #[test]
    fn another_controller_is_an_error() {
        let owners = json!([{ "kind": "Job", "name": "b", "uid": "other", "controller": true }]);
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "ownerReferences": owners },
        });
        let error = enhance(&mut object, Scope::Namespaced, &context()).unwrap_err();
        assert!(error.to_string().contains("controller Job b"), "{error}");
    }

    #[test]
    fn annotations_of_the_last_run_are_kept_if_all_are_known() {
        let mut live = enhanced(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} }));
        let mut next = live.clone();
        next["metadata"]["annotations"][RUN] = json!("next");
        keep_run(&mut next, &live);
        assert_eq!(next, live);
        next["metadata"]["annotations"][RUN] = json!("next");
        live["metadata"]["annotations"].as_object_mut().unwrap().remove(PLAN);
        keep_run(&mut next, &live);
        assert_eq!(next["metadata"]["annotations"][RUN], "next");
    }
}
