//! A group at one of its members: how it comes about, its connections for blocks, and how it ends. [`transfer`] moves
//! blocks.
//!
//! ```text
//! create_group:  Create to all, with the ends of connections ---> Create of all has come: connections stand
//!                Joined to all ---> Joined of all has come: open
//! destroy_group: the root has sent everything: Close to all ---> a member has as many messages: Received to the root
//!                Received of all has come: Done to all, closed ---> Done: closed
//! anything else: Failed to all, and on from each of them: failed
//! ```

mod plan;
pub(crate) mod ready;
mod resources;
pub(crate) mod transfer;

pub(crate) use plan::check;
pub(crate) use resources::{Depth, READY_VA, Resources, Use, WORD};

use crate::config::{CallError, Failure, GroupConfig, Memory};
use crate::schedule::{Algorithm, Schedule};
use crate::wire::{Create, End, Message};
use core::net::IpAddr;
use ready::Need;
use rnic::cm::Conn;
use rnic::{
    Access, Buffer, Data, Modify, Mr, Operation, Path, PathMtu, ReadyToReceive, ReadyToSend, Remote, Rnic,
    SendRequest,
};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use transfer::{Links, Posted, Transfer};

/// Asked for when a message comes: memory for so many bytes, or nothing if there is none.
pub type IncomingMessage = Box<dyn FnMut(&mut Rnic, u32) -> Option<Memory> + Send>;
/// Told that a message is complete here: where it lies, and its bytes. The memory may be used anew.
pub type MessageComplete = Box<dyn FnMut(&mut Rnic, Memory, u32) + Send>;

/// What a member knows of another one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Other {
    pub(crate) create: Option<Create>,
    joined: bool,
    /// For the root: it has everything
    received: bool,
}

/// A member with whom blocks are exchanged.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) member: u32,
    pub(crate) qpn: Qpn,
    psn: Psn,
    /// Where it writes how many blocks it is ready for
    pub(crate) word: u32,
    /// Where we do
    pub(crate) remote: Option<Remote>,
    /// Blocks sent to it, and receives posted for blocks from it, since the group began
    pub(crate) sent: u64,
    pub(crate) asked: u64,
    /// Receives that are posted and have not completed
    pub(crate) posted: VecDeque<Posted>,
    /// Where the first block of a message goes, if it may come from here: its place in the side buffer
    pub(crate) side: Option<u32>,
    /// A receive into the side buffer is posted that no block is expected for: it takes the first block of this message
    pub(crate) spare: Option<u64>,
    /// The first block of a message may come from another one, too: it is told of which message a spare receive is
    pub(crate) doubtful: bool,
    /// Sends that may wait when a word joins them: the rest of the queue is for blocks
    words: usize,
    /// It does not know how many blocks we are ready for, as the send queue was full
    pub(crate) untold: bool,
}

/// A group whose blocks a switch copies.
#[derive(Debug, Default)]
pub(crate) struct Through {
    /// The root's queue pairs to the switch, with whether the switch has opened its group; and blocks it has acknowledged
    pub(crate) lanes: Vec<Lane>,
    /// A member's queue pair from the switch
    pub(crate) feed: Option<(Qpn, Conn, Mr, Buffer)>,
    pub(crate) feed_stands: bool,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) qpn: Qpn,
    pub(crate) conn: Conn,
    pub(crate) stands: bool,
    pub(crate) acknowledged: u64,
}

/// What comes of a step, for the node to carry out.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Messages to members, by their places
    pub(crate) say: Vec<(u32, Message)>,
    pub(crate) opened: bool,
    pub(crate) closed: bool,
    /// It waits for somebody's word that they are ready
    pub(crate) waits: bool,
}

impl Outcome {
    fn say_all(&mut self, group: &Group, message: Message) {
        self.say.extend(group.others_of().map(|member| (member, message)));
    }
}

/// How far a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Others' ends are not known, or the switch has not answered.
    Forming,
    /// Its own connections stand, and others have been told.
    Joined,
    /// Everybody's do.
    Open,
}

