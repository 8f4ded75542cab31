//! One end of a connection, without I/O and clock.
//!
//! The node sends its hello, the controller answers with its own, and the node's first frame proves that it
//! has the secret now, because the keys of all frames depend on the random numbers of both ends. The
//! controller takes no message before that frame.

use crate::frame::{self, Direction, Frame, Kind};
use crate::hello::{self, Hello, Peer, Side};
use crate::queue::Queue;
use crate::{Bug, DEAD_AFTER, HANDSHAKE_TIME, KEEP_ALIVE, MAX_MESSAGE, MAX_QUEUED, Reason, Secret};
use std::collections::VecDeque;
use switch::Nanos;

/// What an end knows before it has a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Shared secret, if there is one
    pub secret: Option<Secret>,
    /// Hash of the topology; an operator has none
    pub topology: u64,
}

/// What happened on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete. The peer is the node's, at both ends
    Open(Peer),
    /// A message of the other end
    Message(Vec<u8>),
}

#[derive(Clone, Debug)]
enum State {
    /// The controller's hello is missing, at a node that has sent this one
    NodeHello([u8; hello::LEN]),
    /// The node's hello is missing, at a controller
    ControllerHello,
    /// The node's proof is missing, at a controller
    Finish(Peer),
    Open,
    Ended(Reason),
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Connection {
    own: Identity,
    /// The node
    peer: Peer,
    /// Random number of the controller
    random: [u8; 32],
    state: State,
    input: Queue,
    output: Queue,
    events: VecDeque<Event>,
    /// Directions of what is sent and received, once both hellos are known
    directions: Option<[Direction; 2]>,
    started: Nanos,
    /// Time of the last frame from the peer
    heard: Nanos,
    /// Time at which a frame was queued last
    sent: Nanos,
    bug: Option<Bug>,
}

impl Connection {
    fn new(own: Identity, peer: Peer, random: [u8; 32], state: State, now: Nanos) -> Self {
        Self {
            own,
            peer,
            random,
            state,
            input: Queue::default(),
            output: Queue::default(),
            events: VecDeque::new(),
            directions: None,
            started: now,
            heard: now,
            sent: now,
            bug: None,
        }
    }

    /// Plants a bug, in builds with debug assertions, before the first byte arrives.
    pub fn plant(&mut self, bug: Bug) {
        self.bug = Some(bug);
    }

    /// Returns a node's end, which has a hello to send. `random` must never be used twice.
    pub fn node(own: Identity, peer: Peer, random: [u8; 32], now: Nanos) -> Self {
        let (secret, topology) = (own.secret.is_some(), own.topology);
        let hello = Hello { side: Side::Node, secret, status: 0, peer, topology, random }.encode();
        let tag = frame::node_hello_tag(own.secret.as_ref(), &hello);
        let hello = whole(&hello, tag.as_bytes());
        let mut connection = Self::new(own, peer, random, State::NodeHello(hello), now);
        connection.output.end().extend(hello);
        connection
    }

    /// Returns a controller's end. `random` must never be used twice.
    pub fn controller(own: Identity, random: [u8; 32], now: Nanos) -> Self {
        Self::new(own, Peer::Operator, random, State::ControllerHello, now)
    }

    /// Returns whether the handshake is complete and the connection has not ended.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Returns why the connection has ended.
    pub fn ended(&self) -> Option<Reason> {
        if let State::Ended(reason) = self.state { Some(reason) } else { None }
    }

    /// Returns the time of the last frame from the peer.
    pub fn heard(&self) -> Nanos {
        self.heard
    }

    /// Returns what has happened next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the bytes to be sent.
    pub fn output(&self) -> &[u8] {
        self.output.bytes()
    }

    /// Removes the first bytes of [`Self::output`], which have been sent.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn consume(&mut self, count: usize) {
        self.output.take(count);
    }

    /// Takes bytes of the other end.
    ///
    /// # Errors
    /// The reason for which the connection has ended; [`Self::output`] may tell the peer.
    pub fn on_bytes(&mut self, bytes: &[u8], now: Nanos) -> Result<(), Reason> {
        if let State::Ended(reason) = self.state {
            return Err(reason);
        }
        self.input.end().extend(bytes);
        self.advance(now).map_err(|reason| self.end(reason))
    }

