//! TCP clients: a thread for each reads commands and writes responses in the same order.

use crate::command::Request;
use crate::desk::{Ask, Counter};
use crate::replica::{Answer, Info};
use crate::resp::{Parser, Value};
use crate::store::Outcome;
use crossbeam_channel::Receiver;
use p4ce::consensus::BootstrapError;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Most clients at once
const CLIENTS: usize = 256;
/// Most commands of a client that are executed before their responses are written
const PIPELINE: usize = 128;

/// Serves clients until the process ends. `servers` are the client addresses of all servers, by number.
pub(crate) fn serve(listener: TcpListener, counter: Counter, servers: Vec<SocketAddr>) {
    let shared = Arc::new((counter, servers));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let client = Arc::clone(&shared);
            // All references except this thread's two
            if Arc::strong_count(&shared) > CLIENTS + 1 {
                _ = (&stream).write_all(b"-ERR too many clients\r\n");
                continue;
            }
            // If no thread can be started, the client is disconnected.
            drop(thread::Builder::new().spawn(move || talk(stream, &client.0, &client.1)));
        }
    });
}

enum Reply {
    Ready(Value),
    Asked(Receiver<Answer>),
}

/// Serves a client until it disconnects or violates the protocol.
fn talk(mut stream: TcpStream, counter: &Counter, servers: &[SocketAddr]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut parser = Parser::default();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let mut replies = Vec::new();
        let mut garbage = None;
        while replies.len() < PIPELINE {
            match parser.next() {
                Ok(Some(words)) => {
                    if !words.is_empty() {
                        replies.push(reply(&words, counter));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    garbage = Some(Value::error(format_args!("Protocol error: {error}")));
                    break;
                }
            }
        }
        let all = replies.len() < PIPELINE;
        let mut output = Vec::new();
        for reply in replies {
            let value = match reply {
                Reply::Ready(value) => value,
                Reply::Asked(answered) => match answered.recv() {
                    Ok(answer) => to_value(answer, servers),
                    Err(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                },
            };
            value.encode(&mut output);
        }
        if let Some(error) = garbage {
            error.encode(&mut output);
            return stream.write_all(&output);
        }
        stream.write_all(&output)?;
        if all {
            match stream.read(&mut chunk)? {
                0 => return Ok(()),
                len => parser.feed(&chunk[..len]),
            }
        }
    }
}

fn reply(words: &[Vec<u8>], counter: &Counter) -> Reply {
    match Request::from_words(words) {
        Ok(Request::Ping) => Reply::Ready(Value::Simple("PONG")),
        Ok(Request::Info) => Reply::Asked(counter.ask(Ask::Info)),
        Ok(Request::Bootstrap) => Reply::Asked(counter.ask(Ask::Bootstrap)),
        Ok(Request::Command(command)) => Reply::Asked(counter.ask(Ask::Command(command))),
        Err(error) => Reply::Ready(Value::error(error)),
    }
}

fn to_value(answer: Answer, servers: &[SocketAddr]) -> Value {
    match answer {
        Answer::Applied(Outcome::Done) | Answer::Begun(Ok(())) => Value::Simple("OK"),
        Answer::Applied(Outcome::Number(number)) => Value::Number(number),
        Answer::Applied(Outcome::Found(value)) => Value::Bulk(value),
        Answer::Applied(Outcome::NotANumber) => Value::error("value is not an integer or out of range"),
        Answer::Applied(Outcome::Full) => {
            Value::Error("OOM the store is full; delete keys or raise --max-state-mb".into())
        }
        Answer::Applied(Outcome::Old) => Value::error(
            "a later command of this client has already been applied; number commands in ascending order",
        ),
        Answer::TooLong(most) => {
            Value::error(format_args!("the command does not fit into {most} bytes; raise --max-value"))
        }
        // The same response as in a Redis cluster, whose clients follow it. The slot number is always 0.
        Answer::NotLeader(Some(leader)) => Value::Error(format!("MOVED 0 {}", servers[usize::from(leader)])),
        Answer::NotLeader(None) => Value::Error("NOLEADER there is no leader; try again".into()),
        Answer::Unknown => Value::Error(
            "UNKNOWN this server lost the leadership; the command may or may not have been executed".into(),
        ),
        Answer::Begun(Err(why @ (BootstrapError::Unseen(_) | BootstrapError::Written(_)))) => {
            Value::Error(format!("WAIT {why}"))
        }
        Answer::Begun(Err(why)) => Value::Error(format!("BEGUN {why}")),
        Answer::Info(info) => Value::Bulk(Some(describe(&info, servers).into_bytes())),
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
        format!("{:?}", info.standing).to_lowercase(),
        info.waits_for.map_or("nothing".into(), |waiting| waiting.to_string()),
        info.refused,
        info.term,
        if info.through_switch { "yes" } else { "no" },
        info.applied,
        info.keys,
        info.used,
    )
}
