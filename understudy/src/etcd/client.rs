//! Reads a key through etcd's HTTP interface.

use super::Address;
use crate::system::random_u64;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use core::time::Duration;
use serde_json::{Value, json};
use ureq::Agent;

/// Time to connect to a server
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a request. A server without a majority answers later, with an error
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer in bytes, several times as long as the longest value that etcd stores by default (1.5 MB)
const MAX_ANSWER: u64 = 16 << 20;

/// What etcd has answered about the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Value; `None` if there is no such key
    pub(crate) value: Option<Vec<u8>>,
    /// Revision of etcd that wrote the value; that of etcd if there is no such key
    pub(crate) revision: u64,
    /// Revision of etcd at the time of the answer
    pub(super) now: u64,
    /// Identity of the cluster
    pub(super) cluster: u64,
}

/// Client of etcd's servers, of which it asks one at a time.
pub(crate) struct Client {
    agent: Agent,
    address: Address,
    /// Server that answered last
    server: usize,
}

impl Client {
    pub(crate) fn new(address: Address) -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        // Instances that start together ask different servers first, and one that starts again does not wait for the same
        // server.
        let server = (random_u64() % address.servers.len() as u64) as usize;
        Self { agent: config.into(), address, server }
    }

    /// Asks for the key: each server at most once, beginning with the one that answered last. The error is a text for
    /// users, with what each has answered.
    pub(crate) fn read(&mut self) -> Result<Version, String> {
        let servers = &self.address.servers;
        let mut errors = Vec::new();
        for offset in 0..servers.len() {
            let server = (self.server + offset) % servers.len();
            match self.ask(&servers[server]) {
                Ok(version) => {
                    self.server = server;
                    return Ok(version);
                }
                Err(why) => errors.push(format!("{}: {why}", servers[server])),
            }
        }
        Err(errors.join("; "))
    }

    fn ask(&self, server: &str) -> Result<Version, String> {
        let body = json!({ "key": BASE64.encode(&self.address.key) }).to_string();
        let request = self.agent.post(format!("http://{server}/v3/kv/range"));
        let mut response =
            request.content_type("application/json").send(body).map_err(|error| error.to_string())?;
        let status = response.status();
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_string()
            .map_err(|error| error.to_string())?;
        let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
        if !status.is_success() {
            let message = answer["message"].as_str().or_else(|| answer["error"].as_str());
            let message = message
                .unwrap_or("it is not etcd 3.4 or later, or has no HTTP interface (--enable-grpc-gateway)");
            return Err(format!("{message} (HTTP {})", status.as_u16()));
        }
        version(&answer).ok_or_else(|| "the answer is not one of etcd".to_owned())
    }
}

/// Returns what an answer states. 64-bit numbers are strings in it, and zero or empty values are left out.
fn version(answer: &Value) -> Option<Version> {
    let number = |value: &Value| value.as_str()?.parse::<u64>().ok();
    let header = &answer["header"];
    let (now, cluster) = (number(&header["revision"])?, number(&header["cluster_id"])?);
    let (value, revision) = match answer["kvs"].as_array().and_then(|pairs| pairs.first()) {
        None => (None, now),
        Some(pair) => {
            let value =
                pair.get("value").map_or(Some(Vec::new()), |value| BASE64.decode(value.as_str()?).ok())?;
            (Some(value), number(&pair["mod_revision"])?)
        }
    };
    Some(Version { value, revision, now, cluster })
}
