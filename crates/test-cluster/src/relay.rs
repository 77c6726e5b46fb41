//! Relay of TCP connections that can lose those without traffic, as a firewall does that forgets
//! them: it neither forwards nor closes them, so both sides take them for open.

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Time without traffic after which a connection is lost by [`Relay::lose_idle_connections`].
const IDLE: Duration = Duration::from_secs(4);

/// Listens on a loopback address until it is dropped.
pub struct Relay {
    /// Address of the listener.
    pub address: SocketAddr,
    losses: watch::Sender<()>,
    lost: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Starts to relay connections to `target`.
    ///
    /// # Errors
    ///
    /// If no loopback address is free.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (losses, receiver) = watch::channel(());
        let lost = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        let count = lost.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(relay(client, target, receiver.clone(), count.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, losses, lost, _tasks: tasks })
    }

    /// Loses the connections that had no traffic for some seconds, and returns their number.
    pub async fn lose_idle_connections(&self) -> usize {
        self.losses.send_replace(());
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.lost.load(Ordering::Relaxed)
    }
}

async fn relay(
    client: TcpStream,
    target: SocketAddr,
    mut losses: watch::Receiver<()>,
    lost: Arc<AtomicUsize>,
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let latest = Mutex::new(Instant::now());
    let requests = forward(&mut from_client, &mut to_server, &latest);
    let responses = forward(&mut from_server, &mut to_client, &latest);
    let mut ended = pin!(async {
        tokio::select! { () = requests => {}, () = responses => {} }
    });
    losses.mark_unchanged();
    loop {
        tokio::select! {
            () = &mut ended => return,
            changed = losses.changed() => {
                if changed.is_err() {
                    return;
                }
                if latest.lock().elapsed() > IDLE {
                    lost.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// Forwards bytes in one direction until it ends.
async fn forward(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    latest: &Mutex<Instant>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        *latest.lock() = Instant::now();
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
