//! One run of two clients, one word and a server behind a Swordbox, in which the caller chooses every step.
//!
//! The hosts are real [`Rnic`]s, connected by the communication manager, and the switch is the real
//! [`Swordbox`]. Time stands still while frames are delivered; it advances to the next timer when nothing is
//! in flight.
//!
//! A frame from the switch to a client is delivered immediately. A delay there would have the same effect as
//! a delay in front of the switch: a client's only output is what it sends to the switch, and its operations
//! complete no earlier.

use super::history::History;
use super::hosts::{Client, MemoryServer, STRIDE, VA, WORDS, address};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use switch::forward::Config as ForwardConfig;
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Function as _, Nanos, PortId, Verdict};
use swordbox::{Command, Config, Event, Layers, Server, Swordbox, WordTable};
use workloads::words::linear::Rules;

/// The longest time for which a request is on its way from the switch to the server. A client pauses for
/// longer, so that the switch fetches values again, and [`Choice::Wait`] is shorter.
const SETTLE: Nanos = Nanos::from_millis(1);
/// Duration of [`Choice::Wait`]: longer than the switch and a client wait for an acknowledgement
const WAIT_TIME: Nanos = Nanos::from_micros(300);
/// A shared QP without an acknowledgement for this long is given up.
const DEAD_AFTER: Nanos = Nanos::from_millis(1);
/// Most steps of a run, choices and timers together
const MAX_STEPS: usize = 20_000;

/// One direction of a link. It is a queue of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    /// From the server to the switch
    FromServer,
    /// From a client to the switch
    From(usize),
    /// From the switch to the server
    ToServer,
}

impl Link {
    const ALL: [Self; 4] = [Self::FromServer, Self::From(0), Self::From(1), Self::ToServer];

    const fn index(self) -> usize {
        match self {
            Self::FromServer => 0,
            Self::From(client) => 1 + client,
            Self::ToServer => 3,
        }
    }
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Choice {
    /// The first frame of a link is delivered.
    Deliver(Link),
    /// Nothing is in flight: the next timer expires.
    Timer,
    /// The frames in flight stay there while time passes.
    Wait,
    /// The server restarts with empty memory.
    Restart,
    /// A client detects the restart, and reconnects.
    Reconnect(usize),
    /// The first frame of a link is lost.
    Lose(Link),
    /// All frames of a link are lost.
    LoseAll(Link),
    /// The first frame of a link is delivered to the switch, and the frames that the switch sends to clients
    /// in response are lost.
    LoseResponses(Link),
    /// The first frame of a link is delivered, and also stays in flight.
    Duplicate(Link),
    /// The second frame of a link is delivered before the first.
    Overtake(Link),
}

/// What a choice changes: the server, or the switch and the clients. One of the two takes frames from the
/// front of the links between them, and the other adds frames at their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Server,
    SwitchAndClients,
    Both,
}

impl Choice {
    fn actor(self) -> Actor {
        match self {
            Self::Deliver(link)
            | Self::Lose(link)
            | Self::LoseAll(link)
            | Self::LoseResponses(link)
            | Self::Duplicate(link)
            | Self::Overtake(link) => match link {
                Link::ToServer => Actor::Server,
                Link::FromServer | Link::From(_) => Actor::SwitchAndClients,
            },
            Self::Restart => Actor::Server,
            Self::Reconnect(_) => Actor::SwitchAndClients,
            Self::Timer | Self::Wait => Actor::Both,
        }
    }

    /// Returns whether this choice counts against [`Options::faults`].
    fn is_fault(self) -> bool {
        !matches!(self, Self::Deliver(_) | Self::Timer | Self::Wait | Self::Restart | Self::Reconnect(_))
    }