/// A group at a member.
pub(crate) struct Group {
    pub(crate) config: GroupConfig,
    /// This member's place
    pub(crate) own: u32,
    pub(crate) life: u64,
    agreement: u64,
    pub(crate) others: Vec<Other>,
    pub(crate) neighbours: Vec<Neighbour>,
    /// By member: its place among the neighbours
    pub(crate) place: BTreeMap<u32, usize>,
    /// Room for first blocks
    pub(crate) side: Option<(Buffer, Mr)>,
    pub(crate) through: Option<Through>,
    pub(crate) deadline: Nanos,
    stage: Stage,
    pub(crate) transfer: Option<Transfer>,
    /// The root: what is to be sent next
    pub(crate) queue: VecDeque<(Memory, u32)>,
    /// Given for a message, and not within a region that can be used
    pub(crate) unusable: Option<Memory>,
    /// Complete here
    pub(crate) messages: u64,
    /// The root: nothing more will be sent
    pub(crate) closing: bool,
    close_told: bool,
    /// A member: how many messages there are, if the root has said so
    close_at: Option<u64>,
    pub(crate) incoming: IncomingMessage,
    pub(crate) complete: MessageComplete,
}

impl Group {
    /// A group with its queue pairs and memory; nobody has heard of it yet.
    pub(crate) fn new(
        nic: &mut Rnic,
        resources: &mut Resources,
        config: GroupConfig,
        own: u32,
        deadline: Nanos,
        callbacks: (IncomingMessage, MessageComplete),
    ) -> Result<Self, CallError> {
        let n = config.members.len() as u32;
        let through = (config.algorithm == Algorithm::InNetwork).then(Through::default);
        let mut group = Self {
            agreement: plan::agreement(&config),
            own,
            life: resources.chance.bits(),
            others: vec![Other::default(); n as usize],
            neighbours: Vec::new(),
            place: BTreeMap::new(),
            side: None,
            through,
            deadline,
            stage: Stage::Forming,
            transfer: None,
            queue: VecDeque::new(),
            unusable: None,
            messages: 0,
            closing: false,
            close_told: false,
            close_at: None,
            incoming: callbacks.0,
            complete: callbacks.1,
            config,
        };
        let made = group.make(nic, resources);
        if made.is_err() {
            group.tear_down(nic, resources, Nanos::ZERO);
        }
        made.map(|()| group)
    }

    fn make(&mut self, nic: &mut Rnic, resources: &mut Resources) -> Result<(), CallError> {
        let (algorithm, n) = (&self.config.algorithm, self.config.members.len() as u32);
        let members = Schedule::neighbours(algorithm, n, self.own);
        let free = resources.free_words.len();
        if members.len() > free {
            return Err(CallError::Connections(members.len() - free));
        }
        let first = Schedule::first_senders(algorithm, n, self.own);
        if !first.is_empty() {
            let len = first.len() * self.config.block_bytes as usize;
            self.side = Some(nic.register_new(resources.pd, len, 0, Access::LOCAL_WRITE)?);
        }
        let ahead = self.config.ahead as usize;
        for member in members {
            let qpn = nic.create_qp(resources.queue_pair(Depth::blocks(ahead)))?;
            let Some(word) = resources.free_words.pop() else {
                _ = nic.destroy_qp(qpn);
                return Err(CallError::Connections(1));
            };
            let at = word as usize * WORD;
            if let Some(bytes) = nic.bytes_mut(resources.ready.0).get_mut(at..at + WORD) {
                bytes.fill(0);
            }
            let place = self.neighbours.len();
            resources.uses.insert(qpn.get(), (self.config.number, Use::Neighbour(place)));
            self.place.insert(member, place);
            let side = first.iter().position(|from| *from == member).map(|place| place as u32);
            self.neighbours.push(Neighbour {
                member,
                qpn,
                psn: Psn::new(resources.chance.bits() as u32),
                word,
                remote: None,
                sent: 0,
                asked: 0,
                posted: VecDeque::new(),
                side,
                spare: None,
                doubtful: side.is_some() && first.len() > 1,
                words: Depth::words(ahead),
                untold: false,
            });
            nic.modify_qp(qpn, Modify::Init { access: Access::REMOTE_WRITE, qkey: 0 })?;
        }
        Ok(())
    }

