//! Converts a package to the objects in the cluster: Operator and OperatorVersion.

use go_template::Failure;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use podops_api::kudo::{Operator, OperatorSpec, OperatorVersion, OperatorVersionSpec, Parameter};
use serde_json::Value;

use crate::{manifest::PackageParameter, package::Package};

/// Types of parameters whose values are YAML.
const STRUCTURED: [&str; 2] = ["array", "map"];

/// Returns the Operator of a package.
#[must_use]
pub fn operator(package: &Package) -> Operator {
    let manifest = &package.operator;
    let spec = OperatorSpec {
        description: manifest.description.clone(),
        kudo_version: manifest.kudo_version.clone(),
        kubernetes_version: manifest.kubernetes_version.clone(),
        maintainers: manifest.maintainers.clone(),
        url: manifest.url.clone(),
        namespace_manifest: manifest.namespace_manifest.clone(),
    };
    Operator { metadata: named(manifest.name.clone()), spec, status: None }
}

/// Returns the OperatorVersion of a package.
///
/// # Errors
///
/// [`Failure`] if a default is nested too deeply or exceeds a limit.
pub fn operator_version(package: &Package) -> Result<OperatorVersion, Failure> {
    let manifest = &package.operator;
    let parameters = package.parameters.parameters.iter().map(parameter);
    let spec = OperatorVersionSpec {
        operator: ObjectReference {
            name: Some(manifest.name.clone()),
            kind: Some("Operator".to_owned()),
            ..ObjectReference::default()
        },
        version: manifest.operator_version.clone(),
        app_version: manifest.app_version.clone(),
        templates: package.templates.clone(),
        tasks: manifest.tasks.clone(),
        parameters: parameters.collect::<Result<_, _>>()?,
        plans: manifest.plans.clone(),
        ..OperatorVersionSpec::default()
    };
    let metadata = named(package.operator_version_name());
    Ok(OperatorVersion { metadata, spec, status: None })
}

fn named(name: String) -> ObjectMeta {
    ObjectMeta { name: Some(name), ..ObjectMeta::default() }
}

fn parameter(parameter: &PackageParameter) -> Result<Parameter, Failure> {
    let values = parameter.allowed_values.as_ref();
    let allowed = values.map(|values| {
        values.iter().map(|value| text(value, &parameter.value_type)).collect::<Result<Vec<_>, _>>()
    });
    Ok(Parameter {
        name: parameter.name.clone(),
        display_name: parameter.display_name.clone(),
        description: parameter.description.clone(),
        required: Some(parameter.required.unwrap_or(true)),
        default: default(parameter)?,
        trigger: parameter.trigger.clone(),
        value_type: parameter.value_type.clone(),
        immutable: Some(parameter.immutable.unwrap_or(false)),
        allowed_values: allowed.transpose()?,
        sensitive: parameter.sensitive,
    })
}

/// Returns the default as text. Without a default, an array or map has the default null, as
/// packages expect, unless the parameter is sensitive.
fn default(parameter: &PackageParameter) -> Result<Option<String>, Failure> {
    let has_value = !parameter.default.is_null();
    let is_structured = STRUCTURED.contains(&parameter.value_type.as_str());
    if has_value || is_structured && !parameter.sensitive {
        return text(&parameter.default, &parameter.value_type).map(Some);
    }
    Ok(None)
}

/// Returns a value in the text format of an OperatorVersion.
fn text(value: &Value, value_type: &str) -> Result<String, Failure> {
    if STRUCTURED.contains(&value_type) {
        go_template::yaml_text(value)
    } else {
        go_template::printed(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::ParametersManifest;

    /// Returns the parameter with these fields in `params.yaml`.
    fn converted(fields: &str) -> Parameter {
        let text = format!("parameters:\n- {{name: P, {fields}}}\n");
        let manifest = ParametersManifest::read(&text).unwrap();
        parameter(&manifest.parameters[0]).unwrap()
    }

    #[track_caller]
    fn check_default(fields: &str, expected: Option<&str>) {
        assert_eq!(converted(fields).default.as_deref(), expected, "{fields}");
    }

    #[test]
    fn defaults_become_the_texts_of_kudo() {
        check_default("default: 2", Some("2"));
        check_default("default: 1000000", Some("1e+06"));
        check_default("default: 1.10", Some("1.1"));
        check_default("default: yes", Some("true"));
        check_default("default: ''", Some(""));
        check_default("default: [a, 1]", Some("[a 1]"));
        check_default("description: none", None);
        check_default("default: null", None);
        check_default("type: array, default: [b, 1000000, 1.5]", Some("- b\n- 1000000\n- 1.5\n"));
        check_default("type: map, default: {b: {c: d}, a: yes}", Some("a: true\nb:\n  c: d\n"));
        check_default("type: map, default: {}", Some("{}\n"));
    }

    #[test]
    fn an_array_without_default_has_the_default_null() {
        check_default("type: array", Some("null\n"));
        check_default("type: array, sensitive: true", None);
    }

    #[test]
    fn a_parameter_of_a_package_is_required_unless_it_is_optional() {
        let parameter = converted("enum: [1, b]");
        assert_eq!((parameter.required, parameter.immutable), (Some(true), Some(false)));
        assert_eq!(parameter.allowed_values.unwrap(), ["1", "b"]);
        assert_eq!(converted("required: false").required, Some(false));
        assert_eq!(converted("enum: []").allowed_values, Some(Vec::new()));
        assert_eq!(converted("trigger: t").allowed_values, None);
    }
}
