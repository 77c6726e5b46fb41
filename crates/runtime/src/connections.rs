//! Limits the connections of a server, so that no client can exhaust them for the others.

use std::{
    collections::BTreeMap,
    future::Future,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

/// Limits of the connections of a server.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections from one address.
    pub per_source: usize,
    /// Time after which a connection is closed.
    pub lifetime: Duration,
}

/// Open connections of a server.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    tasks: JoinSet<()>,
    /// Oldest first.
    open: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    task: AbortHandle,
}

impl Connections {
    /// Creates an empty set of connections with these limits.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        Self { limits, tasks: JoinSet::new(), open: Vec::new() }
    }

    /// Serves a connection in a task of its own, if its source has fewer connections than the
    /// limit; otherwise closes it. If there are too many in total, the oldest of the source that
    /// has most is closed instead.
    pub fn spawn(&mut self, source: IpAddr, serve: impl Future<Output = ()> + Send + 'static) {
        let source = network(source);
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|connection| !connection.task.is_finished());
        let of_source = self.open.iter().filter(|connection| connection.source == source).count();
        if of_source >= self.limits.per_source {
            tracing::debug!(%source, "Closing a connection: too many from this address");
            return;
        }
        if self.open.len() >= self.limits.total {
            self.close_oldest_of_heaviest_source();
        }
        let lifetime = self.limits.lifetime;
        let task = self.tasks.spawn(async move {
            if timeout(lifetime, serve).await.is_err() {
                tracing::debug!(%source, "Closing a connection: it was open for too long");
            }
        });
        self.open.push(Connection { source, task });
    }

    fn close_oldest_of_heaviest_source(&mut self) {
        let mut numbers = BTreeMap::<IpAddr, usize>::new();
        for connection in &self.open {
            *numbers.entry(connection.source).or_default() += 1;
        }
        let heaviest = numbers.into_iter().max_by_key(|(_, number)| *number);
        let oldest = heaviest
            .and_then(|(source, _)| self.open.iter().position(|open| open.source == source));
        if let Some(index) = oldest {
            self.open.remove(index).task.abort();
        }
    }
}

/// Returns the part of an address that identifies a client: an IPv6 client has a whole /64 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { total: 6, per_source: 4, lifetime: Duration::from_secs(60) };

    fn source(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    /// Number of open connections by the last byte of their address.
    async fn numbers(connections: &Connections) -> Vec<usize> {
        // Aborted tasks end when they are polled.
        tokio::task::yield_now().await;
        let open = connections.open.iter().filter(|connection| !connection.task.is_finished());
        let sources: Vec<IpAddr> = open.map(|connection| connection.source).collect();
        (1..=3).map(|last| sources.iter().filter(|s| **s == source(last)).count()).collect()
    }

    #[tokio::test]
    async fn one_source_cannot_take_all_connections() {
        let mut connections = Connections::new(LIMITS);
        for _ in 0..10 {
            connections.spawn(source(1), pending());
        }
        assert_eq!(numbers(&connections).await, [4, 0, 0]);
        connections.spawn(source(2), pending());
        connections.spawn(source(2), pending());
        // Room is made at the source that has most.
        connections.spawn(source(3), pending());
        assert_eq!(numbers(&connections).await, [3, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_and_expired_connections_do_not_count() {
        let mut connections = Connections::new(LIMITS);
        for _ in 0..4 {
            connections.spawn(source(1), std::future::ready(()));
        }
        assert_eq!(numbers(&connections).await, [0, 0, 0]);
        for _ in 0..4 {
            connections.spawn(source(1), pending());
        }
        tokio::time::sleep(LIMITS.lifetime * 2).await;
        connections.spawn(source(1), pending());
        assert_eq!(numbers(&connections).await, [1, 0, 0]);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_source() {
        let same = network("2001:db8::1".parse().unwrap());
        assert_eq!(same, network("2001:db8::ffff:1".parse().unwrap()));
        assert_ne!(same, network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:127.0.0.1".parse().unwrap()), source(1));
    }
}