    /// Gives everything back to the NIC but the memory of messages, which is the application's: what was not complete.
    pub(crate) fn tear_down(&mut self, nic: &mut Rnic, resources: &mut Resources, now: Nanos) -> Vec<Memory> {
        for neighbour in self.neighbours.drain(..) {
            resources.uses.remove(&neighbour.qpn.get());
            resources.free_words.push(neighbour.word);
            // All of these are the group's, and nobody else has them.
            _ = nic.destroy_qp(neighbour.qpn);
        }
        if let Some(through) = self.through.take() {
            let feed = through.feed.map(|(qpn, conn, mr, buffer)| {
                _ = nic.deregister(mr);
                _ = nic.free(buffer);
                (qpn, conn)
            });
            let lanes = through.lanes.into_iter().map(|lane| (lane.qpn, lane.conn));
            for (qpn, conn) in lanes.chain(feed) {
                resources.uses.remove(&qpn.get());
                // Otherwise all that is posted would complete.
                _ = nic.modify_qp(qpn, Modify::Reset);
                _ = nic.disconnect(conn, &[], now);
                _ = nic.destroy_qp(qpn);
            }
        }
        if let Some((buffer, mr)) = self.side.take() {
            _ = nic.deregister(mr);
            _ = nic.free(buffer);
        }
        let under_way = self.transfer.take().map(|transfer| transfer.memory);
        under_way
            .into_iter()
            .chain(self.unusable.take())
            .chain(self.queue.drain(..).map(|(memory, _)| memory))
            .collect()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.own == 0
    }

    /// The other members
    pub(crate) fn others_of(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.own;
        (0..self.config.members.len() as u32).filter(move |member| *member != own)
    }

    pub(crate) fn ip(&self, member: u32) -> IpAddr {
        self.config.members[member as usize]
    }

    pub(crate) fn member(&self, ip: IpAddr) -> Option<u32> {
        self.config.members.iter().position(|member| *member == ip).map(|member| member as u32)
    }

    /// What is said to a member when the group is created
    pub(crate) fn create_for(&self, nic: &Rnic, resources: &Resources, member: u32) -> Message {
        let end = self.place.get(&member).map(|place| {
            let neighbour = &self.neighbours[*place];
            End {
                qpn: neighbour.qpn,
                psn: neighbour.psn,
                mtu: nic.config().mtu.bytes() as u16,
                ready: Remote {
                    va: READY_VA + u64::from(neighbour.word) * WORD as u64,
                    rkey: resources.ready.1.0,
                },
            }
        });
        Message::Create(Create { life: self.life, agreement: self.agreement, end })
    }

    /// A member has created the group.
    pub(crate) fn on_create(
        &mut self,
        nic: &mut Rnic,
        resources: &Resources,
        member: u32,
        create: Create,
    ) -> Result<(), Failure> {
        let ip = self.ip(member);
        if create.agreement != self.agreement {
            return Err(Failure::Mismatch(ip));
        }
        self.others[member as usize].create = Some(create);
        match (self.place.get(&member), create.end) {
            (Some(place), Some(end)) => {
                let neighbour = &mut self.neighbours[*place];
                neighbour.remote = Some(end.ready);
                let own_mtu = nic.config().mtu;
                let theirs = PathMtu::of_bytes(end.mtu).ok_or(Failure::Violation(ip))?;
                let ready = ReadyToReceive {
                    path: Path::new(resources.own, ip),
                    dest_qp: end.qpn,
                    mtu: own_mtu.min(theirs),
                    rq_psn: neighbour.psn,
                    max_dest_rd_atomic: 0,
                    min_rnr_timer: RnrTimer(1),
                };
                let send = ReadyToSend {
                    sq_psn: end.psn,
                    max_rd_atomic: 0,
                    timeout: resources.ack_timeout,
                    retry_count: resources.retry_count,
                    rnr_retry: 7,
                    flow_control: false,
                };
                let stands = nic.modify_qp(neighbour.qpn, Modify::Rtr(ready));
                let stands = stands.and_then(|()| nic.modify_qp(neighbour.qpn, Modify::Rts(send)));
                stands.map_err(|_| Failure::NoRoom(resources.own))
            }
            (None, None) => Ok(()),
            // They agree about everything from which it follows who exchanges blocks with whom.
            _ => Err(Failure::Violation(ip)),
        }
    }

