//! Metrics in Prometheus' text format, over HTTP.

mod text;

use super::Asking;
use core::net::SocketAddr;
use miette::{MietteDiagnostic, Report};
use std::thread;
use tiny_http::{Header, Method, Response, Server, StatusCode};

/// The text format's own name
const CONTENT_TYPE: &[u8] = b"text/plain; version=0.0.4; charset=utf-8";

/// Serves `/metrics` there for as long as the process lasts.
pub(super) fn serve(address: SocketAddr, asking: Asking) -> Result<(), Report> {
    let server = Server::http(address).map_err(|error| -> Report {
        MietteDiagnostic::new(format!("[observe] cannot listen for Prometheus at {address}: {error}"))
            .with_help("is the port taken by another instance? `prometheus` names the address")
            .into()
    })?;
    let at = server.server_addr().to_ip().unwrap_or(address);
    eprintln!("Metrics for Prometheus are at http://{at}/metrics.");
    if !at.ip().is_loopback() {
        eprintln!(
            "WARNING: anybody who reaches {at} can read them, without a password. A loopback address in [observe] keeps them \
             on this machine."
        );
    }
    let answer_all = move || {
        for request in server.incoming_requests() {
            let (code, text) = match (request.method(), request.url()) {
                (Method::Get | Method::Head, "/metrics") => match asking.snapshot() {
                    Some(snapshot) => (200, text::of(&snapshot)),
                    None => (503, "The instance is ending.\n".into()),
                },
                (Method::Get | Method::Head, _) => (404, "Metrics are at /metrics.\n".into()),
                _ => (405, "Metrics are there to be read.\n".into()),
            };
            let content_type = Header::from_bytes(&b"Content-Type"[..], CONTENT_TYPE).expect("a header");
            let response =
                Response::from_string(text).with_status_code(StatusCode(code)).with_header(content_type);
            // Who has gone away needs no answer.
            _ = request.respond(response);
        }
    };
    thread::Builder::new()
        .name("observe-http".into())
        .spawn(answer_all)
        .map_err(|error| miette::miette!("no thread for Prometheus: {error}"))?;
    Ok(())
}
