//! Certificate authority of the cluster. A client reads it once, so a process ends when it changes,
//! and Kubernetes starts another one; a replica that is not the leader would otherwise go on without
//! a connection.

use std::{fs, future::pending, path::Path, time::Duration};

use tokio::time::sleep;

/// Certificates that Kubernetes mounts into each Pod.
pub(crate) const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
/// Interval at which the file is read.
const INTERVAL: Duration = Duration::from_secs(10);

/// Waits until the file has another content than now; without end if it does not exist, because the
/// process runs outside of a cluster.
pub(crate) async fn changed(file: &Path) {
    let Ok(first) = fs::read(file) else { return pending().await };
    loop {
        sleep(INTERVAL).await;
        // The file is replaced as a whole; while that fails, the old certificates are in force.
        if fs::read(file).is_ok_and(|now| !now.is_empty() && now != first) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_certificate_authority_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        assert!(Box::pin(changed(&file)).now_or_never().is_none(), "outside of a cluster");
        fs::write(&file, "old").unwrap();
        let mut changed = Box::pin(changed(&file));
        assert!((&mut changed).now_or_never().is_none());
        sleep(10 * INTERVAL).await;
        assert!((&mut changed).now_or_never().is_none(), "the same content");
        fs::write(&file, "new").unwrap();
        sleep(2 * INTERVAL).await;
        assert!((&mut changed).now_or_never().is_some());
    }
}
