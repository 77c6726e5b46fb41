//! Shutdown signal of a process.

use tokio::sync::watch;

/// Shutdown signal for tasks.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Creates a shutdown signal and the sender that triggers it.
    #[must_use]
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Waits until shutdown is triggered or the sender is dropped.
    pub async fn wait(mut self) {
        self.0.wait_for(|stop| *stop).await.map_or_else(drop, drop);
    }
}
