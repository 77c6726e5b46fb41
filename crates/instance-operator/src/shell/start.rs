//! Watches Instances and OperatorVersions, and starts the controller.

use std::collections::BTreeSet;

use clap::Args;
use futures::{StreamExt as _, channel::mpsc, stream};
use kube::runtime::{
    reflector::{self, ObjectRef},
    watcher,
};
use podops_api::kudo::OperatorVersion;
use podops_client::{
    object_key::ObjectKey,
    shell::store::{IndexedStore, reflect},
};
use podops_runtime::{
    operator::{Operator, OperatorError},
    reconciler::{self, Objects},
    writer::Writer,
};

use super::{
    metrics::Metrics,
    own_rights::OwnRights,
    plan_permits::PlanPermits,
    reconcile::{DecodedInstance, InstanceController},
    service_account::ServiceAccounts,
    types::Types,
    versions::Versions,
    watches::Watches,
    workloads::Workloads,
};
use crate::{render::INSTANCES, view::version_key};

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct InstanceArgs {
    /// ServiceAccount, in the namespace of the Instance, that reads and writes the objects of
    /// Instances without spec.serviceAccountName, by impersonation; without this flag, the
    /// operator's does
    #[arg(long, value_name = "NAME")]
    pub default_service_account: Option<String>,

    /// Namespace whose Instances are run although it is kube-system, kube-public, kube-node-lease or
    /// that of the operator; may be repeated
    #[arg(long, value_name = "NAMESPACE")]
    pub allow_system_namespace: Vec<String>,
}

/// Namespaces of Kubernetes, whose ServiceAccounts may control the cluster.
const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

impl InstanceArgs {
    /// Namespaces whose Instances are not run, in an operator of this namespace.
    fn system_namespaces(&self, own: &str) -> BTreeSet<String> {
        let known = SYSTEM_NAMESPACES.into_iter().chain([own]).map(ToOwned::to_owned);
        known.filter(|name| !self.allow_system_namespace.contains(name)).collect()
    }
}

/// Starts the Instance controller in the operator's process.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &InstanceArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let instances = IndexedStore::new(|instance: &DecodedInstance| {
        let instance = instance.as_result().ok()?;
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        Some(version_key(&instance.spec, namespace))
    });
    let versions = IndexedStore::new(|_: &OperatorVersion| None);
    operator.ready_when("instances", instances.progress.ready());
    operator.ready_when("operatorversions", versions.progress.ready());
    let (changed, awaited) = mpsc::unbounded();
    let (workloads, of_workloads) = Workloads::start(&process);
    let events =
        process.watch_decoded(watcher::Config::default(), INSTANCES.plural, &instances.progress);
    let watched = process.watch::<OperatorVersion>(
        watcher::Config::default(),
        "operatorversions",
        &versions.progress,
    );
    let known = instances.clone();
    let of_versions = reflect(versions.clone(), watched).flat_map(move |version| {
        let key = ObjectKey::of(&*version);
        let concerned = known.find(&format!("{}/{}", key.namespace, key.name));
        stream::iter(concerned.into_iter().map(|instance| ObjectRef::from_obj(&*instance)))
    });
    let objects = Objects {
        events: events.boxed(),
        store: reflector::store::<DecodedInstance>(),
        triggers: stream::select_all([of_versions.boxed(), awaited.boxed(), of_workloads]).boxed(),
    };
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let controller = InstanceController {
        client: process.client.clone(),
        default_service_account: args.default_service_account.clone().unwrap_or_default(),
        system_namespaces: args
            .system_namespaces(&process.args.lease.leader_elect_resource_namespace),
        accounts: ServiceAccounts::new(process.client.clone()),
        own_rights: OwnRights::new(process.client.clone()),
        types: Types::new(process.client.clone()),
        watches: Watches::new(process.clone(), changed),
        permits: PlanPermits::new(),
        workloads,
        versions: Versions::new(process.client.clone(), versions),
        writer: Writer::new(applier, &instances.progress, &[]),
        events: process.events(),
        metrics: Metrics::register(&operator.registry)?,
        instances,
    };
    reconciler::start(operator, "instance controller", objects, controller);
    Ok(())
}
