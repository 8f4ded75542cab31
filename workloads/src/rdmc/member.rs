//! A host's application: sends distinguishable objects, and checks those that it receives.

use ::rdmc::{CallError, Config, Counters, Event, Failure, GroupConfig, MessageMemory, Node};
use rnic::{Access, Buffer, Pd, Rnic};
use sim::App;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;
use switch::table::mix;

/// Virtual address of messages; not 0, so that a wrong address of 0 is detected
const VA: u64 = 0x4000_0000;

/// State of a group at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Never created, or lost in a crash
    Unknown,
    /// Created; not all members are connected
    Forming,
    /// All members are connected
    Open,
    /// Closed without a failure
    Closed,
    /// Failed
    Failed(Failure),
}

/// Observations of a member about its groups.
#[derive(Debug, Default)]
pub struct Observations {
    /// State of each group
    groups: BTreeMap<u32, GroupState>,
    /// Time of the last change of that state
    since: BTreeMap<u32, Nanos>,
    /// Lengths of the complete messages, by group
    pub complete: BTreeMap<u32, Vec<u32>>,
    /// Time of the last complete message
    pub last: Nanos,
    buffers: BTreeMap<u32, Buffer>,
    wrong: Option<String>,
    now: Nanos,
}

impl Observations {
    fn report(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}

/// The application.
#[derive(Debug)]
pub struct Member {
    config: Config,
    /// The node
    pub node: Node,
    room: u32,
    sent: BTreeMap<u32, u64>,
    seen: Arc<Mutex<Observations>>,
}

fn lock(seen: &Mutex<Observations>) -> MutexGuard<'_, Observations> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns eight bytes of a message of a group.
fn pattern(group: u32, message: u64, word: usize) -> [u8; 8] {
    mix(u64::from(group) << 40 ^ message << 32 ^ word as u64).to_le_bytes()
}

fn fill(group: u32, message: u64, bytes: &mut [u8]) {
    for (word, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&pattern(group, message, word)[..chunk.len()]);
    }
}

/// Returns the pseudorandom length of a message of a group: 1 to `most` bytes.
pub fn len_of(group: u32, message: u64, most: u32) -> u32 {
    (mix(u64::from(group) << 32 | message) % u64::from(most)) as u32 + 1
}

fn memory(nic: &mut Rnic, pd: Pd, len: u32, access: Access) -> Option<(Buffer, MessageMemory)> {
    let (buffer, mr) = nic.register_new(pd, len as usize, VA, access).ok()?;
    Some((buffer, MessageMemory { mr, va: VA }))
}

fn free(nic: &mut Rnic, seen: &mut Observations, memory: MessageMemory) {
    _ = nic.deregister(memory.mr);
    match seen.buffers.remove(&memory.mr.0) {
        Some(buffer) => _ = nic.free(buffer),
        None => seen.report(format!("{memory:?} was returned, but is not in use")),
    }
}

impl Member {
    pub(super) fn new(config: Config, room: u32) -> Self {
        let seen = Arc::default();
        Self { node: Node::new(config.clone()), config, room, sent: BTreeMap::new(), seen }
    }

