//! `kv check` against in-process servers that are correct, or have a defect that it has to find.

use super::*;
use crate::command::{Command, Operation as StoreOperation, Request};
use crate::resp::Parser;
use crate::store::{Outcome, Store};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

/// The defect of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    Nothing,
    /// Reads of shared keys are served from a copy that is some writes old.
    StaleReads,
    /// A SET of a shared register is acknowledged, but the previous value reappears some commands later.
    LostUpdate,
    /// An INCR of a shared counter returns the previous INCR's number.
    LostIncrement,
    /// A command without a number is executed twice.
    Repeats,
    /// Connections break before the response, and the command may or may not be executed. This is allowed.
    Breaks,
}

/// A server and its state
struct State {
    defect: Defect,
    store: Store,
    /// A copy of the store, some commands old
    old: Store,
    commands: u64,
    /// An earlier value of a key that reappears: at which command, the key, and the value
    reappearing: Option<(u64, Vec<u8>, Vec<u8>)>,
}

/// Number of commands without any error in the beginning
const FAULTLESS_COMMANDS: u64 = 100;
/// Commands between two copies of the store, and between two errors
const FAULT_PERIOD: u64 = 40;

impl State {
    /// Returns the response to a command, or `None` if the connection breaks.
    fn execute(&mut self, command: Command) -> Option<Value> {
        self.commands += 1;
        let is_faulty = self.commands > FAULTLESS_COMMANDS && self.commands % FAULT_PERIOD < 8;
        let key_contains = |part: &str| String::from_utf8_lossy(&command.key).contains(part);
        let (shared, reads) = (
            key_contains(":register:") || key_contains(":counter:"),
            command.operation == StoreOperation::Get,
        );
        if self.commands % FAULT_PERIOD == 8 {
            self.old = self.store.clone();
        }
        if let Some((_, key, value)) = self.reappearing.take_if(|(at, ..)| *at <= self.commands) {
            self.store.apply(Command { operation: StoreOperation::Set(value), key, once: None });
        }
        match self.defect {
            Defect::StaleReads if is_faulty && shared && reads => {
                return Some(to_value(self.old.apply(command)));
            }
            Defect::LostUpdate
                if is_faulty && key_contains(":register:") && !reads && self.reappearing.is_none() =>
            {
                let get = Command { operation: StoreOperation::Get, once: None, ..command.clone() };
                if let Outcome::Found(Some(before)) = self.store.apply(get) {
                    self.reappearing = Some((self.commands + 3, command.key.clone(), before));
                }
            }
            Defect::LostIncrement if is_faulty && key_contains(":counter:") && !reads => {
                let get = Command { operation: StoreOperation::Get, once: None, ..command.clone() };
                if let Outcome::Found(Some(before)) = self.store.apply(get) {
                    let number = String::from_utf8_lossy(&before).parse().expect("the counter is a number");
                    return Some(Value::Number(number));
                }
            }
            Defect::Repeats if is_faulty && command.once.is_none() => _ = self.store.apply(command.clone()),
            Defect::Breaks if is_faulty && shared => {
                if self.commands.is_multiple_of(2) {
                    self.store.apply(command);
                }
                return None;
            }
            _ => {}
        }
        Some(to_value(self.store.apply(command)))
    }
}

fn to_value(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Done => Value::Simple("OK"),
        Outcome::Number(number) => Value::Number(number),
        Outcome::Found(value) => Value::Bulk(value),
        other => Value::error(format_args!("{other:?}")),
    }
}

/// Serves a client until it disconnects.
fn serve_client(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let (mut parser, mut chunk) = (Parser::default(), vec![0; 4096]);
    loop {
        let len = stream.read(&mut chunk)?;
        if len == 0 {
            return Ok(());
        }
        parser.feed(&chunk[..len]);
        while let Ok(Some(words)) = parser.next() {
            let Ok(Request::Command(command)) = Request::from_words(&words) else { return Ok(()) };
            let Some(value) = state.lock().unwrap().execute(command) else { return Ok(()) };
            let mut output = Vec::new();
            value.encode(&mut output);
            stream.write_all(&output)?;
        }
    }
}

/// Runs a check against a server with a defect.
fn check_against(defect: Defect) -> Report {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let args = CheckArgs {
        tcp: vec![listener.local_addr().unwrap()],
        seconds: Some(0.5),
        connections: 4,
        keys: 20,
        shared_keys: 2,
        pause_ms: 1000,
    };
    let store = Store::new(1 << 20);
    let state = State { defect, old: store.clone(), store, commands: 0, reappearing: None };
    let state = Arc::new(Mutex::new(state));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            thread::spawn(move || serve_client(stream, &state));
        }
    });
    let report = check(&args, &AtomicBool::new(false)).unwrap();
    println!("{defect:?}: {report:#?}");
    report
}

/// Asserts that the check finds the defect, by the linearizability of the shared keys alone.
fn assert_is_found(defect: Defect) {
    let report = check_against(defect);
    assert!(report.failed.is_empty() && report.findings.acknowledged > 0);
    assert_eq!((report.findings.lost, report.findings.executed_twice), (0, 0));
    assert!(!report.not_linearizable.is_empty() && !report.passes());
}

#[test]
fn a_correct_server_passes() {
    let report = check_against(Defect::Nothing);
    assert!(report.passes() && report.shared > 100 && report.unknown == 0);
}

#[test]
fn a_correct_server_whose_connections_break_passes() {
    let report = check_against(Defect::Breaks);
    assert!(report.passes() && report.unknown > 0);
}

#[test]
fn stale_reads_are_found() {
    assert_is_found(Defect::StaleReads);
}

#[test]
fn acknowledged_writes_that_are_lost_later_are_found() {
    assert_is_found(Defect::LostUpdate);
}

#[test]
fn increments_that_return_the_same_number_are_found() {
    assert_is_found(Defect::LostIncrement);
}

#[test]
fn commands_that_are_executed_twice_are_found() {
    assert_is_found(Defect::Repeats);
}
