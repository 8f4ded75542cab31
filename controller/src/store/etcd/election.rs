//! The election of a leader, and the requests of one.

use super::keeper::Keeper;
use super::servers::{Failure, Servers};
use super::{EtcdConfig, now};
use crate::store::{Records, StoreError, Term};
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at the leader's key
const LOOK: Duration = Duration::from_millis(50);
/// Records that are read with one request
const PAGE: i64 = 256;
/// Longest answer, in bytes: a page of the longest records
const MAX_ANSWER: usize = 64 << 20;

/// Keys of a network.
#[derive(Debug)]
pub(super) struct Keys {
    /// Network, as 16 hexadecimal digits
    pub(super) network: String,
    /// The last term, in decimal digits
    pub(super) term: String,
    /// The leader's key, which ends with the leader's lease
    pub(super) leader: String,
    /// Beginning of the records' keys
    records: String,
}

impl Keys {
    fn new(prefix: &str) -> Self {
        Self {
            network: format!("{prefix}/network"),
            term: format!("{prefix}/term"),
            leader: format!("{prefix}/leader"),
            records: format!("{prefix}/records/"),
        }
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [self.records.as_bytes(), key].concat()
    }
}

/// What a controller sees that does not lead.
#[derive(Debug)]
pub(super) struct Seen {
    /// Whether the network's key exists
    is_known: bool,
    term: u32,
    /// Revision of the term; 0 if there is none
    term_revision: i64,
    has_leader: bool,
}

/// An election that was won.
#[derive(Debug)]
pub(super) struct Won {
    pub(super) term: Term,
    /// Revision that created the leader's key
    pub(super) created: i64,
    pub(super) keeper: Keeper,
    pub(super) records: Records,
}

/// One controller's part in elections.
#[derive(Debug)]
pub(super) struct Election {
    servers: Arc<Servers>,
    pub(super) keys: Keys,
    network: u64,
    lease: Duration,
}

impl Election {
    pub(super) fn new(config: &EtcdConfig, network: u64) -> Self {
        let servers = Arc::new(Servers::new(config));
        Self { servers, keys: Keys::new(&config.prefix), network, lease: config.lease }
    }

    /// Returns the longest time for which a request may take.
    fn patience(&self) -> Duration {
        self.lease / 2
    }

    /// Runs a transaction.
    async fn transact(&self, transaction: Txn) -> Result<etcd_client::TxnResponse, Failure> {
        self.servers.request(self.patience(), async |client| client.txn(transaction).await).await
    }

    /// Returns the term, and whether there is a leader. Checks that the records are those of this network.
    pub(super) async fn look(&self) -> Result<Seen, StoreError> {
        let get = |key: &String| TxnOp::get(key.as_str(), None);
        let keys = [&self.keys.network, &self.keys.term, &self.keys.leader].map(get);
        let response = self.transact(Txn::new().and_then(keys)).await.map_err(Failure::of_reading)?;
        let mut values = response.op_responses().into_iter().map(|response| match response {
            TxnOpResponse::Get(mut get) => get.take_kvs().pop(),
            _ => None,
        });
        let mut next = || values.next().flatten();
        let (network, term, leader) = (next(), next(), next());
        if let Some(pair) = &network {
            let found = Self::parse(pair, |text| u64::from_str_radix(text, 16).ok())?;
            if found != self.network {
                return Err(StoreError::OtherNetwork { found, own: self.network });
            }
        }
        let parsed = term.as_ref().map(|pair| Self::parse(pair, |text| text.parse().ok())).transpose()?;
        Ok(Seen {
            is_known: network.is_some(),
            term: parsed.unwrap_or(0),
            term_revision: term.map_or(0, |pair| pair.mod_revision()),
            has_leader: leader.is_some(),
        })
    }

    fn parse<T>(pair: &KeyValue, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let text = String::from_utf8_lossy(pair.value());
        let key = String::from_utf8_lossy(pair.key());
        parse(&text).ok_or_else(|| StoreError::Torn(format!("etcd has `{text}` as {key}")))
    }

