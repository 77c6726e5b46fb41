//! Requests to the servers of the operators.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

/// Requests a path, and returns the response with its head.
///
/// # Errors
///
/// If nothing listens there, or the response is not text.
pub fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}