    /// Queues a message; ignores it before the handshake is complete and after the end.
    ///
    /// # Errors
    /// [`Reason::Slow`] if too much waits already: then the connection has ended.
    ///
    /// # Panics
    /// If the message is longer than [`MAX_MESSAGE`].
    pub fn send(&mut self, message: &[u8], now: Nanos) -> Result<(), Reason> {
        if !self.is_open() {
            return Ok(());
        }
        if self.output.len() + message.len() + frame::OVERHEAD > MAX_QUEUED {
            return Err(self.end(Reason::Slow));
        }
        self.seal(Kind::Message, message, now);
        Ok(())
    }

    /// Ends the connection; [`Self::output`] tells the peer why.
    pub fn close(&mut self, reason: Reason) {
        if !matches!(self.state, State::Ended(_)) {
            self.end(reason);
        }
    }

    /// Returns the time at which [`Self::on_timer`] has to be called, if the connection has not ended.
    pub fn next_timer(&self) -> Option<Nanos> {
        match self.state {
            State::Ended(_) => None,
            State::Open => Some((self.heard + DEAD_AFTER).min(self.sent + KEEP_ALIVE)),
            _ => Some(self.started + HANDSHAKE_TIME),
        }
    }

    /// Queues a sign of life, or ends the connection of a peer that gives none.
    ///
    /// # Errors
    /// The reason for which the connection has ended.
    pub fn on_timer(&mut self, now: Nanos) -> Result<(), Reason> {
        match self.state {
            State::Ended(reason) => Err(reason),
            State::Open => {
                if now.since(self.heard) >= DEAD_AFTER {
                    return Err(self.end(Reason::Silent));
                }
                if now.since(self.sent) >= KEEP_ALIVE {
                    self.sent = now;
                    // What waits already is a sign of life when it leaves.
                    if self.output.len() == 0 {
                        self.seal(Kind::Alive, &[], now);
                    }
                }
                Ok(())
            }
            _ if now.since(self.started) >= HANDSHAKE_TIME => Err(self.end(Reason::HandshakeTime)),
            _ => Ok(()),
        }
    }

    fn seal(&mut self, kind: Kind, content: &[u8], now: Nanos) {
        let [send, _] = self.directions.as_mut().expect("frames follow the hellos");
        send.seal(kind, content, self.output.end());
        self.sent = now;
    }

    /// Ends the connection. Tells the peer the reason, if the reason has a number.
    fn end(&mut self, reason: Reason) -> Reason {
        let state = core::mem::replace(&mut self.state, State::Ended(reason));
        self.input = Queue::default();
        let Some(code) = reason.code() else { return reason };
        match state {
            State::ControllerHello => self.refuse(reason, code),
            State::Open => self.seal(Kind::Close, &[code], self.sent),
            _ => {}
        }
        reason
    }

    /// Sends a hello that refuses the node. Its tag is 0: a node believes it as it believes a connection that
    /// is reset.
    fn refuse(&mut self, reason: Reason, status: u8) {
        let knows_secret = matches!(reason, Reason::Topology { .. });
        let hello = Hello {
            side: Side::Controller,
            secret: self.own.secret.is_some(),
            status,
            peer: Peer::Operator,
            topology: if knows_secret { self.own.topology } else { 0 },
            random: self.random,
        };
        self.output.end().extend(whole(&hello.encode(), &[0; 32]));
    }

    fn advance(&mut self, now: Nanos) -> Result<(), Reason> {
        loop {
            match &self.state {
                State::NodeHello(_) | State::ControllerHello => {
                    let bytes = self.input.bytes();
                    Hello::check_start(bytes)?;
                    let Some(&hello) = bytes.first_chunk() else { return Ok(()) };
                    self.input.take(hello::LEN);
                    self.heard = now;
                    if let State::NodeHello(own) = self.state {
                        self.on_controller_hello(&own, &hello, now)?;
                    } else {
                        self.on_node_hello(&hello)?;
                    }
                }
                State::Finish(_) | State::Open => {
                    if !self.on_frame(now)? {
                        return Ok(());
                    }
                }
                State::Ended(reason) => return Err(*reason),
            }
        }
    }

