//! Reads files of Pods, by the command `cat` in a container.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, copy, sink},
    time::{Instant, timeout_at},
};

use super::objects::response_of;
use crate::{
    object::file::{FileRead, ReadFile},
    task::FILE_BYTES_MAX,
};

/// Timeout for reading all files that an attempt needs: a reconcile is abandoned after a minute.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest message of a command that fails, in bytes.
const MESSAGE_MAX: usize = 500;
/// Buffer for the file's content, in bytes.
const BUFFER: usize = 64 << 10;

/// Why a file was not read; a retry may help.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The command was not started.
    #[error("{}", response_of(.0))]
    Exec(#[from] kube::Error),
    /// The result of the command is not known, and so the output may be incomplete.
    #[error("the connection ended before the command did")]
    Interrupted,
    /// The command takes too long.
    #[error("no result within {}s", TIMEOUT.as_secs())]
    Timeout,
}

/// Reads a file, until a time at the latest.
///
/// # Errors
///
/// If the command was not started, or did not end. KUDO's plans fail then (K28).
pub(super) async fn read(
    client: &Client,
    file: &ReadFile,
    until: Instant,
) -> Result<FileRead, Error> {
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

/// Reads the first bytes of an output. The rest of it is read up to the same limit, so that the command
/// is not blocked; a longer one ends with its connection.
async fn read_up_to(output: Option<impl AsyncRead + Unpin>, limit: usize) -> Vec<u8> {
    let mut content = Vec::new();
    let Some(output) = output else { return content };
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let mut limited = output.take(limit);
    // An interrupted connection has no status, and is reported so.
    if limited.read_to_end(&mut content).await.is_ok() {
        let rest = copy(&mut limited.into_inner().take(limit), &mut sink()).await;
        drop(rest);
    }
    content
}