    /// Waits until there is no leader, for `wait` at most, and tries to become it.
    pub(super) async fn campaign(this: &Arc<Self>, wait: Duration) -> Result<Option<Won>, StoreError> {
        let until = now() + wait;
        loop {
            let seen = this.look().await?;
            if !seen.has_leader {
                return this.stand(&seen).await;
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(None);
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Tries to become the leader after what was seen; `None` if another controller was faster.
    async fn stand(&self, seen: &Seen) -> Result<Option<Won>, StoreError> {
        let term = seen.term.checked_add(1).ok_or_else(|| StoreError::Torn(format!("term {}", seen.term)))?;
        let sent = now();
        let seconds = self.lease.as_millis().div_ceil(1000) as i64;
        let grant = async |client: &mut etcd_client::Client| client.lease_grant(seconds, None).await;
        let granted = self.servers.request(self.patience(), grant).await.map_err(Failure::of_reading)?;
        let keeper = Keeper::start(Arc::clone(&self.servers), granted.id(), sent, self.lease);
        let result = async {
            let response = self
                .transact(self.candidacy(seen, Term(term), granted.id()))
                .await
                .map_err(Failure::of_reading)?;
            if !response.succeeded() {
                return Ok(None);
            }
            let created = response.header().map_or(0, etcd_client::ResponseHeader::revision);
            Ok(self.records(created).await?.map(|records| (created, records)))
        };
        match result.await {
            Ok(Some((created, records))) => Ok(Some(Won { term: Term(term), created, keeper, records })),
            other => {
                // It may have won, and the answer was lost; or the records cannot be read.
                self.revoke(keeper.stop()).await;
                other.map(|_| None)
            }
        }
    }

    fn candidacy(&self, seen: &Seen, term: Term, lease: i64) -> Txn {
        let keys = &self.keys;
        let network = format!("{:016x}", self.network);
        let known = if seen.is_known {
            Compare::value(&*keys.network, CompareOp::Equal, &*network)
        } else {
            Compare::create_revision(&*keys.network, CompareOp::Equal, 0)
        };
        let compares = [
            known,
            Compare::mod_revision(&*keys.term, CompareOp::Equal, seen.term_revision),
            Compare::create_revision(&*keys.leader, CompareOp::Equal, 0),
        ];
        let options = Some(PutOptions::new().with_lease(lease));
        let operations = [
            TxnOp::put(&*keys.network, network, None),
            TxnOp::put(&*keys.term, term.to_string(), None),
            TxnOp::put(&*keys.leader, term.to_string(), options),
        ];
        Txn::new().when(compares).and_then(operations)
    }

    /// Returns all records as of the revision with which the leader's key was created, or as of a later one with
    /// the same leader if that has been compacted; `None` if another controller leads.
    pub(super) async fn records(&self, created: i64) -> Result<Option<Records>, StoreError> {
        let mut revision = created;
        loop {
            match self.records_at(revision).await {
                Ok(records) => return Ok(Some(records)),
                Err(Failure::Compacted(_)) => {}
                Err(failure) => return Err(failure.of_reading()),
            }
            // Only the leader writes records.
            let leads = Compare::create_revision(&*self.keys.leader, CompareOp::Equal, created);
            let response = self.transact(Txn::new().when([leads])).await.map_err(Failure::of_reading)?;
            if !response.succeeded() {
                return Ok(None);
            }
            revision = response.header().map_or(0, etcd_client::ResponseHeader::revision);
        }
    }

    /// Returns all records as of a revision.
    async fn records_at(&self, revision: i64) -> Result<Records, Failure> {
        let prefix = self.keys.record(&[]);
        let mut end = prefix.clone();
        *end.last_mut().expect("it ends with a slash") += 1;
        let (mut records, mut from) = (Records::new(), prefix.clone());
        loop {
            let options = GetOptions::new().with_range(&*end).with_revision(revision).with_limit(PAGE);
            let get = async |client: &mut etcd_client::Client| {
                let mut client = client.kv_client().max_decoding_message_size(MAX_ANSWER);
                client.get(&*from, Some(options)).await
            };
            let mut page = self.servers.request(self.patience(), get).await?;
            let has_more = page.more();
            for pair in page.take_kvs() {
                let (key, value) = pair.into_key_value();
                from = [&key[..], &[0]].concat();
                records.insert(key[prefix.len()..].into(), value);
            }
            if !has_more {
                return Ok(records);
            }
        }
    }

    /// Returns whether a leader's transaction was applied.
    pub(super) async fn write(&self, transaction: Txn) -> Result<bool, StoreError> {
        let response = self.transact(transaction).await.map_err(Failure::of_writing)?;
        Ok(response.succeeded())
    }

    /// Ends a lease, if a server answers; otherwise it ends by itself.
    pub(super) async fn revoke(&self, lease: i64) {
        let revoke = async |client: &mut etcd_client::Client| client.lease_revoke(lease).await;
        drop(self.servers.request(self.lease / 3, revoke).await);
    }
}