    fn on_node_hello(&mut self, bytes: &[u8; hello::LEN]) -> Result<(), Reason> {
        let hello = Hello::decode(bytes, Side::Node)?;
        let secret = self.own.secret.clone();
        check_secrets(hello.secret, secret.is_some())?;
        let (untagged, tag) = parts(bytes);
        if frame::node_hello_tag(secret.as_ref(), untagged) != tag {
            return Err(Reason::WrongSecret);
        }
        let (found, own) = (hello.topology, self.own.topology);
        if hello.peer != Peer::Operator && found != own {
            return Err(Reason::Topology { found, own });
        }
        let answer = Hello {
            side: Side::Controller,
            secret: secret.is_some(),
            status: 0,
            peer: Peer::Operator,
            topology: own,
            random: self.random,
        };
        let answer = answer.encode();
        let tag = frame::controller_hello_tag(secret.as_ref(), bytes, &answer);
        let answer = whole(&answer, tag.as_bytes());
        self.output.end().extend(answer);
        let [receive, send] = Direction::both(secret.as_ref(), bytes, &answer, self.bug);
        self.directions = Some([send, receive]);
        self.peer = hello.peer;
        self.state = State::Finish(hello.peer);
        if Bug::NoProof.is(self.bug) {
            self.state = State::Open;
            self.events.push_back(Event::Open(hello.peer));
        }
        Ok(())
    }

    fn on_controller_hello(
        &mut self,
        own_hello: &[u8; hello::LEN],
        bytes: &[u8; hello::LEN],
        now: Nanos,
    ) -> Result<(), Reason> {
        let hello = Hello::decode(bytes, Side::Controller)?;
        let (found, own) = (hello.topology, self.own.topology);
        if hello.status != 0 {
            return Err(Reason::from_peer(hello.status, hello::VERSION, [found, own]));
        }
        let secret = self.own.secret.clone();
        check_secrets(hello.secret, secret.is_some())?;
        let (untagged, tag) = parts(bytes);
        if frame::controller_hello_tag(secret.as_ref(), own_hello, untagged) != tag {
            return Err(Reason::WrongSecret);
        }
        if self.peer != Peer::Operator && found != own {
            return Err(Reason::Topology { found, own });
        }
        self.directions = Some(Direction::both(secret.as_ref(), own_hello, bytes, self.bug));
        self.state = State::Open;
        self.seal(Kind::Finish, &[], now);
        self.events.push_back(Event::Open(self.peer));
        Ok(())
    }

    /// Takes a frame. Returns whether one was there.
    fn on_frame(&mut self, now: Nanos) -> Result<bool, Reason> {
        let [_, receive] = self.directions.as_mut().expect("frames follow the hellos");
        let max = if matches!(self.state, State::Open) { MAX_MESSAGE } else { 0 };
        let Some(Frame { kind, content, len }) = receive.open(self.input.bytes(), max)? else {
            return Ok(false);
        };
        match (&self.state, kind) {
            (State::Open, Kind::Message) => self.events.push_back(Event::Message(content.into())),
            (State::Open, Kind::Alive) => {}
            (State::Open, Kind::Finish) if Bug::NoProof.is(self.bug) => {}
            (State::Open, Kind::Close) => {
                let reason = Reason::from_peer(content[0], hello::VERSION, [0; 2]);
                self.state = State::Ended(reason);
                return Err(reason);
            }
            (&State::Finish(peer), Kind::Finish) => {
                self.state = State::Open;
                self.events.push_back(Event::Open(peer));
            }
            (_, kind) => return Err(Reason::Frame(kind as u8)),
        }
        self.input.take(len);
        self.heard = now;
        Ok(true)
    }
}

fn check_secrets(peers: bool, own: bool) -> Result<(), Reason> {
    match (peers, own) {
        (true, false) => Err(Reason::SecretMissing),
        (false, true) => Err(Reason::NoSecret),
        _ => Ok(()),
    }
}

fn whole(untagged: &[u8; hello::UNTAGGED], tag: &[u8; 32]) -> [u8; hello::LEN] {
    let mut bytes = [0; hello::LEN];
    bytes[..hello::UNTAGGED].copy_from_slice(untagged);
    bytes[hello::UNTAGGED..].copy_from_slice(tag);
    bytes
}

fn parts(bytes: &[u8; hello::LEN]) -> (&[u8; hello::UNTAGGED], blake3::Hash) {
    let (untagged, tag) = bytes.split_at(hello::UNTAGGED);
    let tag: [u8; 32] = tag.try_into().expect("32 bytes");
    (untagged.try_into().expect("64 bytes"), blake3::Hash::from_bytes(tag))
}

#[cfg(test)]
mod tests;
