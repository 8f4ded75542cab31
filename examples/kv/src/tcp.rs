//! TCP clients: a thread for each reads commands and writes responses in the same order.

use crate::command::Request;
use crate::control::{ReplicaRequest, RequestSender};
use crate::replica::{Info, Response};
use crate::resp::{Parser, Value};
use crate::store::Outcome;
use consensus::BootstrapError;
use crossbeam_channel::Receiver;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Most clients at once
const MAX_CLIENTS: usize = 256;
/// Most commands of a client that are executed before their responses are written
const PIPELINE: usize = 128;

/// Serves clients until the process ends. `servers` are the client addresses of all servers, by number.
pub(crate) fn serve(listener: TcpListener, request_sender: RequestSender, servers: Vec<SocketAddr>) {
    let shared = Arc::new((request_sender, servers));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let client = Arc::clone(&shared);
            // All references except this thread's two
            if Arc::strong_count(&shared) > MAX_CLIENTS + 1 {
                _ = (&stream).write_all(b"-ERR too many clients\r\n");
                continue;
            }
            // If no thread can be started, the client is disconnected.
            drop(thread::Builder::new().spawn(move || serve_client(stream, &client.0, &client.1)));
        }
    });
}

enum Reply {
    Ready(Value),
    Pending(Receiver<Response>),
}

/// Serves a client until it disconnects or violates the protocol.
fn serve_client(
    mut stream: TcpStream,
    request_sender: &RequestSender,
    servers: &[SocketAddr],
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut parser = Parser::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let mut replies = Vec::new();
        let mut protocol_error = None;
        while replies.len() < PIPELINE {
            match parser.next() {
                Ok(Some(words)) => {
                    if !words.is_empty() {
                        replies.push(reply(&words, request_sender));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    protocol_error = Some(Value::error(format_args!("Protocol error: {error}")));
                    break;
                }
            }
        }
        let is_drained = replies.len() < PIPELINE;
        let mut output = Vec::new();
        for reply in replies {
            let value = match reply {
                Reply::Ready(value) => value,
                Reply::Pending(pending) => match pending.recv() {
                    Ok(response) => to_value(response, servers),
                    Err(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                },
            };
            value.encode(&mut output);
        }
        if let Some(error) = protocol_error {
            error.encode(&mut output);
            return stream.write_all(&output);
        }
        stream.write_all(&output)?;
        if is_drained {
            match stream.read(&mut chunk)? {
                0 => return Ok(()),
                len => parser.feed(&chunk[..len]),
            }
        }
    }
}

fn reply(words: &[Vec<u8>], request_sender: &RequestSender) -> Reply {
    match Request::from_words(words) {
        Ok(Request::Ping) => Reply::Ready(Value::Simple("PONG")),
        Ok(Request::Info) => Reply::Pending(request_sender.submit(ReplicaRequest::Info)),
        Ok(Request::Bootstrap) => Reply::Pending(request_sender.submit(ReplicaRequest::Bootstrap)),
        Ok(Request::Command(command)) => {
            Reply::Pending(request_sender.submit(ReplicaRequest::Command(command)))
        }
        Err(error) => Reply::Ready(Value::error(error)),
    }
}

fn to_value(response: Response, servers: &[SocketAddr]) -> Value {
    match response {
        Response::Applied(Outcome::Done) | Response::Bootstrapped(Ok(())) => Value::Simple("OK"),
        Response::Applied(Outcome::Number(number)) => Value::Number(number),
        Response::Applied(Outcome::Found(value)) => Value::Bulk(value),
        Response::Applied(Outcome::NotANumber) => Value::error("value is not an integer or out of range"),
        Response::Applied(Outcome::Full) => {
            Value::Error("OOM the store is full; delete keys or raise --max-state-mb".into())
        }
        Response::Applied(Outcome::Old) => Value::error(
            "a later command of this client has already been applied; number commands in ascending order",
        ),
        Response::TooLong(most) => {
            Value::error(format_args!("the command does not fit into {most} bytes; raise --max-value"))
        }
        // The same response as in a Redis cluster, whose clients follow it. The slot number is always 0.
        Response::NotLeader(Some(leader)) => {
            Value::Error(format!("MOVED 0 {}", servers[usize::from(leader)]))
        }
        Response::NotLeader(None) => Value::Error("NOLEADER there is no leader; try again".into()),
        Response::Unknown => Value::Error(
            "UNKNOWN this server lost the leadership; the command may or may not have been executed".into(),
        ),
        Response::Bootstrapped(Err(
            why @ (BootstrapError::Unseen(_) | BootstrapError::MayHoldEntries(_)),
        )) => Value::Error(format!("WAIT {why}")),
        Response::Bootstrapped(Err(why)) => Value::Error(format!("BEGUN {why}")),
        Response::Info(info) => Value::Bulk(Some(describe(&info, servers).into_bytes())),
    }
}

fn describe(info: &Info, servers: &[SocketAddr]) -> String {
    let leader = info.leader.map_or("none".into(), |leader| {
        format!("{leader}\r\nleader_address:{}", servers[usize::from(leader)])
    });
    format!(
        "id:{}\r\nrole:{}\r\nleader:{leader}\r\nstanding:{}\r\nwaits_for:{}\r\nrefused:{}\r\nterm:{}\r\nthrough_switch:{}\r\napplied:{}\r\nkeys:{}\r\n\
         used_bytes:{}\r\n",
        info.id,
        if info.leads { "leader" } else { "follower" },
        format!("{:?}", info.membership).to_lowercase(),
        info.waits_for.map_or("nothing".into(), |waiting| waiting.to_string()),
        info.refused,
        info.term,
        if info.through_switch { "yes" } else { "no" },
        info.applied,
        info.keys,
        info.used,
    )
}
