//! The ConfigMap or Secret of a file.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podops_api::kudo::PipeFile;
use serde_json::{Map, Value, json};

use crate::{object::ObjectId, reasons, task::context::TaskFailure};

/// Returns the ConfigMap or Secret for a file with this content.
pub(super) fn artifact(
    file: &PipeFile,
    id: &ObjectId,
    content: &[u8],
) -> Result<Value, TaskFailure> {
    let is_secret = file.kind == "Secret";
    let entries = if file.file.is_empty() {
        variables(content, &file.env_file)?
    } else {
        let name = file.file.rsplit('/').next().unwrap_or_default();
        vec![(name.to_owned(), content.to_owned())]
    };
    let is_text = file.file.is_empty() && !is_secret;
    let mut data = Map::new();
    for (key, value) in entries {
        let value = if is_text {
            json!(String::from_utf8_lossy(&value))
        } else {
            json!(STANDARD.encode(value))
        };
        data.insert(key, value);
    }
    let mut object = json!({
        "apiVersion": "v1", "kind": file.kind,
        "metadata": { "name": id.name, "namespace": id.namespace },
    });
    if is_secret {
        object["type"] = json!("Opaque");
    }
    let field = if is_secret || is_text { "data" } else { "binaryData" };
    object[field] = Value::Object(data);
    Ok(object)
}

/// Parses lines such as `KEY=value`; `#` begins a comment.
fn variables(content: &[u8], path: &str) -> Result<Vec<(String, Vec<u8>)>, TaskFailure> {
    let text = std::str::from_utf8(content).map_err(|_| invalid_file(path, "is not UTF-8"))?;
    let mut variables = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        if !is_variable(key) {
            let message = format!("line {}: {key:?} is no name of a variable", index + 1);
            return Err(invalid_file(path, &message));
        }
        variables.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    Ok(variables)
}

fn invalid_file(path: &str, message: &str) -> TaskFailure {
    TaskFailure::new(&reasons::PIPE_TASK_ERROR, format!("file {path}: {message}"))
}

/// Returns whether a text is a valid name of an environment variable in Kubernetes.
fn is_variable(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(is_first_of_variable)
        && characters.all(|c| is_first_of_variable(c) || c.is_ascii_digit())
}

fn is_first_of_variable(character: char) -> bool {
    character.is_ascii_alphabetic() || matches!(character, '_' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(file: &str, env_file: &str, kind: &str) -> PipeFile {
        let text = ToOwned::to_owned;
        PipeFile { file: text(file), env_file: text(env_file), kind: text(kind), key: text("K") }
    }

    fn made(pipe: &PipeFile, content: &str) -> Value {
        artifact(pipe, &ObjectId::default(), content.as_bytes()).unwrap()
    }

    #[test]
    fn a_file_becomes_one_entry_of_its_name() {
        let secret = made(&file("/tmp/cow.txt", "", "Secret"), "moo");
        assert_eq!(
            (&secret["type"], &secret["data"]),
            (&json!("Opaque"), &json!({ "cow.txt": "bW9v" }))
        );
        let config = made(&file("/tmp/cow.txt", "", "ConfigMap"), "");
        assert_eq!(config["binaryData"], json!({ "cow.txt": "" }), "empty files are legal");
    }

    #[test]
    fn a_file_of_variables_becomes_an_entry_for_each() {
        let content = "\u{feff}# comment\n\n  A=1=2\nB_C=\nD\n";
        let config = made(&file("", "/tmp/env", "ConfigMap"), content);
        assert_eq!(config["data"], json!({ "A": "1=2", "B_C": "", "D": "" }));
        let secret = made(&file("", "/tmp/env", "Secret"), "A=1\n");
        assert_eq!(secret["data"], json!({ "A": "MQ==" }));
        let pipe = file("", "/tmp/env", "Secret");
        let error = artifact(&pipe, &ObjectId::default(), b"A=1\n1B=2\n").unwrap_err();
        assert!(error.message.contains("line 2"), "{}", error.message);
    }
}
