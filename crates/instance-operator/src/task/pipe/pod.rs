//! The Pod of a Pipe task: its init container creates the files, and an added container waits until
//! the files are read.

use podops_packages::yaml;
use serde_json::{Value, json};

use crate::{
    object::{items, map_at, object_type, text},
    reasons,
    task::context::TaskFailure,
};

/// Annotation of the Pods of Pipe tasks.
const PIPE_POD: (&str, &str) = ("kudo.dev/pipepod", "true");

/// Name of the added container.
pub(super) const WAITER: &str = "waiter";

/// Image of the added container, unless the task specifies another.
const IMAGE: &str = "busybox:1.37.0";

/// Returns the Pod with its name and the added container.
pub(super) fn with_waiter<'a>(
    source: &str,
    name: &str,
    image: &str,
    files: impl Iterator<Item = &'a str>,
) -> Result<Value, TaskFailure> {
    let mut pod = yaml::read(source).map_err(|error| unreadable(error.to_string()))?;
    let found = object_type(&pod);
    if !found.is("", "Pod") || found.api_version != "v1" {
        return Err(unreadable(format!(
            "the template of a Pipe task must be a v1 Pod, not {found}"
        )));
    }
    let mount = checked(&pod, files)?;
    if let Some(metadata) = map_at(&mut pod, &["metadata"]) {
        metadata.insert("name".to_owned(), json!(name));
    }
    if let Some(annotations) = map_at(&mut pod, &["metadata", "annotations"]) {
        annotations.insert(PIPE_POD.0.to_owned(), json!(PIPE_POD.1));
    }
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    let image = if image.is_empty() { IMAGE } else { image };
    pod["spec"]["containers"] = json!([{
        "name": WAITER, "image": image, "command": ["/bin/sh", "-c", "sleep infinity"],
        "volumeMounts": [mount],
    }]);
    Ok(pod)
}

fn unreadable(message: String) -> TaskFailure {
    TaskFailure::new(&reasons::RESOURCE_UNMARSHAL_ERROR, message)
}

/// Validates a Pod, and returns the mount of its volume.
fn checked<'a>(pod: &Value, files: impl Iterator<Item = &'a str>) -> Result<Value, TaskFailure> {
    if items(pod, "/spec/containers").next().is_some() {
        return Err(invalid("the Pod of a Pipe task must have init containers only".to_owned()));
    }
    let init: Vec<&Value> = items(pod, "/spec/initContainers").collect();
    let [init] = init[..] else {
        return Err(invalid("the Pod of a Pipe task must have one init container".to_owned()));
    };
    let volumes: Vec<&Value> = items(pod, "/spec/volumes").collect();
    let [volume] = volumes[..] else {
        return Err(invalid("the Pod of a Pipe task must have one volume".to_owned()));
    };
    if volume.get("emptyDir").is_none() {
        return Err(invalid("the volume of a Pipe task must be an emptyDir".to_owned()));
    }
    if !matches!(text(pod, "/spec/restartPolicy"), "" | "OnFailure") {
        return Err(invalid("the restartPolicy of a Pipe task must be OnFailure".to_owned()));
    }
    let mut mounts = items(init, "/volumeMounts").filter(|mount| mount["name"] == volume["name"]);
    let Some(mount) = mounts.next() else {
        return Err(invalid("the init container of a Pipe task must mount the volume".to_owned()));
    };
    let path = text(mount, "/mountPath").trim_end_matches('/');
    for file in files {
        let below = file.strip_prefix(path).and_then(|rest| rest.strip_prefix('/'));
        let name = file.rsplit('/').next().unwrap_or_default();
        if below.is_none() || !name.chars().any(is_name) || file.contains("..") {
            return Err(invalid(format!("file {file} must be below the mounted volume {path}")));
        }
    }
    Ok(mount.clone())
}

fn invalid(message: String) -> TaskFailure {
    TaskFailure::new(&reasons::RESOURCE_VALIDATION_ERROR, message)
}

/// Returns whether a character is valid in a key of a ConfigMap.
fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '.' | '_')
}
