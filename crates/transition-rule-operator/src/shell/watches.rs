//! Watches namespaces, rules and the objects that rules refer to, and starts the controller.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt as _, stream};
use kube::runtime::{
    WatchStreamExt as _,
    reflector::{self, ObjectRef},
    watcher,
};
use podops_api::{GROUP, VERSION};
use podops_client::{
    shell::{discovery::OptionalResource, store::WatchProgress},
    write::{PODS, Resource},
};
use podops_runtime::{
    operator::{Operator, OperatorError},
    reconciler::{self, Objects},
    writer::Writer,
};

use super::{
    admit,
    args::RuleArgs,
    caches::Caches,
    metrics::Metrics,
    reconcile::NamespaceController,
    webhook_client::{WebhookAccess, WebhookClient},
};
use crate::{
    observe::{SlimNamespace, trim_namespace},
    rules::{Kind, webhook_messages::AddressPolicy},
};

/// CollaSets; not every cluster serves them.
const COLLASETS: Resource = Resource { group: GROUP, version: VERSION, plural: "collasets" };

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If the metrics cannot be registered or the admission webhook cannot be started.
pub(super) fn start(operator: &mut Operator, args: &RuleArgs) -> Result<(), OperatorError> {
    podops_admission::start(operator, &args.admission, admit::webhooks())?;
    let process = operator.process.clone();
    let caches = Caches::new();
    // CollaSets are optional in a cluster.
    for (part, progress) in caches.parts().into_iter().filter(|(part, _)| *part != "collasets") {
        operator.ready_when(part, progress.ready());
    }
    let metrics = Metrics::register(&operator.registry)?;
    let (webhooks, receivers) = WebhookClient::new(webhook_access(args), metrics.clone());
    let responses = receivers.wake.map(|namespace| ObjectRef::new(&namespace));
    let events = process
        .watch(watcher::Config::default(), "namespaces", &WatchProgress::default())
        .modify(trim_namespace);
    let objects = Objects {
        events: events.boxed(),
        store: reflector::store::<SlimNamespace>(),
        triggers: stream::select(caches.watch(&process), responses).boxed(),
    };
    operator.task("webhooks", webhooks.clone().run(receivers.jobs, process.stop.clone()));
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let pods = (PODS, &caches.pods.progress);
    let namespaces = NamespaceController {
        sets: OptionalResource::new(process.client.clone(), COLLASETS),
        client: process.client.clone(),
        writer: Writer::new(applier, &caches.rules.progress, &[pods]),
        events: process.events(),
        caches,
        skipped: Arc::new(skipped_rules(args)),
        webhooks,
        metrics,
        traces: process.traces,
    };
    reconciler::start(operator, "namespace controller", objects, namespaces);
    Ok(())
}

/// Returns the hosts and addresses that webhook rules may call.
fn webhook_access(args: &RuleArgs) -> WebhookAccess {
    let addresses = if args.webhook_allow_private_addresses {
        AddressPolicy::Any
    } else {
        AddressPolicy::Restricted
    };
    WebhookAccess { hosts: args.webhook_hosts.clone(), addresses }
}

/// Returns the kinds of rules to ignore.
fn skipped_rules(args: &RuleArgs) -> BTreeSet<String> {
    let skipped: BTreeSet<String> =
        args.skip_rules.iter().map(|kind| kind.trim().to_owned()).collect();
    for kind in skipped.iter().filter(|kind| !Kind::ALL.iter().any(|k| k.as_str() == *kind)) {
        tracing::warn!(kind, "Ignoring unknown rule kind in --skip-rules");
    }
    skipped
}
