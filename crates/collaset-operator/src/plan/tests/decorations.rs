//! Decorations: the revision that each Pod gets, updates of Pods to it, and the effects of a
//! conflict.

use kube::core::Selector;
use serde_json::json;

use super::*;
use crate::{
    decoration::{
        Decoration, Instance, Scope, applied::AppliedDecorations, revision_data::DecorationRevision,
    },
    view::{PodSource, record_dry_run},
};

/// A decoration that selects all Pods, with these revisions of a sidecar: name and image.
fn sidecar(container: &str, revisions: &[(&str, &str)]) -> Decoration {
    let content = |image: &str| {
        let template = json!({ "containers": [{ "name": container, "image": image }] });
        let template = serde_json::from_value(template).unwrap();
        Arc::new(DecorationRevision { template, weight: 0 })
    };
    let revisions = revisions.iter().map(|(name, image)| ((*name).into(), content(image)));
    let revisions: BTreeMap<RevisionName, Arc<DecorationRevision>> = revisions.collect();
    Decoration {
        selector: Some(Selector::default()),
        updated: revisions.keys().last().cloned(),
        revisions,
        ..Decoration::default()
    }
}

fn applied(names: &[(&str, &str)]) -> AppliedDecorations {
    names.iter().map(|(name, revision)| ((*name).into(), (*revision).into())).collect()
}

/// A CollaSet whose Pods have these decorations, in a namespace with these.
fn decorated(pods: &str, on_pods: &[(&str, &str)], known: Vec<(&str, Decoration)>) -> Observed {
    let replicas = pods.split(", ").filter(|pod| !pod.is_empty()).count();
    let mut observed = observed(i32::try_from(replicas).unwrap(), pods, |_| ());
    for pod in observed.pods.values_mut().map(Arc::make_mut) {
        pod.decorations = applied(on_pods);
        for (_, revision) in on_pods {
            let image = revision.replace('-', ":");
            pod.containers
                .insert(0, Container { name: "s".to_owned(), image, ..Container::default() });
            let name = "s".to_owned();
            let image_id = format!("id-{revision}");
            pod.reports.push(ContainerReport { name, image_id, ..ContainerReport::default() });
        }
    }
    accept_all(&mut observed, &known);
    observed.decorations.known = known.into_iter().map(|(name, d)| (name.into(), d)).collect();
    observed
}

/// Lets the API server accept Pods with any revisions of these decorations.
fn accept_all(observed: &mut Observed, known: &[(&str, Decoration)]) {
    let mut combinations: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
    for (name, decoration) in known {
        let with = combinations.iter().flat_map(|others| {
            let revisions = decoration.revisions.keys();
            revisions.map(|revision| [others.as_slice(), &[(*name, revision)]].concat())
        });
        let with: Vec<_> = with.collect();
        combinations.extend(with);
    }
    for decorations in combinations {
        accept(observed, "v1", &decorations);
        accept(observed, "v2", &decorations);
    }
}

fn accept(observed: &mut Observed, revision: &str, decorations: &[(&str, &str)]) {
    let source = PodSource { revision: revision.into(), decorations: applied(decorations) };
    record_dry_run(&mut observed.dry_runs, source, DryRunResult::Accepted);
}