    /// Whether every other member has created the group.
    pub(crate) fn is_created_by_all(&self) -> bool {
        self.others_of().all(|member| self.others[member as usize].create.is_some())
    }

    /// Returns why the group is not open when its time is over: a member that has not created it; or the switch that copies,
    /// if it has not connected every member; or else a member that has not joined.
    pub(crate) fn late(&self) -> Failure {
        let first = |waits: fn(&Other) -> bool| {
            let other = self.others_of().find(|member| waits(&self.others[*member as usize]));
            other.map(|member| self.ip(member))
        };
        let silent = first(|other| other.create.is_none()).map(Failure::Silent);
        let unjoined = || first(|other| !other.joined).filter(|_| self.is_switch_ready());
        silent.or_else(|| unjoined().map(Failure::Unjoined)).unwrap_or(Failure::Switch(self.ip(0)))
    }

    /// Returns whether the switch that copies, if there is one, has connected every member, as far as this node knows.
    fn is_switch_ready(&self) -> bool {
        // The root asks the switch when all members have created the group, and the switch answers when it has connected all
        // of them. So a member that is connected and has not heard the root join knows what the root waits for.
        let has_answered = self.through.is_none() || self.is_root() || self.others[0].joined;
        has_answered && self.is_through_switch()
    }

    /// Members that have not created it, as far as this node knows
    pub(crate) fn lacking(&self) -> Vec<IpAddr> {
        let lacking = self.others_of().filter(|member| self.others[*member as usize].create.is_none());
        lacking.map(|member| self.ip(member)).collect()
    }

    /// Whether its own ends to the switch and from it stand, if there are any.
    fn is_through_switch(&self) -> bool {
        self.through.as_ref().is_none_or(|through| {
            if self.own == 0 {
                !through.lanes.is_empty() && through.lanes.iter().all(|lane| lane.stands)
            } else {
                through.feed_stands
            }
        })
    }

    /// Whether its own ends stand.
    fn stands(&self) -> bool {
        self.is_through_switch() && self.is_created_by_all()
    }

    /// A member's connections stand.
    pub(crate) fn on_joined(&mut self, member: u32) {
        self.others[member as usize].joined = true;
    }

    /// The root will send nothing more, and has sent so many messages.
    pub(crate) fn on_close(&mut self, member: u32, messages: u64) -> Result<(), Failure> {
        if member != 0 || self.close_at.is_some() || messages < self.messages {
            return Err(Failure::Violation(self.ip(member)));
        }
        self.close_at = Some(messages);
        Ok(())
    }

    /// A member has as many messages.
    pub(crate) fn on_received(&mut self, member: u32, messages: u64) -> Result<(), Failure> {
        if !self.is_root() || !self.close_told || messages != self.messages {
            return Err(Failure::Violation(self.ip(member)));
        }
        self.others[member as usize].received = true;
        Ok(())
    }

    /// The root says that everybody has everything.
    pub(crate) fn on_done(&self, member: u32) -> Result<(), Failure> {
        if member == 0 && self.close_told { Ok(()) } else { Err(Failure::Violation(self.ip(member))) }
    }

    /// Does what can be done now.
    pub(crate) fn progress(&mut self, nic: &mut Rnic, resources: &Resources) -> Result<Outcome, Failure> {
        let mut out = Outcome::default();
        if self.stage == Stage::Forming && self.stands() {
            self.stage = Stage::Joined;
            out.say_all(self, Message::Joined);
        }
        if self.stage == Stage::Joined && self.others_of().all(|member| self.others[member as usize].joined) {
            self.stage = Stage::Open;
            out.opened = true;
        }
        if !self.is_open() {
            return Ok(out);
        }
        loop {
            self.links(nic, resources).begin()?;
            if self.transfer.is_none() {
                break;
            }
            out.waits = self.links(nic, resources).advance()?;
            let complete = self.transfer.as_ref().is_some_and(Transfer::is_complete);
            #[cfg(debug_assertions)]
            let complete = complete
                || resources.bug == Some(crate::Bug::NotPassedOn)
                    && self.transfer.as_ref().is_some_and(|transfer| !self.is_root() && transfer.is_here());
            if !complete {
                break;
            }
            if let Some(transfer) = self.transfer.take() {
                self.messages += 1;
                (self.complete)(nic, transfer.memory, transfer.len);
            }
        }
        #[cfg(debug_assertions)]
        if resources.bug == Some(crate::Bug::EarlyClose) && self.closing {
            self.others.iter_mut().for_each(|other| other.received = true);
        }
        self.come_to_an_end(&mut out)?;
        for neighbour in &mut self.neighbours {
            out.waits |= neighbour.untold && !Self::tell_ready(nic, neighbour);
        }
        Ok(out)
    }

