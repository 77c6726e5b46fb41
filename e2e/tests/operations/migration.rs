//! Migration from Kuperator and back: the commands of `docs/how-to/migrate-from-kuperator.md`,
//! executed on objects as Kuperator leaves them, with operations in every phase and a rollout in
//! progress.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus,
    lifecycle::{self, COLLASET, LabelKind, permission_key},
    operation_job::{OperationJob, Progress},
    pod_decoration::PodDecoration,
    resource_context::ResourceContext,
    well_known,
};
use podops_client::shell::clock;
use podops_test_cluster::{
    cluster::{OPERATORS, TestCluster, eventually, image, programs},
    kuperator::{KuperatorPod, KuperatorSet, STAMP},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const OPERATIONJOB_OPERATOR: &str = "operationjob-operator";
const PAGE: &str = include_str!("../../../docs/how-to/migrate-from-kuperator.md");
/// Time within which an unexpected change would happen.
const UNCHANGED_FOR: Duration = Duration::from_secs(3);

/// Kuperator's Deployment.
const DEPLOYMENT: &str = "
kubectl create namespace kusionstack-system
kubectl create deployment kusionstack-controller-manager --namespace kusionstack-system --image kusionstack/kuperator:v0.7.3
";

/// Kuperator's webhook configurations.
const WEBHOOKS: &str = r#"
for kind in Mutating Validating; do
  name=kusionstack-controller-manager-$(echo $kind | tr A-Z a-z)
  kubectl apply -f - <<END
apiVersion: admissionregistration.k8s.io/v1
kind: ${kind}WebhookConfiguration
metadata: { name: $name }
webhooks:
- name: pod.apps.kusionstack.io
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: { service: { namespace: kusionstack-system, name: kusionstack-controller-manager } }
  objectSelector: { matchLabels: { kusionstack.io/control: "true" } }
  rules: [{ apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods] }]
END
done
"#;

/// Shell commands of a section of the page, block by block. Those that build the program are left
/// out.
fn commands(section: &str) -> Vec<String> {
    let heading = format!("## {section}\n");
    let start = PAGE.find(&heading).unwrap() + heading.len();
    let text = &PAGE[start..];
    let text = &text[..text.find("\n## ").unwrap_or(text.len())];
    let blocks = text.split("```sh").skip(1);
    let block = |text: &str| {
        let lines = text.split("```").next().unwrap().lines();
        let kept = lines.map(str::trim).filter(|line| !line.starts_with("cargo "));
        kept.collect::<Vec<_>>().join("\n")
    };
    blocks.map(block).collect()
}

async fn run_section(cluster: &TestCluster, section: &str) {
    let commands = commands(section);
    assert!(!commands.is_empty(), "{section} has commands");
    for command in commands {
        eprintln!("{command}");
        cluster.plane.shell(&command, &programs().unwrap()).await.unwrap();
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, kuperator_is_replaced_and_comes_back)
}

