//! `get`.

use kube::{ResourceExt, api::ListParams};
use kubectl_kudo::{
    cli::Connection,
    failure::Failure,
    text::{Format, list},
};
use podops_api::kudo::{Instance, Operator, OperatorVersion};
use podops_terminal::tree::Node;
use serde_json::Value;

use crate::{cluster::Cluster, output::print};

/// Installed objects of a namespace.
struct Installed {
    operators: Vec<Operator>,
    versions: Vec<OperatorVersion>,
    instances: Vec<Instance>,
}

/// Lists the installed objects.
///
/// # Errors
///
/// If the argument is unknown, or the cluster cannot be read.
pub(crate) async fn get(
    connection: &Connection,
    what: Option<&str>,
    output: Option<&str>,
) -> anyhow::Result<()> {
    let what = what.unwrap_or_default();
    let kinds = ["instances", "operators", "operatorversions", "all"];
    if !kinds.contains(&what) {
        let message = format!(
            "expecting one of \"instances, operators, operatorversions or all\" and not {what:?}"
        );
        return Err(Failure::Usage(message).into());
    }
    let format = Format::parse(output)?;
    let cluster = Cluster::connect(connection).await?;
    let params = ListParams::default();
    let mut installed =
        Installed { operators: Vec::new(), versions: Vec::new(), instances: Vec::new() };
    if is_wanted("operators", what) {
        installed.operators = cluster.operators().list(&params).await?.items;
    }
    if is_wanted("operatorversions", what) {
        installed.versions = cluster.versions().list(&params).await?.items;
    }
    if is_wanted("instances", what) {
        installed.instances = cluster.instances().list(&params).await?.items;
    }
    if format != Format::Text {
        return print(&list(&installed.objects()?, format)?);
    }
    let described = if what == "all" { "operators including versions and instances" } else { what };
    let title =
        format!("List of current installed {described} in namespace {:?}:\n", cluster.namespace);
    let tree = if what == "all" { installed.tree() } else { installed.names() };
    print(&format!("{title}{tree}\n"))
}

fn is_wanted(kind: &str, what: &str) -> bool {
    what == "all" || what == kind
}

impl Installed {
    fn objects(&self) -> Result<Vec<Value>, serde_json::Error> {
        let operators = self.operators.iter().map(serde_json::to_value);
        let versions = self.versions.iter().map(serde_json::to_value);
        let instances = self.instances.iter().map(serde_json::to_value);
        operators.chain(versions).chain(instances).collect()
    }

    fn names(&self) -> Node {
        let operators = self.operators.iter().map(ResourceExt::name_any);
        let versions = self.versions.iter().map(ResourceExt::name_any);
        let instances = self.instances.iter().map(ResourceExt::name_any);
        Node::new(".").with(operators.chain(versions).chain(instances).map(Node::new))
    }

    /// Returns the Operators with their OperatorVersions, and each OperatorVersion with its
    /// Instances.
    fn tree(&self) -> Node {
        Node::new(".").with(self.operators.iter().map(|operator| {
            let name = operator.name_any();
            let versions = self
                .versions
                .iter()
                .filter(|version| version.spec.operator.name.as_deref() == Some(name.as_str()));
            let versions = versions.map(|version| {
                let name = version.name_any();
                let instances = self.instances.iter().filter(|instance| {
                    instance.spec.operator_version.name.as_deref() == Some(name.as_str())
                });
                let instances: Vec<Node> =
                    instances.map(|instance| Node::new(instance.name_any())).collect();
                Node::new(name).with(instances)
            });
            let versions: Vec<Node> = versions.collect();
            Node::new(name).with(versions)
        }))
    }
}