    /// Returns whether both orders of two choices that are possible at the same moment lead to the same
    /// state.
    pub(super) fn is_independent_of(self, other: Self) -> bool {
        let actors = [self.actor(), other.actor()];
        let both_are_faults = self.is_fault() && other.is_fault();
        let enables = |a, b| matches!((a, b), (Self::Restart, Self::Reconnect(_)));
        // A choice that sends the second frame of a link enables overtaking, and a frame that is sent before
        // or after a loss of all frames is lost or not.
        let overtakes =
            |a: Self, b: Self| matches!(a, Self::Overtake(_) | Self::LoseAll(_)) && a.actor() != b.actor();
        !actors.contains(&Actor::Both)
            && actors[0] != actors[1]
            && !both_are_faults
            && !enables(self, other)
            && !enables(other, self)
            && !overtakes(self, other)
            && !overtakes(other, self)
    }
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Step before which the server restarts. If `None`, the restart is a choice.
    pub(super) restart_at: Option<usize>,
    /// Most frames that are lost (alone or with all frames behind them), duplicated or overtaken, or whose
    /// responses are lost
    pub(super) faults: u32,
    /// Most times that time passes while frames are in flight
    pub(super) waits: u32,
    /// Whether the server's queue pairs have the same numbers after the restart
    pub(super) same_numbers: bool,
    /// Whether clients write more than one packet holds, and wait longer for acknowledgements
    pub(super) long: bool,
    /// Changes the configuration of the switch.
    pub(super) tune: fn(Config) -> Config,
}

impl Default for Options {
    /// Returns options for one restart at any time, and no other faults.
    fn default() -> Self {
        Self {
            restart_at: None,
            faults: 0,
            waits: 0,
            same_numbers: false,
            long: false,
            tune: |config| config,
        }
    }
}

/// Counts over many runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Atomics that the switch sent on as WRITEs
    pub(super) decided: u64,
    /// Operations that completed
    pub(super) completed: u64,
    /// Operations whose outcome no client knows
    pub(super) unknown: u64,
    /// Connections that failed
    pub(super) broken: u64,
    /// Runs in which the server restarted
    pub(super) restarted: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.decided += other.decided;
        self.completed += other.completed;
        self.unknown += other.unknown;
        self.broken += other.broken;
        self.restarted += other.restarted;
    }
}

/// A frame in flight.
#[derive(Clone, Debug)]
struct Pending {
    /// Number of links that the frame, and the frames that caused it, have crossed. It determines the usual
    /// order of delivery, and does not depend on the order of independent choices.
    hops: u64,
    bytes: Vec<u8>,
}

/// A run whose steps the caller chooses.
pub(super) struct Play {
    options: Options,
    now: Nanos,
    switch: Swordbox,
    server: MemoryServer,
    clients: [Client; 2],
    links: [VecDeque<Pending>; 4],
    history: History,
    /// The most hops of any frame that the switch has received
    hops: u64,
    steps: usize,
    restarted: bool,
    /// Clients that have reconnected because of the restart
    reconnected: [bool; 2],
    faults: u32,
    waits: u32,
    /// Whether frames from the switch to clients are lost
    loses_responses: bool,
    /// Whether both clients have been made to read the word once more
    has_read_again: bool,
}

fn switch(options: &Options) -> Swordbox {
    let table = WordTable { rkey: None, range: VA..VA + WORDS as u64 * STRIDE, stride: 8, writable: true };
    let server = Server { tables: vec![table], rd_atomic: 4, client_owned_qps: 2, ..Server::new(address(0)) };
    let config = Config {
        servers: vec![server],
        layers: Layers::CAS_TO_WRITE,
        connections: 32,
        in_flight: 64,
        lines: 16,
        held: 64,
        appends: 16,
        withheld: 16,
        settle: SETTLE,
        dead_after: DEAD_AFTER,
        ..Config::new(ForwardConfig::bridge(3, 16))
    };
    Swordbox::new((options.tune)(config))
}

impl Play {
    /// Returns a run in which both clients have sent a connection request to the server.
    pub(super) fn new(options: Options) -> Self {
        let mut play = Self {
            options,
            now: Nanos::ZERO,
            switch: switch(&options),
            server: MemoryServer::new(0, options.same_numbers),
            clients: [0, 1].map(|number| Client::new(number, options.long)),
            links: Default::default(),
            history: History::default(),
            hops: 0,
            steps: 0,
            restarted: false,
            reconnected: [false; 2],
            faults: 0,
            waits: 0,
            loses_responses: false,
            has_read_again: false,
        };
        for client in 0..2 {
            play.clients[client].connect(Nanos::ZERO);
            play.run_client(client, 0);
        }
        play
    }