    /// Whether all members are there.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether it has nothing to do but to hear that it is closed: others that were told so already take their ends down.
    pub(crate) fn is_through(&self) -> bool {
        self.close_told
    }

    /// What a group waits for, if it is one member's word: which word, and what it has to say
    pub(crate) fn waits_for(&self) -> Option<(u32, Need)> {
        let untold = self.neighbours.iter().any(|neighbour| neighbour.untold);
        let place = self.transfer.as_ref().filter(|_| !untold)?.next_to()?;
        let word = self.neighbours[place].word;
        Some((word, self.transfer.as_ref()?.needs(self, place)))
    }

    /// Whether a group that waits can go on.
    pub(crate) fn may_go_on(&self, nic: &Rnic, resources: &Resources) -> bool {
        let untold = || self.neighbours.iter().any(|neighbour| neighbour.untold);
        self.transfer.as_ref().is_some_and(|transfer| transfer.is_ready(self, nic, resources)) || untold()
    }

    fn links<'a>(&'a mut self, nic: &'a mut Rnic, resources: &'a Resources) -> Links<'a> {
        Links { group: self, nic, resources }
    }

    /// A block has come.
    pub(crate) fn on_block(
        &mut self,
        nic: &mut Rnic,
        resources: &Resources,
        place: usize,
        total: Option<u32>,
        len: u32,
    ) -> Result<(), Failure> {
        self.links(nic, resources).on_block(place, total, len)
    }

    /// A block has been acknowledged by a neighbour, or by a switch for all that it copies to.
    pub(crate) fn on_sent(&mut self, of: Use) {
        let Some(transfer) = &mut self.transfer else { return };
        match (of, &mut self.through) {
            (Use::Lane(place), Some(through)) => {
                through.lanes[place].acknowledged += 1;
                transfer.acknowledged =
                    through.lanes.iter().map(|lane| lane.acknowledged).min().unwrap_or(0) as usize;
            }
            _ => transfer.acknowledged += 1,
        }
    }

    /// What is due about closing it.
    fn come_to_an_end(&mut self, out: &mut Outcome) -> Result<(), Failure> {
        if self.transfer.is_some() {
            return Ok(());
        }
        if self.is_root() {
            if !self.closing || !self.queue.is_empty() {
                return Ok(());
            }
            if !self.close_told {
                self.close_told = true;
                out.say_all(self, Message::Close { messages: self.messages });
            }
            if self.others_of().all(|member| self.others[member as usize].received) {
                out.say_all(self, Message::Done);
                out.closed = true;
            }
        } else if let Some(messages) = self.close_at {
            if self.messages > messages {
                return Err(Failure::Violation(self.ip(0)));
            }
            if self.messages == messages && !self.close_told {
                self.close_told = true;
                out.say.push((0, Message::Received { messages }));
            }
        }
        Ok(())
    }

    /// Tells a neighbour how many blocks we are ready for. Whether it could be told: if not, it is tried again when something
    /// has come in.
    pub(crate) fn tell_ready(nic: &mut Rnic, neighbour: &mut Neighbour) -> bool {
        let Some(remote) = neighbour.remote else { return true };
        let only_first_of = neighbour.spare.filter(|_| neighbour.doubtful);
        let word = ready::word(neighbour.asked, only_first_of).to_be_bytes().to_vec();
        let write = SendRequest::new(0, Operation::Write(remote), Data::Inline(word));
        let request = SendRequest { signaled: false, ..write };
        // A queue that has failed completes it as such.
        let is_room = nic.pending_sends(neighbour.qpn) < neighbour.words;
        neighbour.untold = !is_room || nic.post_send(neighbour.qpn, request).is_err();
        !neighbour.untold
    }
}

impl core::fmt::Debug for Group {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.config.number)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}
