//! Limits how much of the xDS server one client may take, by its address.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::Stream;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Time to wait after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Time for a client to send the preface of HTTP/2, or to begin the TLS handshake.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Length of the preface of HTTP/2, in bytes.
const PREFACE_LENGTH: usize = 24;

/// Limits the permits in use, by client address and in total.
#[derive(Debug)]
pub(super) struct SourceLimit {
    per_source: usize,
    total: usize,
    in_use: Mutex<BTreeMap<IpAddr, usize>>,
}

impl SourceLimit {
    pub(super) fn new(per_source: usize, total: usize) -> Arc<Self> {
        Arc::new(Self { per_source, total, in_use: Mutex::default() })
    }

    /// Takes one, until the permit is dropped; none if the limit is reached. Clients without an
    /// address share one.
    pub(super) fn take(self: &Arc<Self>, source: Option<IpAddr>) -> Option<Permit> {
        // Not by network: the Envoys of one node often share a /64.
        let source = source.unwrap_or(Ipv4Addr::UNSPECIFIED.into()).to_canonical();
        let mut in_use = self.in_use.lock();
        let of_source = in_use.get(&source).copied().unwrap_or_default();
        if of_source >= self.per_source || in_use.values().sum::<usize>() >= self.total {
            return None;
        }
        in_use.insert(source, of_source + 1);
        Some(Permit { limit: self.clone(), source })
    }
}

/// One unit of a [`SourceLimit`], in use until dropped.
#[derive(Debug)]
pub(super) struct Permit {
    limit: Arc<SourceLimit>,
    source: IpAddr,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut in_use = self.limit.in_use.lock();
        if let Some(count) = in_use.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                in_use.remove(&self.source);
            }
        }
    }
}

/// Returns the connections of a listener; those beyond the limit are closed at once.
pub(super) fn accepted(
    listener: TcpListener,
    limit: Arc<SourceLimit>,
) -> impl Stream<Item = io::Result<Connection>> {
    futures::stream::unfold((listener, limit), async |(listener, limit)| {
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    if let Some(permit) = limit.take(Some(client.ip())) {
                        // Pushes are small, and a Pod waits for each.
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!(%error, "Cannot disable delays of a connection");
                        }
                        let connection = Connection {
                            stream,
                            preface: Some(Preface::default()),
                            _permit: permit,
                        };
                        return Some((Ok(connection), (listener, limit)));
                    }
                    tracing::debug!(%client, "Closing a connection: too many are open");
                }
                // For example too many open files: existing connections continue.
                Err(error) => {
                    tracing::warn!(%error, "Failed to accept a connection");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    })
}

/// A connection that counts against a limit while it is open. It fails if its client does not begin
/// to use it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// `None` once the preface is complete.
    preface: Option<Preface>,
    _permit: Permit,
}

/// Preface of a connection, which is not complete.
#[derive(Debug)]
struct Preface {
    deadline: Pin<Box<Sleep>>,
    received: usize,
}

impl Default for Preface {
    fn default() -> Self {
        Self { deadline: Box::pin(sleep(PREFACE_TIMEOUT)), received: 0 }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, preface, .. } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(context, buffer);
        let Some(waiting) = preface else { return read };
        if read.is_pending() {
            ready!(waiting.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        waiting.received += buffer.filled().len() - before;
        if waiting.received >= PREFACE_LENGTH {
            *preface = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn source(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[tokio::test]
    async fn a_connection_without_preface_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Box::pin(accepted(listener, SourceLimit::new(2, 2)));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut started = TcpStream::connect(address).await.unwrap();
        let mut of_silent = connections.next().await.unwrap().unwrap();
        let mut of_started = connections.next().await.unwrap().unwrap();
        silent.write_all(b"PRI").await.unwrap();
        started.write_all(&[0; PREFACE_LENGTH]).await.unwrap();
        assert_eq!(of_started.read(&mut [0; 64]).await.unwrap(), PREFACE_LENGTH);
        assert_eq!(of_silent.read(&mut [0; 64]).await.unwrap(), 3);
        tokio::time::pause();
        let error = of_silent.read(&mut [0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut buffer = [0; 64];
        let idle = tokio::time::timeout(PREFACE_TIMEOUT * 10, of_started.read(&mut buffer));
        assert!(idle.await.is_err(), "a connection that is in use may be silent");
    }

    #[test]
    fn one_client_cannot_take_what_others_need() {
        let limit = SourceLimit::new(2, 3);
        let of_first: Vec<_> = (0..5).filter_map(|_| limit.take(Some(source(1)))).collect();
        assert_eq!(of_first.len(), 2);
        let of_second = limit.take(Some(source(2)));
        assert!(of_second.is_some());
        assert!(limit.take(Some(source(3))).is_none(), "the total is reached");
        drop(of_first);
        assert!(limit.take(Some(source(3))).is_some());
        drop(of_second);
        assert_eq!(*limit.in_use.lock(), BTreeMap::new(), "nothing is left of ended clients");
    }
}
