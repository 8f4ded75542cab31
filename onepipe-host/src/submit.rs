//! Records of scatterings for the polling thread: checked as the process will check them, and serialised.

use onepipe::OnePipe;
use onepipe::ProcessId;
use onepipe::process::{Config, MAX_MESSAGE, PACKET_COST, SendError};
use switch::table::Index;

/// Lengths in bytes of the number of messages, in front of a record, and of each message's entry: its
/// receiver and its length
const COUNT_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// Bit of the number of messages that marks a reliable scattering
const RELIABLE: u32 = 1 << 31;

/// Limits of a scattering, as the process enforces them.
#[derive(Debug)]
pub(crate) struct Limits {
    own: ProcessId,
    peers: Index<ProcessId>,
    fragment: usize,
    window: usize,
    send_buffer: usize,
    max_unsettled: usize,
    /// Scratch buffer: receivers and the costs of their messages
    costs: Vec<(ProcessId, usize)>,
}

impl Limits {
    /// Returns the limits of reliable scatterings.
    pub(crate) fn of_reliable(config: &Config) -> Self {
        Self { window: config.reliable_grant(), ..Self::of(config) }
    }

    pub(crate) fn of(config: &Config) -> Self {
        let mut peers = Index::with_capacity(config.peers.len());
        for peer in &config.peers {
            // The process refuses duplicates.
            _ = peers.get_or_insert(peer.id);
        }
        Self {
            own: config.own.id,
            peers,
            fragment: config.mtu - OnePipe::LEN,
            window: config.receive_window as usize,
            send_buffer: config.send_buffer,
            max_unsettled: config.max_unsettled,
            costs: Vec::new(),
        }
    }

    /// Returns the index of a peer.
    pub(crate) fn index(&self, id: ProcessId) -> Option<usize> {
        self.peers.get(&id).map(|index| index as usize)
    }

    /// Checks whether the process would accept a scattering if it had room. `dead` returns whether the peer
    /// with this index has failed.
    pub(crate) fn check(
        &mut self,
        messages: &[(ProcessId, &[u8])],
        dead: impl Fn(usize) -> bool,
    ) -> Result<(), SendError> {
        if messages.is_empty() {
            return Err(SendError::Empty);
        }
        let (mut bytes, mut costs) = (0, 0);
        for &(dst, message) in messages {
            if dst != self.own {
                let index = self.index(dst).ok_or(SendError::Unknown(dst))?;
                if dead(index) {
                    return Err(SendError::Dead(dst));
                }
            }
            if message.len() > MAX_MESSAGE {
                return Err(SendError::TooLong { dst, len: message.len() });
            }
            bytes += message.len();
            costs += self.cost(message);
        }
        if costs > self.window {
            self.check_windows(messages)?;
        }
        if bytes > self.send_buffer.min(u32::MAX as usize) || messages.len() > self.max_unsettled {
            return Err(SendError::TooMuch { bytes, messages: messages.len() });
        }
        Ok(())
    }

    #[inline]
    fn cost(&self, message: &[u8]) -> usize {
        let packets = if message.len() <= self.fragment { 1 } else { message.len().div_ceil(self.fragment) };
        message.len() + packets * PACKET_COST
    }

