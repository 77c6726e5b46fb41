//! Runs operators, kubelets and traffic adapters in turn until nothing changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use collaset_operator::{template::compare::normal, view::Observed};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::{collaset::CollaSetStatus, ids::PodName, transition_rule::PodTransitionRule};
use podops_simulated_api::Objects;
use serde_json::Value;
use transition_rule_operator::rules::Kind;

use crate::{
    actors::{Kubelets, is_in_service, name, switch_traffic},
    difference::changed_fields,
    operators::{Api, CollaSets, Lifecycle, PodEvent, Rules, SetDecision, earlier},
    prediction::{End, Method, PodPrediction, Prediction},
};

/// The objects that a simulation begins with, as the API server returns them.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: String,
    /// Objects of the namespace, by plural.
    pub objects: BTreeMap<&'static str, Vec<Value>>,
    /// The nodes.
    pub nodes: Vec<Value>,
    /// The operator's settings.
    pub settings: Settings,
    /// Time at which the simulation begins.
    pub now: Timestamp,
}

/// Settings of collaset-operator.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// True if the cluster serves the `pods/resize` subresource.
    pub can_resize: bool,
    /// `maxUnavailable` of a CollaSet that does not set it, the flag `--default-max-unavailable`;
    /// `None` for no limit.
    pub default_max_unavailable: Option<IntOrString>,
}

/// Reasons for which a rollout cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// An object violates the schema of its kind.
    #[error("an object of the namespace cannot be decoded")]
    Object(#[from] serde_json::Error),
}

/// Simulated time of one round in which something changed.
const ROUND: SignedDuration = SignedDuration::from_secs(1);
/// Maximum of the simulated time: a schedule may permit operations on one day of the week only.
const PERIOD_MAX: SignedDuration = SignedDuration::from_hours(8 * 24);
/// Maximum number of rounds; a rollout of 10,000 Pods one by one takes fewer.
const ROUNDS_MAX: usize = 100_000;

/// Predicts the effects of changing a CollaSet to `set`, as the API server would store it.
///
/// # Errors
///
/// If an object violates the schema of its kind.
pub fn simulate(namespace: Namespace, set: Value) -> Result<Prediction, SimulationError> {
    let mut simulation = Simulation::new(namespace, set)?;
    let before = simulation.sets.plan(&simulation.api, &simulation.set)?.0;
    let end = simulation.run()?;
    Ok(simulation.prediction(&before, end))
}

struct Simulation {
    set: String,
    api: Api,
    sets: CollaSets,
    lifecycle: Lifecycle,
    rules: Rules,
    kubelets: Kubelets,
    began: Timestamp,
    /// First change of each Pod, in order.
    events: Vec<PodEvent>,
    /// Numbers of the batches, by Pod.
    batches: BTreeMap<String, usize>,
    status: CollaSetStatus,
}

impl Simulation {
    fn new(namespace: Namespace, set: Value) -> Result<Self, SimulationError> {
        let Namespace { name: namespace, mut objects, nodes, settings, now } = namespace;
        let mut api_objects = Objects::new(&namespace);
        api_objects.now = now;
        let services = objects.remove("services").unwrap_or_default();
        for (plural, objects) in objects {
            for object in objects {
                api_objects.import(plural, object);
            }
        }
        let set_name = name(&set).to_owned();
        if set["metadata"]["uid"].is_null() {
            api_objects.put("collasets", set);
        } else {
            api_objects.import("collasets", set);
        }
        Ok(Self {
            set: set_name.clone(),
            kubelets: Kubelets::running(&api_objects),
            api: Api {
                objects: api_objects,
                set: set_name.clone(),
                pod_writes: BTreeMap::new(),
                deleted_claims: Vec::new(),
            },
            sets: CollaSets::new(settings),
            lifecycle: Lifecycle::new(services)?,
            rules: Rules::new(nodes)?,
            began: now,
            events: Vec::new(),
            batches: BTreeMap::new(),
            status: CollaSetStatus::default(),
        })
    }

    /// Runs rounds until nothing changes any more.
    fn run(&mut self) -> Result<End, SimulationError> {
        for _ in 0..ROUNDS_MAX {
            let before = self.api.objects.version();
            let requeue_after = self.round()?;
            let now = self.api.objects.now;
            let step = if self.api.objects.version() == before {
                let Some(delay) = requeue_after else { return Ok(self.end()) };
                SignedDuration::try_from(delay).unwrap_or(PERIOD_MAX).max(ROUND)
            } else {
                ROUND
            };
            let next = now.checked_add(step).unwrap_or(now);
            if next == now || next.duration_since(self.began) > PERIOD_MAX {
                break;
            }
            self.api.objects.now = next;
        }
        Ok(match self.end() {
            End::Waiting { reasons } => {
                let seconds = self.api.objects.now.duration_since(self.began).as_secs();
                End::Unfinished { seconds, reasons }
            }
            end @ (End::Complete | End::Unfinished { .. }) => end,
        })
    }

