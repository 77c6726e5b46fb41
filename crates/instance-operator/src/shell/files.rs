//! Reads files of Pods with the command `cat` in a container.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, copy, sink},
    time::{Instant, timeout_at},
};

use super::objects::{Objects, response_of};
use crate::{
    object::{
        file::{FileRead, ReadFile},
        text,
    },
    task::FILE_BYTES_MAX,
};

/// Number of concurrent commands.
const COMMANDS: usize = 8;
/// Timeout for reading all files of a reconcile: a reconcile times out after one minute.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a failed command's message, in bytes.
const MESSAGE_MAX: usize = 500;
/// Buffer for the file's content, in bytes.
const BUFFER: usize = 64 << 10;

/// Reason why a file was not read; a retry may help.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The command was not started.
    #[error("{}", response_of(.0))]
    Exec(#[from] kube::Error),
    /// The result of the command is unknown, so the output may be incomplete.
    #[error("the connection ended before the command did")]
    Interrupted,
    /// The command timed out.
    #[error("no result within {}s", TIMEOUT.as_secs())]
    Timeout,
    /// Another Pod has the name, and the command may have run in that Pod.
    #[error("the Pod was replaced while the file was read")]
    Replaced,
    /// The UID of the Pod could not be read.
    #[error("{0}")]
    Check(String),
}

/// Files that were read, or errors. KUDO's plans fail if a command was not started or did not end
/// (K28).
pub(super) type Reads = Vec<(ReadFile, Result<FileRead, Error>)>;

/// Reads files, and then the UIDs of their Pods. A command runs in the Pod that has the name at
/// that moment: a paused former leader must not read the Pod of a later run, which its successor
/// created.
pub(super) async fn read(objects: &Objects<'_>, files: &BTreeSet<ReadFile>) -> Reads {
    let until = Instant::now() + TIMEOUT;
    let reads = files.iter().cloned().map(|file| async move {
        let read = read_one(&objects.client, &file, until).await;
        (file, read)
    });
    let mut reads: Reads = stream::iter(reads).buffer_unordered(COMMANDS).collect().await;
    let mut pods = BTreeMap::new();
    for file in files {
        if !pods.contains_key(&file.pod) {
            let pod = objects.read_metadata(&file.pod).await.map_err(|error| error.message());
            pods.insert(&file.pod, pod);
        }
    }
    for (file, read) in &mut reads {
        if read.is_ok()
            && let Err(error) = check(file, &pods[&file.pod])
        {
            *read = Err(error);
        }
    }
    reads
}

/// Checks that a file was read in the intended Pod, by the metadata read afterwards.
///
/// # Errors
///
/// If the Pod was replaced, or its UID is unknown.
fn check(file: &ReadFile, pod: &Result<Option<Value>, String>) -> Result<(), Error> {
    match pod {
        Ok(Some(pod)) if text(pod, "/metadata/uid") == file.uid => Ok(()),
        Ok(_) => Err(Error::Replaced),
        Err(message) => Err(Error::Check(message.clone())),
    }
}

/// Reads a file, until this time at the latest.
async fn read_one(client: &Client, file: &ReadFile, until: Instant) -> Result<FileRead, Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), &file.pod.namespace);
    let params = AttachParams::default()
        .container(&file.container)
        .stdin(false)
        .stdout(true)
        .stderr(true)
        .max_stdout_buf_size(BUFFER);
    let reading = async {
        let command = ["cat", file.path.as_str()];
        result_of(pods.exec(&file.pod.name, command, &params).await?).await
    };
    timeout_at(until, reading).await.unwrap_or(Err(Error::Timeout))
}

async fn result_of(mut process: AttachedProcess) -> Result<FileRead, Error> {
    let status = process.take_status().ok_or(Error::Interrupted)?;
    let content = read_up_to(process.stdout(), FILE_BYTES_MAX + 1);
    let message = read_up_to(process.stderr(), MESSAGE_MAX);
    let (content, message) = futures::join!(content, message);
    if content.len() > FILE_BYTES_MAX {
        return Ok(FileRead::TooLarge);
    }
    let status = status.await.ok_or(Error::Interrupted)?;
    match status.status.as_deref() {
        Some("Success") => Ok(FileRead::Content(content)),
        Some("Failure") => {
            let printed = String::from_utf8_lossy(&message).trim().to_owned();
            let parts = [status.message, status.reason, Some(printed)];
            let parts: Vec<String> =
                parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
            Ok(FileRead::CommandFailed(parts.join(": ")))
        }
        _ => Err(Error::Interrupted),
    }
}

/// Reads the first bytes of an output. The rest is read up to the same limit, so that the command
/// is not blocked; a longer output is cut off with the connection.
async fn read_up_to(output: Option<impl AsyncRead + Unpin>, limit: usize) -> Vec<u8> {
    let mut content = Vec::new();
    let Some(output) = output else { return content };
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let mut limited = output.take(limit);
    // An interrupted connection has no status, which is reported.
    if limited.read_to_end(&mut content).await.is_ok() {
        let rest = copy(&mut limited.into_inner().take(limit), &mut sink()).await;
        drop(rest);
    }
    content
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::ObjectId;

    #[test]
    fn a_file_of_a_replaced_pod_is_not_used() {
        let id = ObjectId::default();
        let file = |uid: &str| ReadFile {
            pod: id.clone(),
            uid: uid.to_owned(),
            container: String::new(),
            path: String::new(),
        };
        let pod = Ok(Some(json!({ "metadata": { "uid": "new" } })));
        assert!(check(&file("new"), &pod).is_ok());
        assert!(matches!(check(&file("old"), &pod), Err(Error::Replaced)));
        assert!(matches!(check(&file("old"), &Ok(None)), Err(Error::Replaced)));
        let denied = check(&file("old"), &Err("denied".to_owned()));
        assert!(matches!(denied, Err(Error::Check(message)) if message == "denied"));
    }
}