    #[cold]
    fn check_windows(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<(), SendError> {
        self.costs.clear();
        for &(dst, message) in messages {
            let cost = self.cost(message);
            self.costs.push((dst, cost));
        }
        self.costs.sort_unstable();
        for of_one in self.costs.chunk_by(|a, b| a.0 == b.0) {
            let cost = of_one.iter().map(|(_, cost)| cost).sum();
            if cost > self.window {
                return Err(SendError::TooLarge { dst: of_one[0].0, cost, window: self.window });
            }
        }
        Ok(())
    }
}

/// Returns the length of a scattering's record, in bytes.
#[inline]
pub(crate) fn len(messages: &[(ProcessId, &[u8])]) -> usize {
    COUNT_LEN + messages.iter().map(|(_, message)| ENTRY_LEN + message.len()).sum::<usize>()
}

/// Appends a scattering's record to `record`.
#[inline]
pub(crate) fn write(messages: &[(ProcessId, &[u8])], record: &mut Vec<u8>) {
    record.extend_from_slice(&(messages.len() as u32).to_ne_bytes());
    for (ProcessId(dst), message) in messages {
        let entry = u64::from(*dst) | (message.len() as u64) << 32;
        record.extend_from_slice(&entry.to_le_bytes());
    }
    for (_, message) in messages {
        record.extend_from_slice(message);
    }
}

/// Marks a record as that of a reliable scattering.
pub(crate) fn mark_reliable(record: &mut [u8]) {
    if let Some((number, _)) = record.split_first_chunk_mut::<COUNT_LEN>() {
        *number = (u32::from_ne_bytes(*number) | RELIABLE).to_ne_bytes();
    }
}

/// Returns whether a record is that of a reliable scattering.
pub(crate) fn is_reliable(record: &[u8]) -> bool {
    record
        .split_first_chunk::<COUNT_LEN>()
        .is_some_and(|(number, _)| u32::from_ne_bytes(*number) & RELIABLE != 0)
}

/// Decodes an entry to the receiver and the length of a message.
fn entry(entry: [u8; ENTRY_LEN]) -> (ProcessId, usize) {
    let entry = u64::from_le_bytes(entry);
    (ProcessId(entry as u32), (entry >> 32) as usize)
}

/// Returns the message of a scattering that has exactly one.
#[inline]
pub(crate) fn read_one(record: &[u8]) -> Option<(ProcessId, &[u8])> {
    let (number, rest) = record.split_first_chunk::<COUNT_LEN>()?;
    let (first, message) = rest.split_first_chunk::<ENTRY_LEN>()?;
    (u32::from_ne_bytes(*number) & !RELIABLE == 1).then(|| (entry(*first).0, message))
}

/// Decodes a record written by [`write()`] to its messages, in the memory of `list`.
pub(crate) fn read<'a>(
    record: &'a [u8],
    list: Vec<(ProcessId, &'static [u8])>,
) -> Vec<(ProcessId, &'a [u8])> {
    let mut list: Vec<(ProcessId, &'a [u8])> = list;
    let (number, rest) = record.split_first_chunk::<COUNT_LEN>().expect("a record has a number");
    let (entries, mut bytes) = rest.split_at((u32::from_ne_bytes(*number) & !RELIABLE) as usize * ENTRY_LEN);
    for &of in entries.as_chunks::<ENTRY_LEN>().0 {
        let (dst, len) = entry(of);
        let (message, others) = bytes.split_at(len);
        list.push((dst, message));
        bytes = others;
    }
    list
}

/// Empties a list, to reuse its memory for the next one. (Elements of the same size and alignment are
/// collected in place.)
pub(crate) fn clear_list(mut list: Vec<(ProcessId, &[u8])>) -> Vec<(ProcessId, &'static [u8])> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list was cleared")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;
    use onepipe::Process;
    use onepipe::process::{BeaconPeer, Peer};
    use rocev2::Qpn;
    use rocev2::ethernet::MacAddr;
    use switch::Nanos;

    #[test]
    fn scattering_is_decoded_in_the_same_memory() {
        let messages: [(_, &[u8]); 3] = [(ProcessId(7), b"abc"), (ProcessId(9), b""), (ProcessId(7), b"d")];
        let mut record = vec![1, 2, 3];
        let mut list = Vec::with_capacity(8);
        let before = list.as_ptr();
        for _ in 0..3 {
            record.clear();
            write(&messages, &mut record);
            assert_eq!(record.len(), len(&messages));
            assert_eq!(read_one(&record), None);
            let read = read(&record, list);
            assert_eq!(read, messages);
            list = clear_list(read);
            assert!(list.is_empty() && list.capacity() == 8 && list.as_ptr().cast::<u8>() == before.cast());
        }
    }

    #[test]
    fn one_message_is_read_without_a_list() {
        for message in [&b"abc"[..], b""] {
            let mut record = Vec::new();
            write(&[(ProcessId(7), message)], &mut record);
            assert_eq!(read_one(&record), Some((ProcessId(7), message)));
        }
    }

    /// The check accepts what the process accepts, and refuses what the process refuses.
    #[test]
    fn check_agrees_with_the_process() {
        let peer = |n: u8| Peer {
            id: ProcessId(n.into()),
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            address: IpAddr::from([10, 0, 0, n]),
            qpn: Qpn::new(0x11),
        };
        let Peer { mac, address, qpn, .. } = peer(99);
        let mut config = Config::new(peer(1), BeaconPeer { mac, address, qpn, detour: Vec::new() });
        config.peers = vec![peer(2), peer(3), peer(4)];
        (config.receive_window, config.send_buffer, config.max_unsettled) = (50_000, 120_000, 40);
        let bytes = vec![0; MAX_MESSAGE + 1];
        let to = |dst: u8, len: usize| (ProcessId(dst.into()), &bytes[..len]);
        let cases: Vec<Vec<_>> = vec![
            vec![],
            vec![to(2, 64)],
            vec![to(1, 0), to(2, 0)],
            vec![to(5, 1)],
            vec![to(2, 1), to(4, 1)],
            vec![to(2, MAX_MESSAGE + 1)],
            vec![to(2, 45_000)],
            vec![to(2, 48_000)],
            vec![to(2, 30_000), to(3, 30_000), to(1, 30_000)],
            vec![to(2, 30_000), to(3, 1), to(2, 30_000)],
            vec![to(1, 45_000), to(2, 45_000), to(3, 45_000)],
            (0..40).map(|n| to(1 + n % 3, 8)).collect(),
            (0..41).map(|n| to(1 + n % 3, 8)).collect(),
        ];
        let mut refused = 0;
        for messages in cases {
            let mut process = Process::new(config.clone()).unwrap();
            process.set_alive(ProcessId(4), false, Nanos::ZERO);
            let mut limits = Limits::of(&config);
            let dead = limits.index(ProcessId(4));
            let checked = limits.check(&messages, |index| Some(index) == dead);
            assert_eq!(checked, process.unreliable_send(Nanos::ZERO, &messages).map(|_| ()), "{messages:?}");
            refused += u32::from(checked.is_err());
        }
        assert_eq!(refused, 8);
    }
}
