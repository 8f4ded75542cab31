//! The replicated state. The same commands in the same order result in the same state at every server.

use crate::codec::{Reader, len_of_bytes, put_bytes, put_number};
use crate::command::{Command, Once, Operation};
use std::collections::BTreeMap;

/// Number of clients whose last result is stored. A new client replaces the one with the oldest write.
const SESSIONS: usize = 1024;
/// Bytes of a session in a snapshot
const SESSION_LEN: usize = 5 * 8;

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Number(i64),
    Found(Option<Vec<u8>>),
    /// INCR of a value that is not a number, or would overflow
    NotANumber,
    /// There is no room.
    Full,
    /// A later command of the client has already been applied.
    Old,
}

/// The last numbered write of a client
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    number: u64,
    /// The write's position, counted in writes
    at: u64,
    outcome: Outcome,
}

/// Keys and values, and the last result of each client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Most bytes of a snapshot
    limit: usize,
    /// Bytes of a snapshot that keys and values take
    used: usize,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    sessions: BTreeMap<u64, Session>,
    writes: u64,
}

impl Store {
    /// Returns an empty store whose snapshot may have `limit` bytes.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, used: 0, map: BTreeMap::new(), sessions: BTreeMap::new(), writes: 0 }
    }

    pub(crate) fn keys(&self) -> usize {
        self.map.len()
    }

    /// Returns the bytes that keys and values take in a snapshot.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Applies a command.
    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        let Command { operation, key, once } = command;
        if operation == Operation::Get {
            return Outcome::Found(self.map.get(&key).cloned());
        }
        self.writes += 1;
        let before = once.and_then(|once| Some((once.number, self.sessions.get(&once.client)?)));
        match before {
            Some((number, session)) if number == session.number => return session.outcome.clone(),
            Some((number, session)) if number < session.number => return Outcome::Old,
            _ => {}
        }
        let outcome = match operation {
            Operation::Get => unreachable!("handled above"),
            Operation::Set(value) => self.set(key, value),
            Operation::Del => {
                let removed = self.map.remove_entry(&key);
                self.used -= removed.as_ref().map_or(0, |(key, value)| len(key, value));
                Outcome::Number(removed.is_some().into())
            }
            Operation::Incr => {
                let text = self.map.get(&key).map_or("0", |value| str::from_utf8(value).unwrap_or(""));
                match text.parse::<i64>().ok().and_then(|number| number.checked_add(1)) {
                    None => Outcome::NotANumber,
                    Some(number) => match self.set(key, number.to_string().into_bytes()) {
                        Outcome::Done => Outcome::Number(number),
                        outcome => outcome,
                    },
                }
            }
        };
        if let Some(once) = once {
            self.store_result(once, outcome.clone());
        }
        outcome
    }

    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> Outcome {
        let before = self.map.get(&key).map_or(0, |value| len(&key, value));
        let used = self.used - before + len(&key, &value);
        // A snapshot also has two counts, the number of writes, and up to `SESSIONS` sessions.
        if used + 3 * 8 + SESSIONS * SESSION_LEN > self.limit {
            return Outcome::Full;
        }
        self.used = used;
        self.map.insert(key, value);
        Outcome::Done
    }

    fn store_result(&mut self, Once { client, number }: Once, outcome: Outcome) {
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(&client) {
            let oldest =
                self.sessions.iter().min_by_key(|(_, session)| session.at).map(|(client, _)| *client);
            oldest.and_then(|client| self.sessions.remove(&client));
        }
        self.sessions.insert(client, Session { number, at: self.writes, outcome });
    }

    /// Encodes the whole state. The snapshot never exceeds the limit.
    pub(crate) fn to_snapshot(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.used + 3 * 8 + self.sessions.len() * SESSION_LEN);
        put_number(self.writes, &mut out);
        put_number(self.map.len() as u64, &mut out);
        for (key, value) in &self.map {
            put_bytes(key, &mut out);
            put_bytes(value, &mut out);
        }
        put_number(self.sessions.len() as u64, &mut out);
        for (client, Session { number, at, outcome }) in &self.sessions {
            let (kind, result) = match outcome {
                Outcome::Done => (0, 0),
                Outcome::Number(number) => (1, *number as u64),
                Outcome::NotANumber => (2, 0),
                Outcome::Full => (3, 0),
                Outcome::Found(_) | Outcome::Old => unreachable!("these results are not stored"),
            };
            for number in [*client, *number, *at, kind, result] {
                put_number(number, &mut out);
            }
        }
        out
    }

    /// Decodes a snapshot. Returns `None` if it is not from a server of this version.
    pub(crate) fn from_snapshot(limit: usize, bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let mut store = Self::new(limit);
        store.writes = reader.number()?;
        for _ in 0..reader.number()? {
            let (key, value) = (reader.bytes()?, reader.bytes()?);
            store.used += len(&key, &value);
            store.map.insert(key, value);
        }
        for _ in 0..reader.number()? {
            let [client, number, at] = [reader.number()?, reader.number()?, reader.number()?];
            let outcome = match (reader.number()?, reader.number()?) {
                (0, _) => Outcome::Done,
                (1, number) => Outcome::Number(number as i64),
                (2, _) => Outcome::NotANumber,
                (3, _) => Outcome::Full,
                _ => return None,
            };
            store.sessions.insert(client, Session { number, at, outcome });
        }
        Some(store)
    }
}