    /// Reconciles everything once. Returns the time after which an operator reconciles again
    /// without an event.
    fn round(&mut self) -> Result<Option<Duration>, SimulationError> {
        let decision = self.sets.reconcile(&mut self.api, &self.set)?;
        self.record(&decision);
        let rules = self.rules.reconcile(&mut self.api)?;
        let lifecycle = self.lifecycle.reconcile(&mut self.api)?;
        self.record_batch();
        switch_traffic(&mut self.api);
        self.kubelets.step(&mut self.api.objects);
        Ok(earlier(earlier(decision.requeue_after, rules), lifecycle))
    }

    /// Records the status, and the first change of each Pod.
    fn record(&mut self, decision: &SetDecision) {
        self.status = decision.status.clone();
        for event in &decision.events {
            if !self.events.iter().any(|known| known.pod == event.pod) {
                self.events.push(event.clone());
            }
        }
    }

    /// Records which Pods begin to change: those out of service, and those that change in service
    /// or are created. Pods that begin in one round are a batch.
    fn record_batch(&mut self) {
        let batch = self.batches.values().max().map_or(1, |last| last + 1);
        let begins = |event: &&PodEvent| {
            let pod = self.api.objects.get("pods", &event.pod);
            let waits =
                matches!(event.method, Method::InPlace | Method::Recreate | Method::ScaleIn)
                    && pod.is_some_and(is_in_service);
            !self.batches.contains_key(&event.pod) && !waits
        };
        let pods: Vec<String> =
            self.events.iter().filter(begins).map(|event| event.pod.clone()).collect();
        self.batches.extend(pods.into_iter().map(|pod| (pod, batch)));
    }

