//! Tests of the planner: a CollaSet and its Pods as text in, the text of the plan out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::{
    collaset::{
        ByLabel, ByPartition, CollaSetSpec, NamingStrategy, PodNamingSuffixPolicy,
        PodUpgradePolicy, RollingUpdate, ScaleStrategy,
    },
    ids::{InstanceId, PodName, RevisionName, Uid},
    lifecycle::LabelKind,
    resource_context::ContextDetail,
    template::PodTemplate,
};
use serde_json::{Value, json};

use super::*;
use crate::view::{
    Container, ContainerReport, ContextsView, DryRunResult, PodView, RevisionView, instance_id,
    revision_name,
};

mod claims;
mod decorations;
mod failures;
mod limits;
mod membership;
mod replace;
mod revision;
mod scale;
mod update;

fn template(image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": image }] } })
}

fn revision(name: &str, number: i64, image: &str) -> RevisionView {
    let mut template = template(image);
    template["$patch"] = json!("replace");
    RevisionView {
        name: name.into(),
        revision: number,
        data: json!({ "spec": { "template": template } }),
        ..RevisionView::default()
    }
}

fn revisions_by_name(
    revisions: impl IntoIterator<Item = RevisionView>,
) -> BTreeMap<RevisionName, RevisionView> {
    revisions.into_iter().map(|revision| (revision.name.clone(), revision)).collect()
}

fn pods_by_name(pods: impl IntoIterator<Item = PodView>) -> BTreeMap<PodName, Arc<PodView>> {
    pods.into_iter().map(|pod| (pod.name.clone(), Arc::new(pod))).collect()
}

/// Parses a Pod: `<id> <revision> [ready] [<operation type>[:permitted]]
/// [deleting|failed|included|to-delete|…]`, and for replacements `[by=<new ID>] [of=<origin's ID>]
/// [for=<revision>]`.
fn pod(text: &str) -> PodView {
    let mut tokens = text.split_whitespace();
    let id = tokens.next().unwrap();
    let revision = tokens.next().unwrap();
    let mut pod = PodView {
        name: format!("web-{id}").into(),
        containers: vec![Container {
            name: "c".to_owned(),
            image: revision.to_owned(),
            ..Container::default()
        }],
        reports: vec![ContainerReport {
            name: "c".to_owned(),
            image_id: format!("id-{revision}"),
            ..ContainerReport::default()
        }],
        ..PodView::default()
    };
    let labels = &mut pod.labels;
    let mut label = |key: &str, value: &str| drop(labels.insert(key.to_owned(), value.to_owned()));
    label("app", "web");
    label(well_known::CONTROL, well_known::CONTROL_ON);
    label(well_known::INSTANCE_ID, id);
    label(well_known::REVISION, revision);
    for token in tokens {
        match token.split_once('=') {
            Some(("by", id)) => label(well_known::REPLACE_PAIR_NEW_ID, id),
            Some(("of", id)) => label(well_known::REPLACE_PAIR_ORIGIN_NAME, &format!("web-{id}")),
            Some(("for", revision)) => label(well_known::REPLACED_BY_REPLACE_UPDATE, revision),
            _ => {}
        }
        if token.contains('=') {
            continue;
        }
        let (kind, is_permitted) =
            token.split_once(':').map_or((token, false), |(kind, _)| (kind, true));
        match kind {
            "ready" => pod.ready = Some(Timestamp::UNIX_EPOCH),
            "deleting" => pod.deleting = true,
            "failed" => pod.terminal = true,
            "included" => label(well_known::UPDATE_INCLUDED, "1"),
            "to-delete" => label(well_known::TO_DELETE, "1"),
            "unselected" => label("app", "other"),
            "available" => label(well_known::SERVICE_AVAILABLE, "1"),
            "to-replace" => label(well_known::TO_REPLACE, "1"),
            "to-exclude" => label(well_known::TO_EXCLUDE, "1"),
            "cancelled" => label(&LabelKind::UndoOperationType.key("collaset"), "update"),
            "restarting" => {
                let last_status =
                    r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2"}}}"#;
                pod.annotations = Some(BTreeMap::from([(
                    well_known::LAST_POD_STATUS.to_owned(),
                    last_status.to_owned(),
                )]));
            }
            kind => {
                label(&LabelKind::Operating.key("collaset"), "1");
                label(&LabelKind::OperationType.key("collaset"), kind);
                if is_permitted {
                    label(&LabelKind::Operate.key("collaset"), "1");
                }
            }
        }
    }
    // As parsed by the shell.
    pod.instance = instance_id(&pod.labels);
    pod.revision = revision_name(&pod.labels);
    pod
}

