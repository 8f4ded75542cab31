//! An HTTP server that answers reads of one key as a server of etcd does, and has faults.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How the server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It closes each connection at once
    Closes,
    /// It reads requests and does not answer
    IsSilent,
    /// It answers without a majority of servers
    HasNoLeader,
    /// It answers as another program would
    IsAnother,
    /// It closes the connection within the answer
    AnswersHalf,
    /// It sends something that is not HTTP
    SendsNoise,
}

impl Fault {
    /// Every fault
    pub const ALL: [Self; 6] = [
        Self::Closes,
        Self::IsSilent,
        Self::HasNoLeader,
        Self::IsAnother,
        Self::AnswersHalf,
        Self::SendsNoise,
    ];
}

#[derive(Debug)]
struct State {
    value: Option<Vec<u8>>,
    /// Revision of the cluster, and that of the value
    revision: u64,
    value_revision: u64,
    cluster: u64,
    fault: Option<Fault>,
    reads: usize,
    is_closed: bool,
}

/// A server on loopback. It ends when dropped.
#[derive(Debug)]
pub struct StandIn {
    key: String,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl StandIn {
    /// Starts a server without a value for `key`.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn start(key: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let state = State {
            value: None,
            revision: 1,
            value_revision: 0,
            cluster: 0xdead_beef_0000_0001,
            fault: None,
            reads: 0,
            is_closed: false,
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let expected = json!({ "key": BASE64.encode(key) });
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if lock(&shared).is_closed {
                    break;
                }
                let (state, expected) = (Arc::clone(&shared), expected.clone());
                // A client that has left is no error.
                thread::spawn(move || drop(serve(&stream, &state, &expected)));
            }
        });
        Self { key: key.to_owned(), address, state }
    }

    /// Returns `HOST:PORT`.
    pub fn server(&self) -> String {
        self.address.to_string()
    }

    /// Returns the address of the key, as `understudy` takes it.
    pub fn address(&self) -> String {
        format!("etcd://{}{}", self.address, self.key)
    }

    /// Writes the value, or deletes the key. Returns the revision.
    pub fn put(&self, value: Option<&str>) -> u64 {
        let mut state = lock(&self.state);
        state.revision += 1;
        state.value_revision = state.revision;
        state.value = value.map(|value| value.as_bytes().to_vec());
        state.revision
    }

    /// Continues from a backup with this value: at an earlier revision, as another cluster.
    pub fn restore(&self, value: &str) {
        let mut state = lock(&self.state);
        state.revision = 1 + state.revision / 2;
        state.value_revision = state.revision;
        state.cluster += 1;
        state.value = Some(value.as_bytes().to_vec());
    }

    /// Makes all answers from now on fail so, or succeed.
    pub fn set_fault(&self, fault: Option<Fault>) {
        lock(&self.state).fault = fault;
    }

    /// Returns how many reads the server has received.
    pub fn reads(&self) -> usize {
        lock(&self.state).reads
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        lock(&self.state).is_closed = true;
        // The thread that accepts connections sees it with the next one.
        drop(TcpStream::connect(self.address));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the requests of one connection.
fn serve(stream: &TcpStream, state: &Mutex<State>, expected: &Value) -> io::Result<()> {
    let mut input = BufReader::new(stream);
    let mut output = stream;
    loop {
        if lock(state).fault == Some(Fault::Closes) {
            return Ok(());
        }
        let mut length = 0;
        let mut first = String::new();
        if input.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            input.read_line(&mut line)?;
            if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = number.trim().parse().unwrap_or(0);
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body)?;
        lock(state).reads += 1;
        let request = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        let is_read = first.starts_with("POST /v3/kv/range ") && request == *expected;
        // The lock is not held while the answer is sent.
        let (fault, answer) = {
            let state = lock(state);
            (state.fault, answer(&state))
        };
        let reply = |status: &str, text: &str| {
            let length = text.len();
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{text}"
            )
        };
        let reply = match fault {
            _ if !is_read => reply("400 Bad Request", r#"{"error":"unexpected request","code":3}"#),
            None => reply("200 OK", &answer.to_string()),
            Some(Fault::HasNoLeader) => reply(
                "503 Service Unavailable",
                r#"{"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"}"#,
            ),
            Some(Fault::IsAnother) => reply("200 OK", "{\"kind\": \"Status\", \"header\": 7}"),
            Some(Fault::AnswersHalf) => {
                let whole = reply("200 OK", &answer.to_string());
                output.write_all(&whole.as_bytes()[..whole.len() - 2])?;
                return Ok(());
            }
            Some(Fault::SendsNoise) => "SSH-2.0-OpenSSH_9.2\r\n\r\n".into(),
            Some(Fault::Closes) => return Ok(()),
            Some(Fault::IsSilent) => {
                while lock(state).fault == Some(Fault::IsSilent) && !lock(state).is_closed {
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(());
            }
        };
        output.write_all(reply.as_bytes())?;
    }
}

/// Returns an answer of etcd: numbers of 64 bits as strings, and no empty values.
fn answer(state: &State) -> Value {
    let header = json!({
        "cluster_id": state.cluster.to_string(), "member_id": "1", "revision": state.revision.to_string(), "raft_term": "2",
    });
    match &state.value {
        None => json!({ "header": header }),
        Some(value) => {
            let mut pair =
                json!({ "key": "", "mod_revision": state.value_revision.to_string(), "version": "1" });
            if !value.is_empty() {
                pair["value"] = BASE64.encode(value).into();
            }
            json!({ "header": header, "kvs": [pair], "count": "1" })
        }
    }
}
