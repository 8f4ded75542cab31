//! Metrics in Prometheus' text format, over a minimal HTTP server: one request per connection, of which only
//! the first line is evaluated. The server runs in the process of the data plane, so its use of memory and
//! threads is bounded, whatever clients send.

#[cfg(test)]
mod reference;
mod text;

use super::RequestSender;
use super::connections::{IO_TIMEOUT, accept_all};
use core::net::SocketAddr;
use miette::{MietteDiagnostic, Report};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use tracing::{info, warn};

/// Content type of the text format, version 0.0.4
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Largest head of a request, in bytes
const MAX_HEAD_LEN: usize = 4096;

/// Serves `/metrics` at `address` for the lifetime of the process.
pub(super) fn serve(address: SocketAddr, requests: RequestSender) -> Result<(), Report> {
    let bind_error = |error: io::Error| -> Report {
        MietteDiagnostic::new(format!("[observe] cannot listen for Prometheus at {address}: {error}"))
            .with_help("if another instance uses the port, set `prometheus` to another address")
            .into()
    };
    let listener = TcpListener::bind(address).map_err(bind_error)?;
    let at = listener.local_addr().map_err(bind_error)?;
    info!("Metrics for Prometheus are at http://{at}/metrics.");
    if !at.ip().is_loopback() {
        warn!(
            "every host that reaches {at} can read them without a password. Use a loopback address in [observe] to keep them \
             on this machine."
        );
    }
    let respond = move |stream: &TcpStream| {
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let reply = match head(stream)? {
            Some(head) => respond(&head, || requests.snapshot().map(|snapshot| text::of(&snapshot))),
            None => response("400 Bad Request", "Invalid request.\n", true),
        };
        send(stream, &reply)
    };
    let turn_away = |stream: &TcpStream| {
        send(stream, &response("503 Service Unavailable", "Too many connections.\n", true))
    };
    thread::Builder::new()
        .name("observe-http".into())
        .spawn(move || accept_all(listener.incoming(), respond, turn_away))
        .map_err(|error| miette::miette!("cannot start the thread for Prometheus: {error}"))?;
    Ok(())
}

/// Reads a request up to the empty line, within [`IO_TIMEOUT`]. Returns `None` if it is too long.
fn head(mut stream: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    let began = crate::system::now();
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let remaining = IO_TIMEOUT.checked_sub(began.elapsed()).filter(|remaining| !remaining.is_zero());
        stream.set_read_timeout(Some(remaining.ok_or(ErrorKind::TimedOut)?))?;
        let mut bytes = [0; MAX_HEAD_LEN];
        match stream.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => head.extend(&bytes[..more]),
        }
        if head.len() > MAX_HEAD_LEN {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

/// Returns the response to a request. Calls `metrics` only if the request is for the metrics.
fn respond(head: &[u8], metrics: impl FnOnce() -> Option<String>) -> String {
    let line = head.split(|byte| *byte == b'\r').next().and_then(|line| str::from_utf8(line).ok());
    let words: Vec<_> = line.unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else {
        return response("400 Bad Request", "Invalid request.\n", true);
    };
    if !version.starts_with("HTTP/1.") {
        return response("505 HTTP Version Not Supported", "Use HTTP/1.1.\n", true);
    }
    if !matches!(method, "GET" | "HEAD") {
        return response("405 Method Not Allowed", "Use GET or HEAD.\n", true);
    }
    let path = target.split('?').next().unwrap_or_default();
    let (status, text) = match (path, metrics) {
        ("/metrics", metrics) => match metrics() {
            Some(text) => ("200 OK", text),
            None => ("503 Service Unavailable", "The instance is shutting down.\n".into()),
        },
        _ => ("404 Not Found", "Metrics are at /metrics.\n".into()),
    };
    response(status, &text, method == "GET")
}

fn response(status: &str, text: &str, whole: bool) -> String {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{}",
        text.len(),
        if whole { text } else { "" },
    )
}

fn send(mut stream: &TcpStream, reply: &str) -> io::Result<()> {
    stream.write_all(reply.as_bytes())?;
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> String {
        let reply = respond(head.as_bytes(), || Some("numbers".into()));
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        format!("{} {body}", head.split(' ').nth(1).unwrap())
    }

    #[test]
    fn responses_depend_on_the_first_line_of_the_request() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "200 numbers");
        assert_eq!(
            status("GET /metrics?a=b HTTP/1.0\r\nContent-Length: 18446744073709551615\r\n\r\n"),
            "200 numbers"
        );
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\n\r\n"), "200 ");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404 Metrics are at /metrics.\n");
        assert_eq!(status("DELETE /metrics HTTP/1.1\r\n\r\n"), "405 Use GET or HEAD.\n");
        assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "505 Use HTTP/1.1.\n");
        for head in [
            "\r\n\r\n",
            "GET\r\n\r\n",
            "GET /metrics\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\n\r\n",
            "\u{1}\u{2}",
        ] {
            assert_eq!(status(head), "400 Invalid request.\n", "{head:?}");
        }
        assert!(respond(b"GET /metrics HTTP/1.1\r\n\r\n", || None).starts_with("HTTP/1.1 503"));
    }
}