    /// How the rollout ends in the reported status.
    fn end(&self) -> End {
        let conditions = &self.status.conditions;
        if conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True") {
            return End::Complete;
        }
        let progressing = conditions.iter().filter(|condition| condition.type_ == "Progressing");
        let mut reasons: Vec<String> = progressing
            .map(|condition| {
                let reason = condition.reason.as_deref().unwrap_or_default();
                let message = condition.message.as_deref().unwrap_or_default();
                format!("{reason}: {message}").trim_end_matches(": ").to_owned()
            })
            .collect();
        let waiting = self.status.waiting.iter();
        reasons.extend(
            waiting.map(|group| format!("{} Pods, {}: {}", group.count, group.phase, group.reason)),
        );
        reasons.extend(self.rejections());
        End::Waiting { reasons }
    }

    /// Returns the rejecting rules, each with the reason for one of its Pods.
    fn rejections(&self) -> Vec<String> {
        let mut rejections = BTreeMap::new();
        for owner in self.transition_rules() {
            let name = owner.metadata.name.unwrap_or_default();
            let details = owner.status.into_iter().flat_map(|status| status.details);
            for rejection in details.flat_map(|detail| detail.reject_info) {
                let rule = format!("rule {name}/{}", rejection.rule_name);
                rejections.entry(rule).or_insert(rejection.reason);
            }
        }
        rejections.into_iter().map(|(rule, reason)| format!("{rule}: {reason}")).collect()
    }

    fn transition_rules(&self) -> impl Iterator<Item = PodTransitionRule> {
        let objects = self.api.objects.all("podtransitionrules").cloned();
        objects.filter_map(|object| serde_json::from_value(object).ok())
    }

    fn prediction(self, observed: &Observed, end: End) -> Prediction {
        let mut pods: Vec<PodPrediction> = self
            .events
            .iter()
            .map(|event| PodPrediction {
                pod: event.pod.clone(),
                method: event.method,
                changed_fields: self.changed_fields(observed, event),
                batch: self.batches.get(&event.pod).copied(),
            })
            .collect();
        pods.sort_by_key(|pod| pod.batch.unwrap_or(usize::MAX));
        let changed: BTreeSet<String> = pods.iter().map(|pod| pod.pod.clone()).collect();
        let others = observed.pods.keys().filter(|name| !changed.contains(name.as_str()));
        pods.extend(
            others.map(|name| PodPrediction { pod: name.to_string(), ..PodPrediction::default() }),
        );
        Prediction {
            set: self.set.clone(),
            updated_revision: self.status.updated_revision.clone(),
            pods,
            pod_writes: self.api.pod_writes.clone(),
            deleted_claims: self.api.deleted_claims.clone(),
            released_claims: self.released_claims(observed),
            end,
            rules_left_out: self.rules_left_out(),
        }
    }

    /// Claims of the CollaSet that exist at the end, but not as its own.
    fn released_claims(&self, observed: &Observed) -> Vec<String> {
        let owned = observed.claims.values().filter(|claim| !claim.orphan);
        let released = owned.filter(|claim| {
            let left = self.api.objects.get("persistentvolumeclaims", &claim.name);
            left.is_some_and(|claim| !self.api.counts(claim))
        });
        released.map(|claim| claim.name.to_string()).collect()
    }

    /// Fields of the template that differ between a Pod's revision and the one it is updated to.
    fn changed_fields(&self, observed: &Observed, event: &PodEvent) -> Vec<String> {
        if matches!(event.method, Method::ScaleIn | Method::ScaleOut | Method::None) {
            return Vec::new();
        }
        let Some(pod) = observed.pods.get(&PodName::from(event.pod.as_str())) else {
            return Vec::new();
        };
        let new = self.api.objects.get("controllerrevisions", &self.status.updated_revision);
        let old = observed.revisions.get(&pod.revision);
        let (Some(old), Some(new)) = (old, new) else { return Vec::new() };
        let template = |data: &Value| normal(&data["spec"]["template"]);
        changed_fields(&template(&old.data), &template(&new["data"]))
    }

    /// Rules whose services are not called.
    fn rules_left_out(&self) -> Vec<String> {
        self.transition_rules()
            .flat_map(|owner| {
                let owner_name = owner.metadata.name.unwrap_or_default();
                let webhooks = owner
                    .spec
                    .rules
                    .into_iter()
                    .filter(|rule| Kind::of(rule) == Some(Kind::Webhook));
                webhooks.map(move |rule| format!("{owner_name}/{}", rule.name)).collect::<Vec<_>>()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A CollaSet; `spec` is merged over one of four Pods.
    fn set(spec: &Value) -> Value {
        let mut set = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": "web", "namespace": "ns", "generation": 1 },
            "spec": {
                "replicas": 4,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "web", "image": "web:1" }] },
                },
            },
        });
        json_patch::merge(&mut set["spec"], spec);
        set
    }

    fn image(image: &str) -> Value {
        let containers = json!([{ "name": "web", "image": image }]);
        json!({ "template": { "spec": { "containers": containers } } })
    }

    /// A namespace in which a CollaSet has been rolled out.
    fn rolled_out(spec: &Value, rules: Vec<Value>) -> Namespace {
        let mut simulation = Simulation::new(
            Namespace {
                name: "ns".to_owned(),
                objects: BTreeMap::from([("podtransitionrules", rules)]),
                now: Timestamp::from_second(1_000_000).unwrap(),
                ..Namespace::default()
            },
            set(spec),
        )
        .unwrap();
        assert_eq!(simulation.run().unwrap(), End::Complete);
        let plurals = [
            "pods",
            "collasets",
            "controllerrevisions",
            "resourcecontexts",
            "persistentvolumeclaims",
            "podtransitionrules",
        ];
        let objects = &simulation.api.objects;
        let all = |plural| (plural, objects.all(plural).cloned().collect());
        Namespace {
            name: "ns".to_owned(),
            objects: plurals.map(all).into(),
            now: objects.now,
            ..Namespace::default()
        }
    }

    /// Predicts a change of the CollaSet's spec.
    fn predict(namespace: Namespace, spec: &Value) -> Prediction {
        let mut changed = namespace.objects["collasets"][0].clone();
        json_patch::merge(&mut changed["spec"], spec);
        changed["metadata"]["generation"] = json!(2);
        simulate(namespace, changed).unwrap()
    }

    fn methods(prediction: &Prediction) -> Vec<(Method, Option<usize>)> {
        prediction.pods.iter().map(|pod| (pod.method, pod.batch)).collect()
    }

    #[test]
    fn a_new_image_updates_in_place_in_the_batches_of_a_rule() {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "ns", "uid": "rule", "resourceVersion": "1" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "rules": [{ "name": "half", "availablePolicy": { "maxUnavailableValue": 2 } }],
            },
        });
        let namespace = rolled_out(&json!({}), vec![rule]);
        let prediction = predict(namespace, &image("web:2"));
        assert_eq!(prediction.end, End::Complete);
        let expected = [1, 1, 2, 2].map(|batch| (Method::InPlace, Some(batch)));
        assert_eq!(methods(&prediction), expected);
        let fields = &prediction.pods[0].changed_fields;
        assert_eq!(*fields, ["spec.containers[web].image"]);
        // Seven writes per Pod, as in the benchmark, and one that annotates an example of the
        // rejected Pods with the rule.
        assert_eq!(prediction.pod_writes.values().sum::<usize>(), 4 * 7 + 1);
    }

    #[test]
    fn claims_that_a_change_deletes_or_releases_are_named() {
        let template = json!({
            "metadata": { "name": "data" },
            "spec": { "resources": { "requests": { "storage": "1Gi" } } },
        });
        let policy = json!({ "whenScaled": "Delete" });
        let claims = json!({
            "volumeClaimTemplates": [template],
            "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": policy },
        });
        let counts = |change: &Value| {
            let prediction = predict(rolled_out(&claims, Vec::new()), change);
            (prediction.deleted_claims.len(), prediction.released_claims.len())
        };
        assert_eq!(counts(&image("web:2")), (0, 0));
        let mut larger = claims.clone();
        larger["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] =
            json!("2Gi");
        assert_eq!(counts(&larger), (0, 0));
        assert_eq!(counts(&json!({ "replicas": 1 })), (3, 0));
        let mut replaced = image("web:2");
        let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
        json_patch::merge(&mut replaced, &replace);
        assert_eq!(counts(&replaced), (0, 4));
    }

    #[test]
    fn max_unavailable_forms_batches() {
        let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } });
        let prediction = predict(rolled_out(&limit, Vec::new()), &image("web:2"));
        let expected = (1..=4).map(|batch| (Method::InPlace, Some(batch)));
        assert_eq!(methods(&prediction), expected.collect::<Vec<_>>());
        assert_eq!(prediction.pod_writes.values().sum::<usize>(), 4 * 6);
    }

    #[test]
    fn the_policy_and_the_fields_decide_on_the_method() {
        let variable = json!({ "template": { "spec": { "containers": [
            { "name": "web", "image": "web:1", "env": [{ "name": "A", "value": "1" }] },
        ] } } });
        let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
        let mut replaced = image("web:2");
        json_patch::merge(&mut replaced, &replace);
        let annotation = json!({ "template": { "metadata": { "annotations": { "a": "b" } } } });
        for (change, method) in [
            (variable, Method::Recreate),
            (replaced, Method::Replace),
            (annotation, Method::Metadata),
        ] {
            let prediction = predict(rolled_out(&json!({}), Vec::new()), &change);
            assert_eq!(prediction.end, End::Complete, "{change}");
            let all = prediction.pods.iter().filter(|pod| pod.method == method).count();
            assert_eq!((all, prediction.pods.len()), (4, 4), "{change}: {prediction:?}");
        }
    }

    #[test]
    fn a_rule_that_permits_nothing_is_reported() {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "ns", "uid": "rule", "resourceVersion": "1" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "rules": [{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }],
            },
        });
        let mut namespace = rolled_out(&json!({}), Vec::new());
        namespace.objects.insert("podtransitionrules", vec![rule]);
        let prediction = predict(namespace, &image("web:2"));
        let End::Waiting { reasons } = &prediction.end else { panic!("{:?}", prediction.end) };
        assert!(reasons.iter().any(|reason| reason.starts_with("rule web/none: ")), "{reasons:?}");
    }

    #[test]
    fn a_rollout_that_is_stopped_is_not_complete() {
        let steps = json!([{ "partition": 3, "pause": {} }]);
        let paused = json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } });
        for (stopped, reason) in [(json!({ "paused": true }), "Paused"), (paused, "StepPaused")] {
            let mut change = image("web:2");
            json_patch::merge(&mut change, &stopped);
            let prediction = predict(rolled_out(&json!({}), Vec::new()), &change);
            let End::Waiting { reasons } = &prediction.end else { panic!("{:?}", prediction.end) };
            assert!(reasons[0].starts_with(reason), "{reasons:?}");
        }
    }

    #[test]
    fn time_passes_while_pods_become_available() {
        let limit = json!({
            "minReadySeconds": 30,
            "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } },
        });
        let prediction = predict(rolled_out(&limit, Vec::new()), &image("web:2"));
        assert_eq!(prediction.end, End::Complete);
        let expected = [1, 2, 3, 4].map(|batch| (Method::InPlace, Some(batch)));
        assert_eq!(methods(&prediction), expected);
    }

    #[test]
    fn scaling_creates_and_deletes_pods() {
        let namespace = rolled_out(&json!({}), Vec::new());
        let more = predict(namespace.clone(), &json!({ "replicas": 6 }));
        let created = more.pods.iter().filter(|pod| pod.method == Method::ScaleOut).count();
        let fewer = predict(namespace, &json!({ "replicas": 1 }));
        let deleted = fewer.pods.iter().filter(|pod| pod.method == Method::ScaleIn).count();
        assert_eq!((created, deleted), (2, 3));
    }
}
