//! Metrics in Prometheus' text format, over as much of HTTP as it takes: a request a connection, of which the first line counts.
//! It runs in the process of the data plane, so nothing that is sent here may cost much memory, a thread for long, or more.

mod text;

use super::Asking;
use super::guests::{PATIENCE, receive};
use core::net::SocketAddr;
use miette::{MietteDiagnostic, Report};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// The text format's own name
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Bytes of a request's head at most
const LONGEST: usize = 4096;

/// Serves `/metrics` there for as long as the process lasts.
pub(super) fn serve(address: SocketAddr, asking: Asking) -> Result<(), Report> {
    let cannot = |error: io::Error| -> Report {
        MietteDiagnostic::new(format!("[observe] cannot listen for Prometheus at {address}: {error}"))
            .with_help("is the port taken by another instance? `prometheus` names the address")
            .into()
    };
    let listener = TcpListener::bind(address).map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    eprintln!("Metrics for Prometheus are at http://{at}/metrics.");
    if !at.ip().is_loopback() {
        eprintln!(
            "WARNING: anybody who reaches {at} can read them, without a password. A loopback address in [observe] keeps them \
             on this machine."
        );
    }
    let answer = move |stream: &TcpStream| {
        stream.set_write_timeout(Some(PATIENCE))?;
        let answer = match head(stream)? {
            Some(head) => answer(&head, || asking.snapshot().map(|snapshot| text::of(&snapshot))),
            None => response("400 Bad Request", "That is no request.\n", true),
        };
        say(stream, &answer)
    };
    let turn_away = |stream: &TcpStream| {
        say(stream, &response("503 Service Unavailable", "Too many ask at once.\n", true))
    };
    thread::Builder::new()
        .name("observe-http".into())
        .spawn(move || receive(listener.incoming(), answer, turn_away))
        .map_err(|error| miette::miette!("no thread for Prometheus: {error}"))?;
    Ok(())
}

/// A request up to the empty line, which has to come soon; `None` if it is too long.
fn head(mut stream: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    let began = crate::run::now();
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = PATIENCE.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        let mut bytes = [0; LONGEST];
        match stream.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => head.extend(&bytes[..more]),
        }
        if head.len() > LONGEST {
            return Ok(None);
        }
    }
    Ok(Some(head))
}

/// What a request is answered. The metrics are asked for if it asks for them.
fn answer(head: &[u8], metrics: impl FnOnce() -> Option<String>) -> String {
    let line = head.split(|byte| *byte == b'\r').next().and_then(|line| str::from_utf8(line).ok());
    let words: Vec<_> = line.unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else {
        return response("400 Bad Request", "That is no request.\n", true);
    };
    if !version.starts_with("HTTP/1.") {
        return response("505 HTTP Version Not Supported", "HTTP/1.1 is spoken here.\n", true);
    }
    if !matches!(method, "GET" | "HEAD") {
        return response("405 Method Not Allowed", "Metrics are there to be read.\n", true);
    }
    let path = target.split('?').next().unwrap_or_default();
    let (status, text) = match (path, metrics) {
        ("/metrics", metrics) => match metrics() {
            Some(text) => ("200 OK", text),
            None => ("503 Service Unavailable", "The instance is ending.\n".into()),
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

fn say(mut stream: &TcpStream, answer: &str) -> io::Result<()> {
    stream.write_all(answer.as_bytes())?;
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> String {
        let answer = answer(head.as_bytes(), || Some("numbers".into()));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        format!("{} {body}", head.split(' ').nth(1).unwrap())
    }

    #[test]
    fn requests_are_answered_by_their_first_line() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "200 numbers");
        assert_eq!(
            status("GET /metrics?a=b HTTP/1.0\r\nContent-Length: 18446744073709551615\r\n\r\n"),
            "200 numbers"
        );
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\n\r\n"), "200 ");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404 Metrics are at /metrics.\n");
        assert_eq!(status("DELETE /metrics HTTP/1.1\r\n\r\n"), "405 Metrics are there to be read.\n");
        assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "505 HTTP/1.1 is spoken here.\n");
        for head in [
            "\r\n\r\n",
            "GET\r\n\r\n",
            "GET /metrics\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\n\r\n",
            "\u{1}\u{2}",
        ] {
            assert_eq!(status(head), "400 That is no request.\n", "{head:?}");
        }
        assert!(answer(b"GET /metrics HTTP/1.1\r\n\r\n", || None).starts_with("HTTP/1.1 503"));
    }
}
