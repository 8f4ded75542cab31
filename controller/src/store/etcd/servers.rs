//! Connections to the servers of etcd: one server is used at a time, and the next one after an error.

use super::EtcdConfig;
use crate::store::StoreError;
use etcd_client::{Client, ConnectOptions, Error};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Codes of gRPC (`google.rpc.Code`) that etcd answers without applying anything
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;
const DATA_LOSS: i32 = 15;
const UNAUTHENTICATED: i32 = 16;

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// etcd refuses it; nothing was applied
    Refused(StoreError),
    /// The lease has ended
    NoLease,
    /// What was to be read as of a revision is gone
    Compacted(String),
    /// It may have been applied
    Unanswered(String),
}

impl Failure {
    /// Returns the error of a request that changes no record.
    pub(super) fn of_reading(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::NoLease => StoreError::OtherTerm,
            Self::Compacted(text) | Self::Unanswered(text) => StoreError::Unavailable(text),
        }
    }

    /// Returns the error of a request that changes records.
    pub(super) fn of_writing(self) -> StoreError {
        match self {
            Self::Unanswered(text) => StoreError::Unknown(text),
            other => other.of_reading(),
        }
    }
}

#[derive(Default)]
struct InUse {
    /// Number of the server
    server: usize,
    client: Option<Client>,
}

/// The servers of etcd.
pub(super) struct Servers {
    urls: Vec<String>,
    connect_within: Duration,
    in_use: Mutex<InUse>,
}

impl core::fmt::Debug for Servers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Servers").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl Servers {
    pub(super) fn new(config: &EtcdConfig) -> Self {
        assert!(!config.servers.is_empty(), "etcd needs a server");
        Self { urls: config.servers.clone(), connect_within: config.lease / 3, in_use: Mutex::default() }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the server in use, and waits for `limit` at most. After an error, the next server is
    /// in use.
    pub(super) async fn request<T>(
        &self,
        limit: Duration,
        run: impl AsyncFnOnce(&mut Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let (server, client) = {
            let in_use = self.in_use();
            (in_use.server, in_use.client.clone())
        };
        let url = &self.urls[server];
        let connected = async {
            let mut client = match client {
                Some(client) => client,
                None => self.connect(server).await?,
            };
            run(&mut client).await
        };
        let failure = match tokio::time::timeout(limit, connected).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => classify(url, &error),
            Err(_) => Failure::Unanswered(format!("{url}: no answer within {} ms", limit.as_millis())),
        };
        if matches!(failure, Failure::Unanswered(_)) {
            self.leave(server);
        }
        Err(failure)
    }

    /// Returns a client of a server, which connects with its first request.
    async fn connect(&self, server: usize) -> Result<Client, Error> {
        let options = ConnectOptions::default().with_connect_timeout(self.connect_within);
        let client = Client::connect([&self.urls[server]], Some(options)).await?;
        let mut in_use = self.in_use();
        if in_use.server == server {
            in_use.client = Some(client.clone());
        }
        Ok(client)
    }

    /// Uses the next server, unless another request has done so.
    fn leave(&self, server: usize) {
        let mut in_use = self.in_use();
        if in_use.server == server {
            *in_use = InUse { server: (server + 1) % self.urls.len(), client: None };
        }
    }
}

fn classify(url: &str, error: &Error) -> Failure {
    let text = format!("{url}: {error}");
    match error {
        Error::LeaseKeepAliveError(_) => Failure::NoLease,
        Error::InvalidArgs(_) | Error::InvalidUri(_) => Failure::Refused(StoreError::Unavailable(text)),
        Error::GRpcStatus(status) => {
            let message = status.message();
            match i32::from(status.code()) {
                RESOURCE_EXHAUSTED if message.contains("database space exceeded") => {
                    Failure::Refused(StoreError::Full)
                }
                RESOURCE_EXHAUSTED if message.contains("too many requests") => {
                    Failure::Refused(StoreError::Unavailable(text))
                }
                // By etcd, and by the server's gRPC if it is larger by half a megabyte
                INVALID_ARGUMENT if message.contains("request is too large") => {
                    Failure::Refused(StoreError::TooLarge(text))
                }
                RESOURCE_EXHAUSTED if message.contains("message larger than max") => {
                    Failure::Refused(StoreError::TooLarge(text))
                }
                OUT_OF_RANGE if message.contains("compacted") => Failure::Compacted(text),
                INVALID_ARGUMENT | PERMISSION_DENIED | UNAUTHENTICATED => {
                    Failure::Refused(StoreError::Unavailable(text))
                }
                DATA_LOSS if message.contains("corrupt cluster") => Failure::Refused(StoreError::Torn(text)),
                _ => Failure::Unanswered(format!("{url}: {message}")),
            }
        }
        _ => Failure::Unanswered(text),
    }
}
