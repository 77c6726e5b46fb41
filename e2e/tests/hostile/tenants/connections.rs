//! Connections that a client holds to the ports of the operators.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{interval, timeout},
};

/// Number of connections from one address.
const CONNECTIONS: usize = 200;
/// Number of connections that the tenant holds to each port of probes, which accepts 128.
pub(super) const TO_PROBES: usize = 140;
/// Number of connections that the tenant holds to each port of webhooks, which accepts 256.
pub(super) const TO_WEBHOOKS: usize = 280;
/// Number of connections that the tenant holds to the xDS port, which accepts more.
pub(super) const TO_XDS: usize = 200;
/// Number of addresses from which it opens them, so that few are closed because of their address.
const SOURCES: usize = 20;
/// Most connections to the xDS port that one client may have.
const XDS_CONNECTIONS: usize = 32;
/// Failed probes after which the kubelet restarts an operator.
const PROBE_FAILURES: usize = 3;

/// Opens connections from another address than that of the probes, each with an unfinished request.
pub(super) async fn hold_connections(address: SocketAddr) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // The write fails if the operator has closed the connection already.
        drop(stream.write_all(b"GET /livez HTTP/1.1\r\n").await);
        held.push(stream);
    }
    held
}

/// Holds connections until it is dropped; every second, it opens others in place of those that are
/// closed.
pub(super) async fn flood(address: SocketAddr, connections: usize) {
    let mut held: Vec<TcpStream> = Vec::new();
    let mut second = interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        held.retain(is_open);
        for n in held.len()..connections {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.0.{}:0", 2 + n % SOURCES).parse().unwrap()).unwrap();
            held.extend(socket.connect(address).await.ok());
        }
    }
}

/// Returns whether a connection on which nothing was sent is open.
fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0; 64]);
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// The connections of a client beyond the limit are closed, and another client is served.
pub(super) async fn assert_envoys_are_served(address: SocketAddr, held: &[TcpStream]) {
    // Nothing is sent without a greeting of HTTP/2.
    let closed = held.iter().filter(|stream| !is_open(stream)).count();
    assert!(closed >= CONNECTIONS - XDS_CONNECTIONS, "{closed} of {CONNECTIONS} are closed");
    let greeting = async || {
        let mut stream = TcpStream::connect(address).await?;
        // The preface of HTTP/2 with empty settings.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        let mut settings = [0; 9];
        stream.read_exact(&mut settings).await?;
        std::io::Result::Ok(settings)
    };
    let settings = timeout(Duration::from_secs(5), greeting()).await.unwrap().unwrap();
    assert_eq!(settings[3], 4, "a frame with the settings of the server");
}

/// As the kubelet probes: from its own address, with a timeout of one second.
pub(super) async fn assert_probe_is_answered(address: SocketAddr) {
    let probe = async || {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        std::io::Result::Ok(response)
    };
    let mut results = Vec::new();
    for _ in 0..PROBE_FAILURES {
        match timeout(Duration::from_secs(1), probe()).await {
            Ok(Ok(response)) if response.starts_with("HTTP/1.1 200") => return,
            result => results.push(result),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("the operator would be restarted: {results:?}");
}