    /// Returns how many steps were played.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    fn in_flight(&self) -> usize {
        self.links.iter().map(VecDeque::len).sum()
    }

    /// Returns the usual next choice.
    pub(super) fn usual(&self) -> Choice {
        if self.options.restart_at == Some(self.steps) && !self.restarted {
            return Choice::Restart;
        }
        let first = |link: &Link| self.links[link.index()].front().map(|frame| (frame.hops, *link));
        match Link::ALL.iter().filter_map(first).min() {
            Some((_, link)) => Choice::Deliver(link),
            None => Choice::Timer,
        }
    }

    /// Returns all choices that are possible next.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let len = |link: &Link| self.links[link.index()].len();
        let busy: Vec<Link> = Link::ALL.into_iter().filter(|link| len(link) > 0).collect();
        let mut choices: Vec<Choice> = busy.iter().copied().map(Choice::Deliver).collect();
        if busy.is_empty() {
            choices.push(Choice::Timer);
        } else if self.waits < self.options.waits {
            choices.push(Choice::Wait);
        }
        if !self.restarted && self.options.restart_at.is_none_or(|at| at == self.steps) {
            choices.push(Choice::Restart);
        }
        let current = self.server.memory.incarnation;
        let is_old = |client: &usize| {
            !self.reconnected[*client]
                && self.clients[*client].memory.is_some_and(|memory| memory.incarnation < current)
        };
        choices.extend((0..2).filter(is_old).map(Choice::Reconnect));
        if self.faults < self.options.faults {
            choices
                .extend(busy.iter().copied().flat_map(|link| [Choice::Lose(link), Choice::Duplicate(link)]));
            let several = || busy.iter().copied().filter(|link| len(link) > 1);
            choices.extend(several().flat_map(|link| [Choice::Overtake(link), Choice::LoseAll(link)]));
            let to_switch = busy.iter().copied().filter(|link| *link != Link::ToServer);
            choices.extend(to_switch.map(Choice::LoseResponses));
        }
        choices
    }

    /// Plays one step.
    pub(super) fn step(&mut self, choice: Choice) {
        self.play(choice);
        self.read_again();
    }

    fn play(&mut self, choice: Choice) {
        self.steps += 1;
        self.faults += u32::from(choice.is_fault());
        match choice {
            Choice::Deliver(link) => {
                let frame = self.links[link.index()].pop_front();
                self.deliver(link, frame);
            }
            Choice::Lose(link) => _ = self.links[link.index()].pop_front(),
            Choice::LoseAll(link) => self.links[link.index()].clear(),
            Choice::LoseResponses(link) => {
                let frame = self.links[link.index()].pop_front();
                self.loses_responses = true;
                self.deliver(link, frame);
                self.loses_responses = false;
            }
            Choice::Duplicate(link) => {
                let frame = self.links[link.index()].front().cloned();
                self.deliver(link, frame);
            }
            Choice::Overtake(link) => {
                let frame = self.links[link.index()].remove(1);
                self.deliver(link, frame);
            }
            Choice::Timer => self.pass(self.next_timer().unwrap_or(self.now)),
            Choice::Wait => {
                self.waits += 1;
                let until = self.now + WAIT_TIME;
                while let Some(at) = self.next_timer().filter(|at| *at <= until) {
                    self.pass(at);
                }
                self.now = until;
            }
            Choice::Restart => {
                self.restarted = true;
                let incarnation = self.server.memory.incarnation + 1;
                self.server = MemoryServer::new(incarnation, self.options.same_numbers);
            }
            Choice::Reconnect(client) => {
                self.reconnected[client] = true;
                self.clients[client].connect(self.now);
                let hops = self.hops;
                self.run_client(client, hops);
            }
        }
    }

    fn send(&mut self, link: Link, hops: u64, bytes: Vec<u8>) {
        self.links[link.index()].push_back(Pending { hops, bytes });
    }

    fn deliver(&mut self, link: Link, frame: Option<Pending>) {
        let Some(Pending { hops, bytes }) = frame else { return };
        if link == Link::ToServer {
            self.server.nic.on_frame(&bytes, self.now);
            self.run_server(hops + 1);
            return;
        }
        self.hops = self.hops.max(hops);
        let mut out = FrameCollector::with_room(usize::MAX);
        let mut frame = MemoryFrame::new(bytes);
        let verdict = self.switch.on_frame(&mut frame, PortId(link.index() as u16), self.now, &mut out);
        if let Verdict::Forward(port) = verdict {
            out.frames.push((frame, port));
        }
        self.leave_switch(out, hops + 1);
    }

    /// Sends the frames that leave the switch, and grants the requests to its control plane.
    fn leave_switch(&mut self, out: FrameCollector, hops: u64) {
        for (frame, port) in out.frames {
            match port.index().checked_sub(1) {
                None => self.send(Link::ToServer, hops, frame.into_bytes()),
                Some(_) if self.loses_responses => {}
                Some(client) => {
                    self.clients[client].nic.on_frame(&frame.into_bytes(), self.now);
                    self.run_client(client, hops);
                }
            }
        }
        while let Some(event) = self.switch.poll_event() {
            if let Event::TranslationRequested(connection) = event {
                self.switch.on_command(Command::PermitTranslation(connection), self.now);
            }
        }
    }

    fn run_server(&mut self, hops: u64) {
        self.server.run(self.now);
        let mut frame = Vec::new();
        while self.server.nic.poll_transmit(self.now, &mut frame) {
            self.send(Link::FromServer, hops, frame.clone());
        }
    }

    fn run_client(&mut self, number: usize, hops: u64) {
        let client = &mut self.clients[number];
        client.run(&mut self.history, self.now);
        let mut frames = Vec::new();
        let mut frame = Vec::new();
        while client.nic.poll_transmit(self.now, &mut frame) {
            frames.push(frame.clone());
        }
        for frame in frames {
            self.send(Link::From(number), hops + 1, frame);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let clients = self.clients.iter().flat_map(|client| [client.nic.next_timer(), client.resume_at]);
        let others = [self.switch.next_timer(), self.server.nic.next_timer()];
        clients.chain(others).flatten().min().map(|at| at.max(self.now))
    }

    /// Advances the time to `at`, and expires the timers that are due.
    fn pass(&mut self, at: Nanos) {
        self.now = at;
        let hops = self.links.iter().flatten().map(|frame| frame.hops).max().unwrap_or(0).max(self.hops) + 1;
        self.hops = hops;
        if self.switch.next_timer().is_some_and(|due| due <= at) {
            let mut out = FrameCollector::with_room(usize::MAX);
            self.switch.on_timer(at, &mut out);
            self.leave_switch(out, hops);
        }
        if self.server.nic.next_timer().is_some_and(|due| due <= at) {
            self.server.nic.on_timer(at);
            self.run_server(hops);
        }
        for number in 0..2 {
            let client = &mut self.clients[number];
            let due = [client.nic.next_timer(), client.resume_at];
            if due.into_iter().flatten().any(|due| due <= at) {
                client.nic.on_timer(at);
                self.run_client(number, hops);
            }
        }
    }

    /// Returns whether nothing is left to do.
    pub(super) fn is_over(&self) -> bool {
        self.has_read_again && self.in_flight() == 0 && self.clients.iter().all(Client::is_done)
    }

    /// Makes both clients read the word once more when all their operations are done. A client whose
    /// connection belongs to a previous incarnation detects that by this READ.
    fn read_again(&mut self) {
        if self.has_read_again || self.in_flight() > 0 || !self.clients.iter().all(Client::is_done) {
            return;
        }
        self.has_read_again = true;
        for number in 0..2 {
            self.clients[number].read_again();
            let hops = self.hops;
            self.run_client(number, hops);
        }
    }

    /// Plays the rest in the usual order, and checks everything. Returns counts, and a digest of the history.
    pub(super) fn finish(mut self) -> Result<(Totals, u64), String> {
        while !self.is_over() {
            self.step(self.usual());
            if self.steps > MAX_STEPS {
                return Err(format!(
                    "not done after {} steps: {:?}\n{:?}",
                    self.steps, self.clients, self.switch
                ));
            }
            if let Some(wrong) = self.clients.iter().find_map(|client| client.wrong.clone()) {
                return Err(wrong);
            }
        }
        let errors: Vec<_> = self.clients.iter().flat_map(|client| &client.errors).collect();
        if !self.restarted && !errors.is_empty() {
            return Err(format!("connections failed although the server did not restart: {errors:?}"));
        }
        let rules = Rules { reads_in_order: self.options.faults == 0 };
        self.history.check(self.server.memory.incarnation, &self.server.words(), rules)?;
        let mut hasher = DefaultHasher::new();
        (format!("{:?}", self.history.ops), self.server.words()).hash(&mut hasher);
        let totals = Totals {
            decided: self.switch.counters().decided.get(),
            completed: self.clients.iter().map(|client| client.completed).sum(),
            unknown: self.clients.iter().map(|client| client.unknown).sum(),
            broken: errors.len() as u64,
            restarted: u64::from(self.restarted),
        };
        Ok((totals, hasher.finish()))
    }
}