/// A CollaSet rolled out at revision v1 (image v1), with its spec changed by `edit` and these Pods,
/// separated by commas. Its ResourceContext has one instance ID per replica, at v1.
fn observed(replicas: i32, pods: &str, edit: impl FnOnce(&mut CollaSetSpec)) -> Observed {
    let mut spec = CollaSetSpec {
        replicas: Some(replicas),
        template: serde_json::from_value(template("v1")).unwrap(),
        history_limit: 20,
        ..CollaSetSpec::default()
    };
    spec.selector.match_labels = Some(BTreeMap::from([("app".to_owned(), "web".to_owned())]));
    edit(&mut spec);
    let pods: Vec<PodView> = pods.split(", ").filter(|p| !p.is_empty()).map(pod).collect();
    let pod_ids = pods.iter().filter_map(|pod| pod.instance);
    let ids: BTreeSet<InstanceId> =
        pod_ids.chain((0..i64::from(replicas)).map(InstanceId)).collect();
    let entry = |id| {
        let pod = pods.iter().find(|pod| pod.instance == Some(id));
        let revision = pod.map_or_else(|| "v1".to_owned(), |pod| pod.revision.to_string());
        let data = [
            (well_known::context::OWNER, "web".to_owned()),
            (well_known::context::REVISION, revision),
        ];
        ContextDetail { id, data: data.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() }
    };
    let mut observed = Observed {
        name: "web".to_owned(),
        finalizers: vec![well_known::PRE_RECLAIM.to_owned()],
        revisions: revisions_by_name([revision("v1", 1, "v1"), revision("v2", 2, "v2")]),
        dry_runs: ["v1", "v2"]
            .map(|name| (RevisionName::from(name).into(), DryRunResult::Accepted))
            .into(),
        contexts: Some(ContextsView {
            entries: ids.into_iter().map(entry).collect(),
            ..ContextsView::default()
        }),
        spec,
        pods: pods_by_name(pods),
        ..Observed::default()
    };
    if observed.spec.template == serde_json::from_value::<PodTemplate>(template("v1")).unwrap() {
        observed.revisions.remove(&RevisionName::from("v2"));
    }
    observed.status.current_revision = "v1".to_owned();
    observed
}

fn revision_mut<'a>(observed: &'a mut Observed, name: &str) -> &'a mut RevisionView {
    observed.revisions.get_mut(&RevisionName::from(name)).unwrap()
}

fn pod_mut<'a>(observed: &'a mut Observed, name: &str) -> &'a mut PodView {
    Arc::make_mut(observed.pods.get_mut(&PodName::from(name)).unwrap())
}

/// Changes the template to image v2.
fn to_v2(spec: &mut CollaSetSpec) {
    spec.template = serde_json::from_value(template("v2")).unwrap();
}

#[allow(clippy::unnecessary_wraps, reason = "type of the field")]
fn rolling(partition: Option<i32>, by_label: bool) -> Option<RollingUpdate> {
    let by_partition = partition.map(|p| ByPartition { partition: Some(IntOrString::Int(p)) });
    Some(RollingUpdate {
        by_partition,
        by_label: by_label.then_some(ByLabel {}),
        ..RollingUpdate::default()
    })
}

/// Text of the planned actions, without the ResourceContext.
fn action_text(observed: &Observed) -> String {
    let plan = plan(observed, Timestamp::from_second(100).unwrap());
    let actions = plan.actions.iter().filter(|a| !matches!(a, Action::WriteInstances(_)));
    actions.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Plans for a CollaSet (see [`observed`]) and compares the text of the actions.
#[track_caller]
fn check(replicas: i32, pods: &str, edit: impl FnOnce(&mut CollaSetSpec), expected: &str) {
    assert_eq!(action_text(&observed(replicas, pods, edit)), expected);
}

/// Changes the scale strategy of a spec.
fn strategy(edit: impl FnOnce(&mut ScaleStrategy)) -> impl FnOnce(&mut CollaSetSpec) {
    move |spec| edit(spec.scale_strategy.get_or_insert_default())
}

/// Pod names of these instance IDs.
fn list(ids: &[i64]) -> Vec<String> {
    ids.iter().map(|id| format!("web-{id}")).collect()
}

#[test]
fn a_rolled_out_set_needs_no_writes() {
    let observed = observed(2, "0 v1 ready, 1 v1 ready", |_| ());
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
}

#[test]
fn a_deleted_set_removes_its_finalizer_after_its_pods() {
    let mut deleted = observed(1, "0 v1 ready, 1 v1 to-delete", |_| ());
    deleted.deleting = true;
    assert_eq!(action_text(&deleted), "to-delete web-0");
    deleted.pods.clear();
    assert_eq!(plan(&deleted, Timestamp::UNIX_EPOCH).to_string(), "instances [], remove-finalizer");
}

#[test]
fn deletion_with_orphan_propagation_deletes_no_pod() {
    let mut observed = observed(1, "0 v1 ready", |_| {});
    observed.deleting = true;
    observed.finalizers = vec![well_known::PRE_RECLAIM.to_owned(), "orphan".to_owned()];
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
    observed.finalizers.pop();
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "to-delete web-0");
}

#[test]
fn a_status_patch_removes_fields_that_are_unset() {
    let mut observed = observed(1, "0 v1 ready", |_| ());
    observed.status.waiting.push(podops_api::collaset::WaitingPods::default());
    let report = crate::status::status(&observed, &Plan::default(), &[], Timestamp::UNIX_EPOCH);
    let podops_client::write::Write::Patch {
        change: podops_client::write::Change::Merge(body),
        ..
    } = crate::render::status(&observed, &report.status)
    else {
        unreachable!("the status is written as a merge patch")
    };
    assert_eq!(body["status"].get("waiting"), Some(&Value::Null));
}
