//! Generates files from the API types: the CustomResourceDefinitions and their reference pages.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON,
};
use kube::CustomResourceExt as _;
use podops_api::{
    collaset::CollaSet,
    kudo::{self, Instance, Operator, OperatorVersion},
    operation_job::OperationJob,
    pod_decoration::PodDecoration,
    resource_context::ResourceContext,
    transition_rule::PodTransitionRule,
};

use crate::{crd_page, generated::File, sources};

const HEAD: &str = "# Written by `cargo xtask crds` from crates/api; do not edit.\n";

/// The generated files.
///
/// # Errors
///
/// If one cannot be rendered.
pub(crate) fn files() -> anyhow::Result<Vec<File>> {
    let root = sources::root();
    let mut files = Vec::new();
    for crd in [
        CollaSet::crd(),
        OperationJob::crd(),
        PodDecoration::crd(),
        PodTransitionRule::crd(),
        ResourceContext::crd(),
        with_default_spec(Operator::crd()),
        with_default_spec(OperatorVersion::crd()),
        with_default_spec(Instance::crd()),
    ] {
        let name = format!("{}/{}_{}.yaml", folder(&crd), crd.spec.group, crd.spec.names.plural);
        // Converted to JSON first, which omits absent fields.
        let text = serde_saphyr::to_string(&serde_json::to_value(&crd)?)?;
        files.push((root.join(name), format!("{HEAD}{text}")));
        let page = format!("docs/reference/{}.md", crd.spec.names.plural);
        files.push((root.join(page), crd_page::page(&crd)?));
    }
    Ok(files)
}

/// Returns a definition by which an object without a spec has an empty one: KUDO requires none.
fn with_default_spec(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()) {
        let spec = schema.properties.as_mut().and_then(|fields| fields.get_mut("spec"));
        if let Some(spec) = spec {
            spec.default = Some(JSON(serde_json::json!({})));
        }
    }
    crd
}

/// KUDO's resources are installed separately, because only instance-operator reads them.
fn folder(crd: &CustomResourceDefinition) -> &'static str {
    if crd.spec.group == kudo::GROUP { "crds/kudo" } else { "crds" }
}