/// Returns the bytes of a snapshot that a key and its value take.
const fn len(key: &[u8], value: &[u8]) -> usize {
    len_of_bytes(key) + len_of_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OVERHEAD: usize = 3 * 8 + SESSIONS * SESSION_LEN;

    fn command(operation: Operation, key: &str) -> Command {
        Command { operation, key: key.into(), once: None }
    }

    fn set(key: &str, value: &str) -> Command {
        command(Operation::Set(value.into()), key)
    }

    fn once(client: u64, number: u64, command: Command) -> Command {
        Command { once: Some(Once { client, number }), ..command }
    }

    #[test]
    fn each_operation_returns_its_outcome() {
        let mut store = Store::new(1 << 20);
        assert_eq!(store.apply(command(Operation::Get, "k")), Outcome::Found(None));
        assert_eq!(store.apply(set("k", "41")), Outcome::Done);
        assert_eq!(store.apply(command(Operation::Incr, "k")), Outcome::Number(42));
        assert_eq!(store.apply(command(Operation::Get, "k")), Outcome::Found(Some(b"42".to_vec())));
        assert_eq!(store.apply(command(Operation::Incr, "n")), Outcome::Number(1));
        assert_eq!(store.apply(set("k", "9223372036854775807")), Outcome::Done);
        assert_eq!(store.apply(command(Operation::Incr, "k")), Outcome::NotANumber);
        assert_eq!(store.apply(command(Operation::Del, "k")), Outcome::Number(1));
        assert_eq!(store.apply(command(Operation::Del, "k")), Outcome::Number(0));
        assert_eq!((store.keys(), store.used()), (1, 4 + 1 + 4 + 1));
    }

    #[test]
    fn a_numbered_write_is_applied_once() {
        let mut store = Store::new(1 << 20);
        let incr = || command(Operation::Incr, "n");
        for _ in 0..3 {
            assert_eq!(store.apply(once(1, 5, incr())), Outcome::Number(1));
        }
        assert_eq!(store.apply(once(2, 5, incr())), Outcome::Number(2));
        assert_eq!(store.apply(once(1, 6, incr())), Outcome::Number(3));
        assert_eq!(store.apply(once(1, 5, incr())), Outcome::Old);
        // Only the result of the client with the oldest write is replaced.
        for client in 3..=SESSIONS as u64 + 1 {
            store.apply(once(client, 1, set("k", "v")));
        }
        assert_eq!(store.apply(once(1, 6, incr())), Outcome::Number(3));
        assert_eq!(store.apply(once(2, 5, incr())), Outcome::Number(4));
    }

    #[test]
    fn the_store_is_full_when_its_snapshot_would_be_too_long() {
        let mut store = Store::new(OVERHEAD + 20);
        assert_eq!(store.apply(set("k", "elevenbytes")), Outcome::Done);
        assert_eq!(store.apply(set("k", "twelve bytes")), Outcome::Full);
        assert_eq!(store.apply(set("l", "")), Outcome::Full);
        assert_eq!(store.apply(command(Operation::Get, "k")), Outcome::Found(Some(b"elevenbytes".to_vec())));
        assert_eq!(store.apply(set("k", "")), Outcome::Done);
        assert_eq!(store.apply(set("l", "")), Outcome::Done);
        for client in 1..=2 * SESSIONS as u64 {
            store.apply(once(client, 1, set("l", "")));
        }
        assert!(store.to_snapshot().len() <= OVERHEAD + 20);
    }

    fn any_command() -> impl Strategy<Value = Command> {
        let operation = prop_oneof![
            Just(Operation::Get),
            Just(Operation::Del),
            Just(Operation::Incr),
            "[0-9a]{0,3}".prop_map(|value| Operation::Set(value.into())),
        ];
        let once = prop::option::of((1..4u64, 1..9u64));
        (operation, "[ab]{0,2}", once).prop_map(|(operation, key, once)| Command {
            operation,
            key: key.into(),
            once: once.map(|(client, number)| Once { client, number }),
        })
    }

    proptest! {
        #[test]
        fn a_snapshot_restores_the_whole_state(commands in prop::collection::vec(any_command(), 0..60)) {
            let mut store = Store::new(OVERHEAD + 60);
            for command in commands {
                store.apply(command);
                let snapshot = store.to_snapshot();
                prop_assert!(snapshot.len() <= OVERHEAD + 60);
                prop_assert_eq!(Store::from_snapshot(OVERHEAD + 60, &snapshot), Some(store.clone()));
                prop_assert_eq!(Store::from_snapshot(OVERHEAD + 60, &snapshot[..snapshot.len() - 1]), None);
            }
        }
    }
}
