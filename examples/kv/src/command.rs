//! Clients' commands, as words of the protocol and as bytes in the log.

use crate::codec::{Reader, put_bytes, put_number};

/// A command on the store. Reads go through the log like writes, so a read observes everything that was
/// acknowledged before it was requested, whichever server leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) operation: Operation,
    pub(crate) key: Vec<u8>,
    /// Identification by which a retry is recognized
    pub(crate) once: Option<Once>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Set(Vec<u8>),
    Del,
    Incr,
}

/// A client's own number of a write. A command with the same number is applied once, however often it is
/// received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Once {
    pub(crate) client: u64,
    pub(crate) number: u64,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Ping,
    Info,
    /// Bootstraps the group, with an empty store
    Bootstrap,
    Command(Command),
}

/// Reason why a client's words are not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidRequest {
    #[error("unknown command '{0}'; use PING, INFO, GET, SET, DEL, INCR, ONCE or BOOTSTRAP")]
    Unknown(String),
    #[error("wrong number of arguments for '{0}'")]
    Arguments(String),
    #[error(
        "wrong arguments for 'ONCE'; write the client's number and the command's number, both above 0, and a command"
    )]
    Once,
}

impl Request {
    /// Parses the words of a command.
    ///
    /// # Errors
    /// If the command is unknown or its arguments are wrong. An empty list is an unknown command.
    pub(crate) fn from_words(words: &[Vec<u8>]) -> Result<Self, InvalidRequest> {
        let (name, arguments) = words.split_first().map_or((&[][..], &[][..]), |(name, rest)| (name, rest));
        let name = String::from_utf8_lossy(name).to_ascii_uppercase();
        let command =
            |operation, key: &Vec<u8>| Ok(Self::Command(Command { operation, key: key.clone(), once: None }));
        match (name.as_str(), arguments) {
            ("PING", []) => Ok(Self::Ping),
            ("INFO", _) => Ok(Self::Info),
            ("BOOTSTRAP", []) => Ok(Self::Bootstrap),
            ("GET", [key]) => command(Operation::Get, key),
            ("SET", [key, value]) => command(Operation::Set(value.clone()), key),
            ("DEL", [key]) => command(Operation::Del, key),
            ("INCR", [key]) => command(Operation::Incr, key),
            ("ONCE", [client, number, rest @ ..]) => {
                let [client, number] = [client, number].map(|word| positive(word));
                match (client, number, Self::from_words(rest)?) {
                    (Some(client), Some(number), Self::Command(command)) if command.once.is_none() => {
                        Ok(Self::Command(Command { once: Some(Once { client, number }), ..command }))
                    }
                    _ => Err(InvalidRequest::Once),
                }
            }
            ("PING" | "BOOTSTRAP" | "GET" | "SET" | "DEL" | "INCR", _) => {
                Err(InvalidRequest::Arguments(name))
            }
            ("ONCE", _) => Err(InvalidRequest::Once),
            _ => Err(InvalidRequest::Unknown(name)),
        }
    }
}

fn positive(word: &[u8]) -> Option<u64> {
    core::str::from_utf8(word).ok()?.parse().ok().filter(|number| *number > 0)
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Incarnation of the server that proposed it, and its ticket there, by which that server finds the
    /// client to respond to
    pub(crate) incarnation: u64,
    pub(crate) ticket: u64,
    pub(crate) command: Command,
}

impl Entry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Command { operation, key, once } = &self.command;
        let once = once.unwrap_or(Once { client: 0, number: 0 });
        let (kind, value) = match operation {
            Operation::Get => (0, None),
            Operation::Set(value) => (1, Some(value)),
            Operation::Del => (2, None),
            Operation::Incr => (3, None),
        };
        let mut out = Vec::new();
        for number in [self.incarnation, self.ticket, once.client, once.number, kind] {
            put_number(number, &mut out);
        }
        put_bytes(key, &mut out);
        put_bytes(value.map_or(&[], Vec::as_slice), &mut out);
        out
    }

    /// Decodes an entry. Returns `None` for bytes that no server of this version proposes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [incarnation, ticket] = [reader.number()?, reader.number()?];
        let once = Once { client: reader.number()?, number: reader.number()? };
        let (kind, key, value) = (reader.number()?, reader.bytes()?, reader.bytes()?);
        let operation = match kind {
            0 => Operation::Get,
            1 => Operation::Set(value),
            2 => Operation::Del,
            3 => Operation::Incr,
            _ => return None,
        };
        let command = Command { operation, key, once: (once.client > 0).then_some(once) };
        Some(Self { incarnation, ticket, command })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Result<Request, InvalidRequest> {
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        Request::from_words(&words)
    }

    #[test]
    fn commands_are_parsed_and_survive_in_the_log() {
        assert_eq!(request("ping"), Ok(Request::Ping));
        assert_eq!(request("INFO server"), Ok(Request::Info));
        assert_eq!(request("bootstrap"), Ok(Request::Bootstrap));
        assert_eq!(request("bootstrap now"), Err(InvalidRequest::Arguments("BOOTSTRAP".into())));
        let once = Some(Once { client: 7, number: u64::MAX });
        for (line, operation, once) in [
            ("get k", Operation::Get, None),
            ("Set k v", Operation::Set(b"v".to_vec()), None),
            ("DEL k", Operation::Del, None),
            ("ONCE 7 18446744073709551615 incr k", Operation::Incr, once),
        ] {
            let command = Command { operation, key: b"k".to_vec(), once };
            assert_eq!(request(line), Ok(Request::Command(command.clone())), "{line}");
            let entry = Entry { incarnation: 3, ticket: 4, command };
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Some(entry));
            for len in 0..bytes.len() {
                assert_eq!(Entry::decode(&bytes[..len]), None);
            }
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_reason() {
        assert_eq!(request("FLUSHALL"), Err(InvalidRequest::Unknown("FLUSHALL".into())));
        assert_eq!(request("get"), Err(InvalidRequest::Arguments("GET".into())));
        assert_eq!(request("set k v EX 10"), Err(InvalidRequest::Arguments("SET".into())));
        for line in ["once 1 2 ping", "once 0 1 get k", "once 1 x get k", "once 1", "once 1 1 once 1 1 get k"]
        {
            assert_eq!(request(line), Err(InvalidRequest::Once), "{line}");
        }
        assert!(Request::from_words(&[]).is_err());
    }
}
