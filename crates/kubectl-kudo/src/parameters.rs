//! Values of parameters, from the command line and from files.

use std::collections::BTreeMap;

use podops_api::kudo::{KeyReference, ParameterSource};
use podops_packages::values::of_file;

/// Path and content of a file.
pub type NamedText<'a> = (&'a str, String);

/// Errors of parameter values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not parse parameters: {}", .0.join(", "))]
pub struct InvalidValues(Vec<String>);

/// Returns the values of flags such as `NAME=VALUE` and of files. Flags override files, and later
/// files override earlier files.
///
/// # Errors
///
/// [`InvalidValues`] with all errors.
pub fn values(
    flags: &[String],
    files: &[NamedText<'_>],
) -> Result<BTreeMap<String, String>, InvalidValues> {
    let mut values = BTreeMap::new();
    let mut invalid = Vec::new();
    for (path, text) in files {
        match of_file(text) {
            Ok(of_file) => values.extend(of_file),
            Err(error) => invalid.push(format!("file {path}: {error}")),
        }
    }
    for flag in flags {
        match flag.split_once('=') {
            None => invalid.push(format!("parameter not set: {flag}")),
            Some(("", _)) => invalid.push(format!("parameter name can not be empty: {flag}")),
            Some((_, "")) => invalid.push(format!("parameter value can not be empty: {flag}")),
            Some((name, value)) => drop(values.insert(name.to_owned(), value.to_owned())),
        }
    }
    if invalid.is_empty() { Ok(values) } else { Err(InvalidValues(invalid)) }
}

/// Returns the sources of flags such as `NAME=secret/OBJECT/KEY`.
///
/// # Errors
///
/// [`InvalidValues`] with all errors.
pub fn sources(flags: &[String]) -> Result<Vec<ParameterSource>, InvalidValues> {
    let mut sources = Vec::new();
    let mut invalid = Vec::new();
    for flag in flags {
        match source(flag) {
            Some(source) => sources.push(source),
            None => invalid
                .push(format!("{flag} is not NAME=secret/OBJECT/KEY or NAME=configmap/OBJECT/KEY")),
        }
    }
    if invalid.is_empty() { Ok(sources) } else { Err(InvalidValues(invalid)) }
}

fn source(flag: &str) -> Option<ParameterSource> {
    let (name, reference) = flag.split_once('=')?;
    let [kind, object, key] = reference.split('/').collect::<Vec<_>>()[..] else { return None };
    if [name, object, key].iter().any(|part| part.is_empty()) {
        return None;
    }
    let reference =
        KeyReference { name: object.to_owned(), key: key.to_owned(), ..KeyReference::default() };
    let source = ParameterSource { name: name.to_owned(), ..ParameterSource::default() };
    match kind {
        "secret" => Some(ParameterSource { secret_key_ref: Some(reference), ..source }),
        "configmap" => Some(ParameterSource { config_map_key_ref: Some(reference), ..source }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(flags: &[&str]) -> Vec<String> {
        flags.iter().map(|flag| (*flag).to_owned()).collect()
    }

    #[test]
    fn flags_precede_files_and_later_files_earlier_ones() {
        let files =
            [("a", "A: 1\nB: [x]\nC: yes\n".to_owned()), ("b", "A: 2\nD: {k: v}\n".to_owned())];
        let found = values(&texts(&["C=a=b"]), &files).unwrap();
        let expected = [("A", "2"), ("B", "- x\n"), ("C", "a=b"), ("D", "k: v\n")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, expected.into());
    }

    #[test]
    fn everything_that_is_wrong_is_reported() {
        let files = [("f", "A: null\n".to_owned()), ("g", "[1]".to_owned())];
        let error = values(&texts(&["A", "=1", "B="]), &files).unwrap_err().to_string();
        assert_eq!(
            error,
            "could not parse parameters: file f: parameter A is null, file g: it is no map of \
             parameters, parameter not set: A, parameter name can not be empty: =1, parameter value \
             can not be empty: B="
        );
    }

    #[test]
    fn sources_name_an_object_and_a_key() {
        let found = sources(&texts(&["P=secret/db/password", "Q=configmap/c/k"])).unwrap();
        assert_eq!(found[0].secret_key_ref.as_ref().unwrap().key, "password");
        assert_eq!(found[1].config_map_key_ref.as_ref().unwrap().name, "c");
        for wrong in ["P", "P=secret/db", "P=pod/a/b", "=secret/a/b", "P=secret//b"] {
            assert!(sources(&texts(&[wrong])).is_err(), "{wrong}");
        }
    }
}