async fn kuperator_is_replaced_and_comes_back() {
    let mut cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    cluster.install_crds().await.unwrap();
    install_phases(&cluster).await;
    install_rollout(&cluster).await;
    install_jobs(&cluster).await;
    for script in [DEPLOYMENT, WEBHOOKS] {
        cluster.plane.shell(script, &programs().unwrap()).await.unwrap();
    }
    let [phases, rollout] = [containers(&cluster, "foo").await, containers(&cluster, "bar").await];
    let claims = claims(&cluster).await;

    // Errors prevent the migration while Kuperator runs.
    let check = &commands("Check the cluster")[0];
    let refusal = cluster.plane.shell(check, &programs().unwrap()).await.unwrap_err().to_string();
    for subject in ["Deployment", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
    {
        assert!(refusal.contains(&format!("ERROR    {subject} kusionstack")), "{refusal}");
    }
    assert!(refusal.contains("WARNING  PersistentVolumeClaim default/foo-data-old"), "{refusal}");
    run_section(&cluster, "Migrate").await;
    start_operators(&mut cluster).await;
    cluster.wait_until_rolled_out("foo", 8, TIMEOUT).await.unwrap();
    cluster.wait_until_rolled_out("bar", 4, TIMEOUT).await.unwrap();
    assert_jobs_end(&cluster).await;
    // The statuses that Kuperator left are those of completed rollouts, too.
    let is_at_updated = |s: &CollaSetStatus| s.current_revision == s.updated_revision;
    cluster.wait_for_status("bar", TIMEOUT, is_at_updated).await.unwrap();
    tokio::time::sleep(UNCHANGED_FOR).await;
    run_section(&cluster, "Verify").await;
    assert_eq!(containers(&cluster, "foo").await, phases, "nothing was recreated or restarted");
    let updated = containers(&cluster, "bar").await;
    assert!(updated.keys().eq(rollout.keys()), "no Pod was recreated");
    assert_eq!(restarted(&rollout, &updated), 2, "the Pods that were not updated yet");
    assert_eq!(self::claims(&cluster).await, claims);
    assert_no_operation(&cluster).await;

    // Back, while a rollout is in progress.
    cluster
        .patch("bar", json!({ "updateStrategy": { "operationDelaySeconds": 2 } }))
        .await
        .unwrap();
    cluster.set_image("bar", "nginx:3").await.unwrap();
    let is_operated_on = async || {
        let pods = cluster.pods_of("bar").await?;
        Ok(pods.iter().any(|pod| lifecycle::is_operated_on(pod.labels())))
    };
    eventually(TIMEOUT, is_operated_on).await.unwrap();
    for name in OPERATORS {
        cluster.stop_operator(name).await.unwrap();
    }
    run_section(&cluster, "Go back to Kuperator").await;
    let before = containers(&cluster, "bar").await;
    for pod in cluster.pods().list(&ListParams::default()).await.unwrap() {
        let gate = pod.labels().keys().find(|key| key.contains("-check-gate."));
        assert_eq!(gate, None, "{}", pod.name_any());
    }
    // Kuperator does not run here; the state that it would find is migrated once more.
    cluster.plane.shell(WEBHOOKS, &programs().unwrap()).await.unwrap();
    run_section(&cluster, "Migrate").await;
    cluster.start_operators().await.unwrap();
    cluster.wait_until_rolled_out("bar", 4, TIMEOUT).await.unwrap();
    let after = containers(&cluster, "bar").await;
    assert!(after.keys().eq(before.keys()), "no Pod was recreated");
    assert!(cluster.pods_of("bar").await.unwrap().iter().all(|pod| image(pod) == "nginx:3"));
    assert_eq!(containers(&cluster, "foo").await, phases);
    assert_no_operation(&cluster).await;

    recreation_keeps_claims(&cluster, &phases).await;
    assert_eq!(self::claims(&cluster).await, claims, "no claim was deleted or created");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Recreates the Pods of `foo`. The claim without any label of Kuperator gets the one that the
/// check names.
async fn recreation_keeps_claims(cluster: &TestCluster, phases: &BTreeMap<String, Vec<String>>) {
    let label = format!("{}=0", well_known::INSTANCE_ID);
    cluster.plane.kubectl(&["label", "pvc", "foo-data-old", &label]).await.unwrap();
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.patch("foo", recreate).await.unwrap();
    cluster.set_image("foo", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("foo", 8, TIMEOUT * 2).await.unwrap();
    let recreated = containers(cluster, "foo").await;
    assert!(recreated.keys().all(|uid| !phases.contains_key(uid)), "all Pods were recreated");
}

/// Starts first the operator that cancels the replacement of the deleted job, before another begins
/// it.
async fn start_operators(cluster: &mut TestCluster) {
    cluster.start_operator(OPERATIONJOB_OPERATOR).await.unwrap();
    let jobs: Api<OperationJob> = cluster.api();
    let is_deleted = async || Ok(jobs.get_opt("cancel").await?.is_none());
    eventually(TIMEOUT, is_deleted).await.unwrap();
    for name in OPERATORS.into_iter().filter(|name| *name != OPERATIONJOB_OPERATOR) {
        cluster.start_operator(name).await.unwrap();
    }
    cluster.wait_for_leaders().await.unwrap();
}

/// Container IDs by UID of the Pod.
async fn containers(cluster: &TestCluster, set: &str) -> BTreeMap<String, Vec<String>> {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.iter().map(|pod| (pod.uid().unwrap(), container_ids(pod))).collect()
}

fn container_ids(pod: &Pod) -> Vec<String> {
    let statuses = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
    statuses.iter().map(|status| status.container_id.clone().unwrap_or_default()).collect()
}

/// Number of Pods whose containers have restarted.
fn restarted(
    before: &BTreeMap<String, Vec<String>>,
    after: &BTreeMap<String, Vec<String>>,
) -> usize {
    before.iter().filter(|(uid, ids)| after.get(*uid) != Some(ids)).count()
}

/// Names and UIDs of the claims.
async fn claims(cluster: &TestCluster) -> Vec<(String, Option<String>)> {
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let claims = claims.list(&ListParams::default()).await.unwrap();
    claims.iter().map(|claim| (claim.name_any(), claim.uid())).collect()
}

/// Asserts that no operation and no label of one is left on any Pod.
async fn assert_no_operation(cluster: &TestCluster) {
    let is_left = |key: &String| key.contains(".podopslifecycle.") && !key.contains("-check-gate.");
    let none = async || {
        for set in ["foo", "bar", "baz"] {
            let pods = cluster.pods_of(set).await?;
            if pods.iter().any(|pod| pod.labels().keys().any(is_left)) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    eventually(TIMEOUT, none).await.unwrap();
}

/// Adds a label of an operation of Kuperator's CollaSet controller.
fn stamp(labels: &mut Value, kinds: &[LabelKind]) {
    for kind in kinds {
        labels[kind.key(COLLASET)] = json!(STAMP);
    }
}

/// CollaSet `foo`: each Pod is decorated, mounts a claim, and is in another phase of an update, all
/// at the updated revision.
async fn install_phases(cluster: &TestCluster) {
    use LabelKind::{
        Completing, Operate, Operated, Operating, PostCheck, PostChecked, PreCheck, PreChecked,
        Preparing,
    };
    let claim = json!([{ "metadata": { "name": "data", "creationTimestamp": null }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }]);
    let spec = json!({ "volumeClaimTemplates": claim });
    let set = KuperatorSet::create(cluster, "foo", 8, "nginx:1", spec).await.unwrap();
    let mut template = podops_test_cluster::kuperator::template("foo", "nginx:1");
    template["$patch"] = json!("replace");
    let data = json!({ "template": template, "volumeClaimTemplates": claim });
    set.create_revision("58fb5f9bbd", 1, data).await.unwrap();
    install_decoration(cluster).await;
    let phases: [(&[LabelKind], bool); 8] = [
        (&[], true),
        (&[Operating], true),
        (&[Operating, PreCheck], true),
        (&[Operating, PreChecked, Preparing], true),
        (&[Operating, PreChecked, Preparing], false),
        (&[Operating, PreChecked, Operate], false),
        (&[Operated, PostCheck], false),
        (&[Operated, PostChecked, Completing], false),
    ];
    let mut pods = Vec::new();
    for (id, (kinds, is_in_service)) in phases.into_iter().enumerate() {
        // Claims of old releases have no labels.
        let name = if id == 0 { "foo-data-old".to_owned() } else { format!("foo-data-x{id}") };
        let labels = json!({ "app": "foo", well_known::INSTANCE_ID: id.to_string() });
        let labels = if id == 0 { json!({}) } else { labels };
        set.create_claim(&name, labels).await.unwrap();
        let pod = KuperatorPod { id, revision: "foo-58fb5f9bbd", image: "nginx:1", is_in_service };
        let edit = |pod: &mut Value| {
            let labels = &mut pod["metadata"]["labels"];
            stamp(labels, kinds);
            if kinds.contains(&Operating) {
                labels[LabelKind::OperationType.key(COLLASET)] = json!("update");
            } else if kinds.contains(&Operated) {
                labels[LabelKind::DoneOperationType.key(COLLASET)] = json!("update");
            }
            if kinds.contains(&PreChecked) {
                labels[permission_key("update")] = json!(STAMP);
            }
            decorate(pod);
            pod["spec"]["volumes"] =
                json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
        };
        set.create_pod(pod, edit).await.unwrap();
        pods.push(pod);
    }
    set.create_context(&pods).await.unwrap();
    set.report(8, "foo-58fb5f9bbd", "foo-58fb5f9bbd").await.unwrap();
}

/// PodDecoration `log`, which adds a container, with its revision.
async fn install_decoration(cluster: &TestCluster) {
    let container = json!({ "name": "log", "image": "log:1", "resources": {}, "injectPolicy": "AfterPrimaryContainer" });
    let decoration = json!({ "metadata": { "name": "log" }, "spec": {
        "weight": 1, "selector": { "matchLabels": { "app": "foo" } },
        "template": { "containers": [container] } } });
    let api: Api<PodDecoration> = cluster.api();
    let decoration = serde_json::from_value(decoration).unwrap();
    let decoration = api.create(&PostParams::default(), &decoration).await.unwrap();
    let owner = json!([{ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration", "name": "log",
        "uid": decoration.uid(), "controller": true, "blockOwnerDeletion": true }]);
    let labels =
        json!({ well_known::REVISION_HASH: "668dd9c6c8", well_known::REVISION_COLLISION: "0" });
    let revision = json!({
        "metadata": { "name": "log-668dd9c6c8", "ownerReferences": owner, "labels": labels },
        "data": { "spec": { "template": { "$patch": "replace", "containers": [container] }, "weight": 1 } },
        "revision": 1,
    });
    let revisions: Api<k8s_openapi::api::apps::v1::ControllerRevision> = cluster.api();
    let revision = serde_json::from_value(revision).unwrap();
    revisions.create(&PostParams::default(), &revision).await.unwrap();
    let status = json!({ "status": { "observedGeneration": 1,
        "currentRevision": "log-668dd9c6c8", "updatedRevision": "log-668dd9c6c8" } });
    api.patch_status("log", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Adds the decoration to a Pod, as Kuperator does.
fn decorate(pod: &mut Value) {
    let applied = json!([{ "name": "log", "revision": "log-668dd9c6c8" }]).to_string();
    pod["metadata"]["annotations"][well_known::DECORATIONS] = json!(applied);
    let label = format!("{}log", well_known::DECORATION_LABEL_PREFIX);
    pod["metadata"]["labels"][label] = json!("log-668dd9c6c8");
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({ "name": "log", "image": "log:1" }));
}

/// CollaSet `bar`, in a rollout from nginx:1 to nginx:2: one Pod is updated, one is permitted to
/// be, one is changed and not complete, and one waits.
async fn install_rollout(cluster: &TestCluster) {
    use LabelKind::{Operate, Operating, PreChecked};
    let set = KuperatorSet::create(cluster, "bar", 4, "nginx:2", json!({})).await.unwrap();
    set.create_image_revision("oooo", 1, "nginx:1").await.unwrap();
    set.create_image_revision("nnnn", 2, "nginx:2").await.unwrap();
    let pod = |id: usize, is_updated: bool, is_in_service: bool| KuperatorPod {
        id,
        revision: if is_updated { "bar-nnnn" } else { "bar-oooo" },
        image: if is_updated { "nginx:2" } else { "nginx:1" },
        is_in_service,
    };
    let pods = [pod(0, true, true), pod(1, false, false), pod(2, true, false), pod(3, false, true)];
    for pod in pods {
        let edit = |object: &mut Value| {
            if pod.is_in_service {
                return;
            }
            let labels = &mut object["metadata"]["labels"];
            stamp(labels, &[Operating, PreChecked, Operate]);
            labels[LabelKind::OperationType.key(COLLASET)] = json!("update");
            labels[permission_key("update")] = json!(STAMP);
            if pod.revision == "bar-nnnn" {
                let state = json!({ "latestImage": "nginx:2", "lastImageID": "nginx@sha256:1" });
                let last = json!({ "containerStates": { "web": state } }).to_string();
                object["metadata"]["annotations"][well_known::LAST_POD_STATUS] = json!(last);
            }
        };
        set.create_pod(pod, edit).await.unwrap();
    }
    set.create_context(&pods).await.unwrap();
    set.report(4, "bar-oooo", "bar-nnnn").await.unwrap();
}

/// CollaSet `baz` with jobs in progress. Job `swap` replaces three Pods: the replacement of the
/// first is requested, the new Pod of the second is available, and the third is gone. Job `cancel`,
/// which has requested the replacement of the fourth, is deleted.
async fn install_jobs(cluster: &TestCluster) {
    let set = KuperatorSet::create(cluster, "baz", 4, "nginx:1", json!({})).await.unwrap();
    set.create_image_revision("oooo", 1, "nginx:1").await.unwrap();
    let pod = |id: usize| KuperatorPod {
        id,
        revision: "baz-oooo",
        image: "nginx:1",
        is_in_service: true,
    };
    let request = |object: &mut Value| {
        object["metadata"]["labels"][well_known::TO_REPLACE] = json!("true");
        object["metadata"]["finalizers"] = json!([well_known::REPLACE_PROTECTED]);
    };
    let requested = set.create_pod(pod(0), request).await.unwrap();
    let paired = |object: &mut Value| {
        request(object);
        object["metadata"]["labels"][well_known::REPLACE_PAIR_NEW_ID] = json!("4");
    };
    let paired = set.create_pod(pod(1), paired).await.unwrap();
    let third = set.create_pod(pod(2), |_| ()).await.unwrap();
    let cancelled = set.create_pod(pod(3), request).await.unwrap();
    let replaces = |object: &mut Value| {
        object["metadata"]["labels"][well_known::REPLACE_PAIR_ORIGIN_NAME] = json!(paired);
    };
    let fourth = set.create_pod(pod(4), replaces).await.unwrap();
    set.create_context(&[pod(0), pod(1), pod(2), pod(3), pod(4)]).await.unwrap();
    let contexts: Api<ResourceContext> = cluster.api();
    let mut context = contexts.get("baz").await.unwrap();
    let entries = &mut context.spec.contexts;
    entries[1].data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "4".to_owned());
    entries[4].data.insert(well_known::context::REPLACE_ORIGIN_POD_ID.to_owned(), "1".to_owned());
    contexts.replace("baz", &PostParams::default(), &context).await.unwrap();
    set.report(5, "baz-oooo", "baz-oooo").await.unwrap();
    let gone = "baz-k2xzz".to_owned();
    let targets = [(&requested, None), (&paired, Some(&fourth)), (&gone, Some(&third))];
    create_job(cluster, "swap", &targets).await;
    create_job(cluster, "cancel", &[(&cancelled, None)]).await;
    let jobs: Api<OperationJob> = cluster.api();
    jobs.delete("cancel", &kube::api::DeleteParams::default()).await.unwrap();
}

/// Creates a job that replaces these Pods, all in progress; new Pods that are known are recorded.
async fn create_job(cluster: &TestCluster, name: &str, targets: &[(&String, Option<&String>)]) {
    let specs: Vec<Value> = targets.iter().map(|(pod, _)| json!({ "name": pod })).collect();
    let job = json!({
        "metadata": { "name": name, "finalizers": [well_known::PROTECTED] },
        "spec": { "action": "Replace", "targets": specs, "activeDeadlineSeconds": 10800,
            "TTLSecondsAfterFinished": 1800 },
    });
    let jobs: Api<OperationJob> = cluster.api();
    let job = serde_json::from_value(job).unwrap();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let started = clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let details = targets.iter().map(|(pod, new)| {
        let info = new.map_or_else(|| json!({}), |new| json!({ "NewPod": new }));
        json!({ "name": pod, "progress": "Processing", "startTime": started, "extraInfo": info })
    });
    let details: Vec<Value> = details.collect();
    let status = json!({ "status": { "observedGeneration": 1, "progress": "Processing",
        "startTime": started, "totalPodCount": targets.len(), "targetDetails": details } });
    jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Asserts that the replacements that a job had begun complete, and those of a deleted one are
/// cancelled.
async fn assert_jobs_end(cluster: &TestCluster) {
    let jobs: Api<OperationJob> = cluster.api();
    let has_ended = async || {
        let status = jobs.get("swap").await?.status.unwrap_or_default();
        Ok(status.progress == Some(Progress::Succeeded) && status.succeeded_pod_count == 3)
    };
    let ended = eventually(TIMEOUT, has_ended).await;
    assert!(ended.is_ok(), "{:#?}", jobs.get("swap").await.unwrap().status);
    cluster.wait_until_rolled_out("baz", 4, TIMEOUT).await.unwrap();
    let pods = cluster.pods_of("baz").await.unwrap();
    let kept: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
    // The requested one has a new Pod of another name.
    for suffix in ["bd", "bf", "bg"] {
        assert!(kept.iter().any(|name| name.ends_with(suffix)), "{suffix}: {kept:?}");
    }
    for pod in pods {
        assert_eq!(pod.finalizers(), &[] as &[String], "{}", pod.name_any());
        for label in [well_known::TO_REPLACE, well_known::REPLACE_PAIR_NEW_ID] {
            assert!(!pod.labels().contains_key(label), "{}: {label}", pod.name_any());
        }
    }
}