    /// Returns the observations since the last start, with the complete messages of all incarnations.
    pub fn seen(&self) -> MutexGuard<'_, Observations> {
        lock(&self.seen)
    }

    /// Returns the first violation, if any.
    pub fn wrong(&self) -> Option<String> {
        self.seen().wrong.clone()
    }

    /// Returns the state of a group.
    pub fn group_state(&self, group: u32) -> GroupState {
        self.seen().groups.get(&group).copied().unwrap_or(GroupState::Unknown)
    }

    /// Returns why and when a group failed, by the host's own clock.
    pub fn failure(&self, group: u32) -> Option<(Failure, Nanos)> {
        let seen = self.seen();
        match (seen.groups.get(&group), seen.since.get(&group)) {
            (Some(GroupState::Failed(failure)), Some(since)) => Some((*failure, *since)),
            _ => None,
        }
    }

    /// Returns the number of complete messages of a group.
    pub fn messages(&self, group: u32) -> usize {
        self.seen().complete.get(&group).map_or(0, Vec::len)
    }

    /// Returns the counters of the node.
    pub fn counters(&self) -> Counters {
        self.node.counters()
    }

    /// Returns the number of message buffers in use.
    pub fn buffers(&self) -> usize {
        self.seen().buffers.len()
    }

    /// Creates a group.
    ///
    /// # Errors
    /// The error of the node.
    pub fn create(&mut self, nic: &mut Rnic, config: GroupConfig, now: Nanos) -> Result<(), CallError> {
        let Some(pd) = self.node.pd() else { return Err(CallError::NotStarted) };
        let (number, room) = (config.number, self.room);
        let seen = Arc::clone(&self.seen);
        let incoming = move |nic: &mut Rnic, len: u32| {
            if len > room {
                return None;
            }
            let (buffer, memory) = memory(nic, pd, len, Access::LOCAL_WRITE)?;
            lock(&seen).buffers.insert(memory.mr.0, buffer);
            Some(memory)
        };
        let seen = Arc::clone(&self.seen);
        let complete = move |nic: &mut Rnic, memory: MessageMemory, len: u32| {
            let mut seen = lock(&seen);
            let message = seen.complete.entry(number).or_default().len() as u64;
            let bytes = seen.buffers.get(&memory.mr.0).map(|buffer| nic.bytes(*buffer)).unwrap_or_default();
            let differs = || {
                let mut words = bytes.chunks(8).enumerate();
                let word = words.find(|(at, word)| **word != pattern(number, message, *at)[..word.len()]);
                word.map(|(at, _)| at * 8)
            };
            let wrong = if bytes.len() == len as usize { differs() } else { Some(bytes.len()) };
            if let Some(at) = wrong {
                seen.report(format!(
                    "message {message} of group {number} ({len} bytes) is wrong from byte {at} on"
                ));
            }
            seen.complete.entry(number).or_default().push(len);
            seen.last = seen.now;
            free(nic, &mut seen, memory);
        };
        self.node.create_group(nic, config, Box::new(incoming), Box::new(complete), now)?;
        let mut seen = self.seen();
        seen.groups.insert(number, GroupState::Forming);
        seen.complete.insert(number, Vec::new());
        drop(seen);
        self.sent.insert(number, 0);
        Ok(())
    }

    /// Sends the next message of a group.
    ///
    /// # Errors
    /// The error of the node.
    pub fn send(&mut self, nic: &mut Rnic, group: u32, len: u32) -> Result<(), CallError> {
        let Some(pd) = self.node.pd() else { return Err(CallError::NotStarted) };
        let Some((buffer, memory)) = memory(nic, pd, len, Access::LOCAL_READ) else {
            return Err(CallError::NotRegistered);
        };
        let message = self.sent.entry(group).or_default();
        fill(group, *message, nic.bytes_mut(buffer));
        let mut seen = lock(&self.seen);
        seen.buffers.insert(memory.mr.0, buffer);
        let sent = self.node.send(nic, group, memory, len);
        match sent {
            Ok(()) => *message += 1,
            Err(_) => free(nic, &mut seen, memory),
        }
        sent
    }

    /// Closes a group.
    ///
    /// # Errors
    /// The error of the node.
    pub fn destroy(&mut self, group: u32) -> Result<(), CallError> {
        self.node.destroy_group(group)
    }

    fn on_event(&mut self, nic: &mut Rnic, event: Event) {
        let mut seen = lock(&self.seen);
        let (group, next) = match event {
            Event::Open(group) => (group, GroupState::Open),
            Event::Closed(group) => (group, GroupState::Closed),
            Event::Failed { group, failure, unfinished, .. } => {
                for memory in unfinished {
                    free(nic, &mut seen, memory);
                }
                (group, GroupState::Failed(failure))
            }
            // This application requests no links and sends no notes.
            Event::LinkUp(_) | Event::LinkLost(_) | Event::Note(..) => return,
        };
        let now = seen.now;
        seen.since.insert(group, now);
        let before = seen.groups.insert(group, next);
        let is_valid = match next {
            GroupState::Open => before == Some(GroupState::Forming),
            GroupState::Closed => before == Some(GroupState::Open),
            GroupState::Failed(_) => matches!(before, Some(GroupState::Forming | GroupState::Open)),
            GroupState::Unknown | GroupState::Forming => false,
        };
        if !is_valid {
            seen.report(format!("group {group} changed from {before:?} to {next:?}"));
        }
    }
}

impl App for Member {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        if let Err(error) = self.node.start(nic) {
            self.seen().report(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.seen().now = now;
        self.node.run(nic, now);
        while let Some(event) = self.node.poll_event() {
            self.on_event(nic, event);
        }
    }

    fn crash(&mut self, _nic: &Rnic) {
        self.node = Node::new(self.config.clone());
        self.sent.clear();
        let mut seen = lock(&self.seen);
        // Violations remain, and so do the messages that were complete at the crash.
        let (wrong, complete) = (seen.wrong.take(), core::mem::take(&mut seen.complete));
        *seen = Observations { complete, wrong, ..Observations::default() };
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.node.next_timer()
    }
}
