//! Compares the shipped role of an operator with the requests that it made.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;

use crate::{audit::Request, cluster::TestCluster};

/// Returns the verbs that the ClusterRole of an operator grants and that none of the requests used,
/// such as `patch pods/status`, in order.
///
/// # Errors
///
/// If the ClusterRole cannot be read.
pub async fn unused(
    cluster: &TestCluster,
    operator: &str,
    requests: &[Request],
) -> anyhow::Result<BTreeSet<String>> {
    let roles: Api<ClusterRole> = Api::all(cluster.plane.admin.clone());
    let role = roles.get(&format!("podops-{operator}")).await?;
    let mut unused = BTreeSet::new();
    for rule in role.rules.unwrap_or_default() {
        for resource in rule.resources.unwrap_or_default() {
            unused.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource}")));
        }
    }
    for request in requests.iter().filter(|request| request.operator() == Some(operator)) {
        if request.is_impersonated() {
            unused.remove("impersonate serviceaccounts");
            continue;
        }
        unused.remove(&format!("{} {}", request.verb, request.path()));
    }
    Ok(unused)
}