#[test]
fn a_sidecar_is_added_by_recreation_and_updated_in_place() {
    let known = || vec![("s", sidecar("s", &[("s-1", "s:1")]))];
    let mut new = decorated("0 v1 ready available, 1 v1 ready available", &[], known());
    new.dry_runs.clear();
    assert_eq!(action_text(&new), "dry-run 0 v1+s-1");
    accept(&mut new, "v1", &[("s", "s-1")]);
    assert_eq!(action_text(&new), "begin update web-0, begin update web-1");
    new.pods = pods_by_name([pod("0 v1 ready update:permitted"), pod("1 v1 ready update")]);
    assert_eq!(action_text(&new), "delete web-0");

    let newer = || vec![("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]))];
    let mut begun = decorated("0 v1 ready available", &[("s", "s-1")], newer());
    begun.dry_runs.clear();
    assert_eq!(action_text(&begun), "dry-run 0 v1+s-2");
    accept(&mut begun, "v1", &[("s", "s-2")]);
    assert_eq!(action_text(&begun), "begin update web-0");
    let permitted = decorated("0 v1 ready update:permitted", &[("s", "s-1")], newer());
    assert_eq!(action_text(&permitted), "apply web-0 v1+s-2");
    let done = decorated("0 v1 ready available", &[("s", "s-2")], newer());
    assert_eq!(action_text(&done), "");
}

#[test]
fn an_in_place_update_changes_image_label_and_annotation() {
    let known = vec![("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]))];
    let mut permitted = decorated("0 v1 ready update:permitted", &[("s", "s-1")], known);
    let pod = pod_mut(&mut permitted, "web-0");
    let annotation = pod.decorations.to_string();
    pod.annotations = Some([(well_known::DECORATIONS.to_owned(), annotation)].into());
    let plan = plan(&permitted, Timestamp::from_second(100).unwrap());
    let writes = crate::render::render(&permitted, &plan.actions, Timestamp::UNIX_EPOCH).changes;
    let text = format!("{:?}", writes[0]);
    for part in ["s:2", "poddecoration.kusionstack.io~1pd-s", r#"\"revision\":\"s-2\""#] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn a_decoration_update_keeps_the_pods_own_revision() {
    let known = vec![("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]))];
    let mut held = decorated("0 v1 ready available, 1 v1 ready available", &[("s", "s-1")], known);
    held.spec.template = serde_json::from_value(template("v2")).unwrap();
    held.revisions = revisions_by_name([revision("v1", 1, "v1"), revision("v2", 2, "v2")]);
    held.spec.update_strategy.rolling_update = rolling(Some(2), false);
    assert_eq!(action_text(&held), "begin update web-0, begin update web-1");
    for pod in held.pods.values_mut().map(Arc::make_mut) {
        pod.labels.extend(
            super::pod("0 v1 update:permitted")
                .labels
                .into_iter()
                .filter(|(key, _)| key.contains("podopslifecycle")),
        );
    }
    assert_eq!(action_text(&held), "apply web-0 v1+s-2, apply web-1 v1+s-2");
}

#[test]
fn new_pods_are_created_with_their_decorations() {
    let mut none = decorated("", &[], vec![("s", sidecar("s", &[("s-1", "s:1")]))]);
    none.spec.replicas = Some(1);
    none.contexts = None;
    let plan = plan(&none, Timestamp::UNIX_EPOCH);
    assert!(plan.to_string().contains("create 0 v1+s-1"), "{plan}");
    let writes = crate::render::render(&none, &plan.actions, Timestamp::UNIX_EPOCH);
    let podops_client::write::Write::Create { body, .. } = &writes.creates[0] else {
        unreachable!("a create")
    };
    assert_eq!(body["metadata"]["labels"]["poddecoration.kusionstack.io/pd-s"], "s-1");
    let annotation = r#"[{"name":"s","revision":"s-1"}]"#;
    assert_eq!(body["metadata"]["annotations"][well_known::DECORATIONS], annotation);
    assert_eq!(body["spec"]["containers"][0]["name"], "s");
    assert_eq!(body["metadata"]["labels"][well_known::REVISION], "v1");
}

#[test]
fn new_pods_wait_for_the_revision_of_a_decoration() {
    let unrecorded = Decoration { updated: None, ..sidecar("s", &[]) };
    let mut none = decorated("", &[], vec![("s", unrecorded)]);
    none.spec.replicas = Some(1);
    let plan = plan(&none, Timestamp::UNIX_EPOCH);
    assert!(!plan.to_string().contains("create"), "{plan}");
    assert_eq!(plan.blockers[0].reason.name, "DecorationNotRecorded");
}

#[test]
fn pods_out_of_scope_keep_the_revision_that_they_have() {
    let instance = |id| Instance { id: InstanceId(id), set: "web".to_owned() };
    let known = || {
        let scope = Scope::Instances([instance(1)].into());
        vec![("s", Decoration { scope, ..sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]) })]
    };
    let partial = decorated("0 v1 ready available, 1 v1 ready available", &[("s", "s-1")], known());
    assert_eq!(action_text(&partial), "begin update web-1");

    // The Pod out of scope was lost: its successor gets the recorded revision.
    let mut lost = decorated("1 v1 ready available", &[("s", "s-2")], known());
    lost.spec.replicas = Some(2);
    let entry = |id: i64, revision: &str| {
        let data = [
            (well_known::context::OWNER, "web".to_owned()),
            (well_known::context::REVISION, "v1".to_owned()),
            (well_known::context::DECORATIONS, applied(&[("s", revision)]).to_string()),
        ];
        let data = data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        ContextDetail { id: InstanceId(id), data }
    };
    lost.contexts.as_mut().unwrap().entries = vec![entry(0, "s-1"), entry(1, "s-2")];
    assert_eq!(plan(&lost, Timestamp::UNIX_EPOCH).to_string(), "create 0 v1+s-1");
    lost.contexts.as_mut().unwrap().entries = vec![entry(0, ""), entry(1, "s-2")];
    assert_eq!(plan(&lost, Timestamp::UNIX_EPOCH).to_string(), "create 0 v1");
}

#[test]
fn decorations_that_are_gone_are_removed_from_pods() {
    let mut gone = decorated("0 v1 ready available", &[("s", "s-1")], vec![]);
    accept(&mut gone, "v1", &[]);
    assert_eq!(action_text(&gone), "begin update web-0");
}

#[test]
fn a_decoration_that_cannot_be_decoded_changes_no_pod() {
    let mut unknown = decorated("0 v1 ready available", &[("s", "s-1")], vec![]);
    unknown.decorations.undecodable.insert("s".into());
    assert_eq!(action_text(&unknown), "");
    // An update of the CollaSet would lose it, so it waits.
    unknown.spec.template = serde_json::from_value(template("v2")).unwrap();
    unknown.revisions = revisions_by_name([revision("v1", 1, "v1"), revision("v2", 2, "v2")]);
    let plan = plan(&unknown, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "instances [0]");
    assert_eq!(plan.blockers[0].reason.name, "TargetRevisionNotFound");
    assert_eq!(plan.requeue_after, None);
}

#[test]
fn a_decoration_that_does_not_fit_affects_no_other() {
    let known = vec![
        ("bad", sidecar("c", &[("bad-1", "x:1")])),
        ("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")])),
    ];
    let conflicting = decorated("0 v1 ready available", &[("s", "s-1")], known.clone());
    assert_eq!(action_text(&conflicting), "begin update web-0");
    let permitted = decorated("0 v1 ready update:permitted", &[("s", "s-1")], known);
    assert_eq!(action_text(&permitted), "apply web-0 v1+s-2");
}

#[test]
fn a_partition_of_the_set_does_not_hold_back_decorations() {
    let known = vec![("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]))];
    let mut held = decorated("0 v1 ready available", &[("s", "s-1")], known);
    held.spec.update_strategy.rolling_update = rolling(Some(100), false);
    assert_eq!(action_text(&held), "begin update web-0");
}

#[test]
fn a_replacement_gets_the_decorations_of_its_origins_target() {
    let known = vec![("s", sidecar("s", &[("s-1", "s:1"), ("s-2", "s:2")]))];
    let mut replaced = decorated("0 v1 ready available", &[("s", "s-1")], known);
    replaced.spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
    assert_eq!(action_text(&replaced), "replace web-0 by 1 v1+s-2");
}

fn reject(observed: &mut Observed, decorations: &[(&str, &str)]) {
    let source = PodSource { revision: "v1".into(), decorations: applied(decorations) };
    let message = "must be unique".to_owned();
    let rejected = DryRunResult::Rejected { message, is_confirmed: false };
    record_dry_run(&mut observed.dry_runs, source, rejected);
}

#[test]
fn a_decoration_is_tried_before_the_first_pod_has_it() {
    let known = || vec![("s", sidecar("s", &[("s-1", "s:1")]))];
    let empty = || {
        let mut set = decorated("", &[], known());
        set.spec.replicas = Some(2);
        set.dry_runs.clear();
        set
    };
    let mut new = empty();
    assert_eq!(action_text(&new), "dry-run 0 v1+s-1");
    accept(&mut new, "v1", &[("s", "s-1")]);
    assert_eq!(action_text(&new), "create 0 v1+s-1, create 1 v1+s-1");
    let mut rejected = empty();
    reject(&mut rejected, &[("s", "s-1")]);
    assert_eq!(action_text(&rejected), "dry-run 0 v1", "is the template accepted without it?");
    let mut conflicting = rejected.clone();
    accept(&mut conflicting, "v1", &[]);
    // An object that it needs may have been created meanwhile, such as its ServiceAccount.
    assert_eq!(action_text(&conflicting), "dry-run 0 v1+s-1");
    let mut early = conflicting.clone();
    accept(&mut early, "v1", &[("s", "s-1")]);
    assert_eq!(action_text(&early), "create 0 v1+s-1, create 1 v1+s-1");
    reject(&mut conflicting, &[("s", "s-1")]);
    assert_eq!(action_text(&conflicting), "create 0 v1, create 1 v1");
    // The template itself is at fault, which a create reports.
    reject(&mut rejected, &[]);
    assert_eq!(action_text(&rejected), "create 0 v1+s-1, create 1 v1+s-1");
    let mut one_exists = decorated("0 v1 ready available", &[("s", "s-1")], known());
    one_exists.spec.replicas = Some(2);
    one_exists.dry_runs.clear();
    assert_eq!(action_text(&one_exists), "create 1 v1+s-1");
}

#[test]
fn only_the_rejected_decoration_is_left_out() {
    let both = [("a", "a-1"), ("b", "b-1")];
    // The API server rejects Pods with this decoration.
    let dry_runs = |bad: &str| {
        let known =
            vec![("a", sidecar("a", &[("a-1", "a:1")])), ("b", sidecar("b", &[("b-1", "b:1")]))];
        let mut set = decorated("", &[], known);
        set.spec.replicas = Some(1);
        set.dry_runs.clear();
        let mut actions = Vec::new();
        for _ in 0..9 {
            let action = action_text(&set);
            let has = |name: &str| action.contains(&format!("+{name}-1"));
            let decorations: Vec<_> = both.into_iter().filter(|(name, _)| has(name)).collect();
            let is_dry_run = action.starts_with("dry-run");
            actions.push(action.clone());
            if !is_dry_run {
                break;
            }
            if has(bad) {
                reject(&mut set, &decorations);
            } else {
                accept(&mut set, "v1", &decorations);
            }
        }
        actions
    };
    let of_b = [
        "dry-run 0 v1+a-1+b-1",
        "dry-run 0 v1",
        "dry-run 0 v1+a-1",
        "dry-run 0 v1+a-1+b-1",
        "create 0 v1+a-1",
    ];
    assert_eq!(dry_runs("b"), of_b);
    let of_a = [
        "dry-run 0 v1+a-1+b-1",
        "dry-run 0 v1",
        "dry-run 0 v1+a-1",
        "dry-run 0 v1+b-1",
        "create 0 v1+b-1",
    ];
    assert_eq!(dry_runs("a"), of_a);
}
