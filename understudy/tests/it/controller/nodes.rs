//! Models of a rack's nodes, which speak the control protocol over real connections: a representative with the
//! barrier registers of one switch, and its processes. A thread carries beacons between them.

use management::{Client, ClientConfig, ClientEvent, Peer, Secret};
use onepipe::control::{Envelope, Failed, Incarnation, LOOPBACK, LinkSetting, LinkValue, Message, Source};
use onepipe::{ProcessId, Timestamp};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time between two beacons
const INTERVAL: Duration = Duration::from_millis(2);
/// Intervals between repetitions of what is unanswered
const REPEAT: u64 = 20;
/// Intervals after which a link is silent
const SILENT_AFTER: u64 = 100;

#[allow(clippy::disallowed_methods, reason = "the clock of the nodes")]
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn stamp(time: u64) -> Option<Timestamp> {
    (time != 0).then(|| Timestamp::new(time))
}

/// Connections of a node, and what it has seen of controllers.
struct Link {
    client: Client,
    events: Receiver<ClientEvent>,
    term: u64,
    incarnation: Incarnation,
    version: u64,
}

impl Link {
    fn new(peer: Peer, to: &Network) -> Self {
        let (sender, events) = channel();
        let config = ClientConfig {
            controllers: to.controllers.clone(),
            secret: Some(to.secret.clone()),
            peer,
            topology: to.topology,
        };
        let client = Client::start(config, move |event| drop(sender.send(event))).unwrap();
        Self { client, events, term: 0, incarnation: Incarnation(0), version: 0 }
    }

    /// Returns the messages that the node takes.
    fn take(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            let ClientEvent::Message(bytes) = event else { continue };
            let envelope = Envelope::decode(&bytes).unwrap();
            let welcome = matches!(envelope.message, Message::Welcome { .. } | Message::WelcomeRep { .. });
            if envelope.term < self.term || !welcome && envelope.incarnation != self.incarnation {
                continue;
            }
            self.term = envelope.term;
            match &envelope.message {
                Message::Welcome { incarnation, .. } | Message::WelcomeRep { incarnation, .. } => {
                    self.incarnation = *incarnation;
                }
                Message::Configure { version, .. } | Message::Desired { version, .. } => {
                    if *version < self.version {
                        continue;
                    }
                    self.version = *version;
                }
                _ => {}
            }
            messages.push(envelope.message);
        }
        messages
    }

    fn send(&self, message: Message) {
        let envelope = Envelope { term: self.term, incarnation: self.incarnation, message };
        self.client.send(&envelope.encode().unwrap());
    }
}

#[derive(Default)]
struct Input {
    setting: Option<LinkSetting>,
    floor: u64,
    raw: u64,
    caught: bool,
    silent: bool,
    heard_at: u64,
}

struct Rep {
    link: Link,
    first_qp: u32,
    inputs: BTreeMap<u16, Input>,
    /// Barriers of the upper and of the lower node
    outputs: [u64; 2],
    report: u32,
    unreported: bool,
}

impl Rep {
    fn values(&self) -> Vec<LinkValue> {
        let value = |(&link, input): (&u16, &Input)| LinkValue {
            link,
            caught: input.caught,
            silent: input.silent,
            quiet: 0,
            raw: stamp(input.raw),
        };
        self.inputs.iter().map(value).collect()
    }

    fn on(&mut self, message: Message, tick: u64) {
        match message {
            Message::WelcomeRep { first_qp, .. } => self.first_qp = first_qp.get(),
            Message::Configure { version, floors, links } => {
                let now = clock();
                let time = |floor: Option<Timestamp>| {
                    floor.map_or(0, |floor| now.saturating_add_signed(floor.distance(Timestamp::new(now))))
                };
                for setting in links {
                    let half = usize::from(setting.link == LOOPBACK);
                    let input = self.inputs.entry(setting.link).or_default();
                    let counted = input.setting.as_ref().is_some_and(|setting| setting.counted);
                    if setting.counted && !counted {
                        input.floor = time(floors[half]).max(self.outputs[half]);
                        input.caught = input.raw >= input.floor;
                        (input.heard_at, input.silent) = (tick, false);
                    }
                    input.setting = Some(setting);
                }
                let outputs = self.outputs.map(stamp);
                self.link.send(Message::Configured { version, outputs, links: self.values() });
            }
            Message::ReportAck { number } if number == self.report => self.unreported = false,
            Message::Ping { number } => self.link.send(Message::Pong { number }),
            _ => {}
        }
    }

    fn accept(&mut self, number: u16, value: u64, qpn: Option<u32>, tick: u64) {
        let Some(input) = self.inputs.get_mut(&number) else { return };
        let Some(setting) = &input.setting else { return };
        let is_source = |source: &Source| Some(source.qpn.get()) == qpn;
        if qpn.is_some() && !setting.sources.iter().any(is_source) {
            return;
        }
        input.heard_at = tick;
        if setting.counted && !setting.frozen {
            input.raw = input.raw.max(value);
            if !input.caught && input.raw >= input.floor {
                input.caught = true;
                (self.report, self.unreported) = (self.report + 1, true);
            }
        }
    }

    fn rise(&mut self) {
        for half in 0..2 {
            let inputs = self.inputs.iter().filter(|(number, _)| usize::from(**number == LOOPBACK) == half);
            let counted: Vec<_> = inputs
                .map(|(_, input)| input)
                .filter(|input| input.setting.as_ref().is_some_and(|setting| setting.counted))
                .collect();
            if counted.iter().all(|input| input.caught)
                && let Some(least) = counted.iter().map(|input| input.raw).min()
            {
                self.outputs[half] = self.outputs[half].max(least);
            }
        }
    }

    fn watch(&mut self, tick: u64) {
        for (&number, input) in &mut self.inputs {
            let counted = input.setting.as_ref().is_some_and(|setting| setting.counted);
            let silent = counted && number != LOOPBACK && tick - input.heard_at > SILENT_AFTER;
            if silent != input.silent {
                input.silent = silent;
                (self.report, self.unreported) = (self.report + 1, true);
            }
        }
    }
}

#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
struct Process {
    link: Link,
    boot: u8,
    qpn: u32,
    admitted: bool,
    failed: bool,
    alive: bool,
    barrier: u64,
    held: bool,
    sources: Vec<Source>,
    /// Notices by case, and whether the callback has returned
    notices: BTreeMap<u64, (Vec<Failed>, bool)>,
}

impl Process {
    fn on(&mut self, message: Message, calls_back: bool) {
        let barrier = stamp(self.barrier);
        match message {
            Message::Welcome { qpn, .. } => self.qpn = qpn.get(),
            Message::Admitted { .. } => self.admitted = true,
            Message::MemberUp { peer } => {
                self.link.send(Message::MemberAck { id: peer.id, incarnation: peer.incarnation, barrier });
            }
            Message::Desired { version, held, sources } => {
                (self.held, self.sources) = (held, sources);
                self.link.send(Message::DesiredAck { version, barrier, silent: false, quiet: 0 });
            }
            Message::Notice { case, failed } => {
                self.notices.entry(case).or_insert((failed, false));
                self.link.send(Message::Noticed { case });
                if calls_back {
                    self.link.send(Message::Completed { case });
                }
            }
            Message::YouFailed { .. } => self.failed = true,
            Message::Progress {} => self.link.send(Message::ProgressReply { barrier, waits: Vec::new() }),
            Message::Ping { number } => self.link.send(Message::Pong { number }),
            _ => {}
        }
    }
}

struct State {
    rep: Rep,
    processes: BTreeMap<u32, Process>,
    /// Whether callbacks return
    calls_back: bool,
    tick: u64,
}

/// What nodes need to connect.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) controllers: Vec<SocketAddr>,
    pub(crate) secret: Secret,
    pub(crate) topology: u64,
}

/// A representative and its processes, until it is dropped.
pub(crate) struct Rack {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rack {
    pub(crate) fn start(network: &Network, processes: &[u32]) -> Self {
        let rep = Rep {
            link: Link::new(Peer::Switch(0, 0), network),
            first_qp: 0,
            inputs: BTreeMap::new(),
            outputs: [0; 2],
            report: 0,
            unreported: false,
        };
        let process = |&id: &u32| {
            let process = Process {
                link: Link::new(Peer::Process(id), network),
                boot: id as u8,
                qpn: 0,
                admitted: false,
                failed: false,
                alive: true,
                barrier: 0,
                held: false,
                sources: Vec::new(),
                notices: BTreeMap::new(),
            };
            (id, process)
        };
        let processes = processes.iter().map(process).collect();
        let state = Arc::new(Mutex::new(State { rep, processes, calls_back: true, tick: 0 }));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped, topology) = (state.clone(), stop.clone(), network.topology);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                shared.lock().unwrap().step(topology);
                std::thread::sleep(INTERVAL);
            }
        });
        Self { state, stop, thread: Some(thread) }
    }

    /// Kills a process: it sends nothing any more.
    pub(crate) fn kill(&self, id: u32) {
        self.state.lock().unwrap().processes.get_mut(&id).unwrap().alive = false;
    }

    /// Sets whether applications' callbacks return.
    pub(crate) fn set_calls_back(&self, calls_back: bool) {
        self.state.lock().unwrap().calls_back = calls_back;
    }

    /// Returns the failed processes and their times that a process was notified of, by case.
    pub(crate) fn notices(&self, id: u32) -> BTreeMap<u64, Vec<(u32, Timestamp)>> {
        let state = self.state.lock().unwrap();
        let notices = state.processes[&id].notices.iter();
        let list = |failed: &[Failed]| failed.iter().map(|failed| (failed.id.0, failed.time)).collect();
        notices.map(|(&case, (failed, _))| (case, list(failed))).collect()
    }

    /// Returns whether a process knows that it has failed.
    pub(crate) fn has_failed(&self, id: u32) -> bool {
        self.state.lock().unwrap().processes[&id].failed
    }

    /// Returns the barrier of a process.
    pub(crate) fn barrier(&self, id: u32) -> u64 {
        self.state.lock().unwrap().processes[&id].barrier
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl State {
    fn step(&mut self, topology: u64) {
        self.tick += 1;
        let tick = self.tick;
        for message in self.rep.link.take() {
            self.rep.on(message, tick);
        }
        for process in self.processes.values_mut().filter(|process| process.alive) {
            for message in process.link.take() {
                process.on(message, self.calls_back);
            }
        }
        self.carry();
        if tick.is_multiple_of(REPEAT) {
            self.repeat(topology);
        }
    }

    /// Carries beacons over all links.
    fn carry(&mut self) {
        let (now, tick) = (clock(), self.tick);
        for (number, process) in self.processes.values().enumerate() {
            if process.alive && !process.failed && process.qpn != 0 {
                self.rep.accept(number as u16, now, Some(process.qpn), tick);
            }
        }
        self.rep.rise();
        self.rep.accept(LOOPBACK, self.rep.outputs[0], None, tick);
        self.rep.rise();
        self.rep.watch(tick);
        let sent = self.rep.outputs[1];
        for (number, process) in self.processes.values_mut().enumerate() {
            let setting = self.rep.inputs.get(&(number as u16)).and_then(|input| input.setting.as_ref());
            let qpn = self.rep.first_qp + number as u32;
            let is_source = process.sources.iter().any(|source| source.qpn.get() == qpn);
            if setting.is_some_and(|setting| !setting.muted) && is_source && !process.held && !process.failed
            {
                process.barrier = process.barrier.max(sent);
            }
        }
    }

    /// Repeats what is unanswered.
    fn repeat(&mut self, topology: u64) {
        let rep = &mut self.rep;
        rep.link.send(Message::RegisterRep { switch: 0, seat: 0, boot: [9; 16], address: [9; 16], topology });
        if rep.unreported {
            rep.link.send(Message::Report { number: rep.report, links: rep.values() });
        }
        for (&id, process) in self.processes.iter().filter(|(_, process)| process.alive && !process.failed) {
            let boot = [process.boot; 16];
            process.link.send(Message::Register {
                id: ProcessId(id),
                boot,
                address: [1; 16],
                topology,
                clock: None,
            });
            if self.calls_back {
                process.notices.keys().for_each(|&case| process.link.send(Message::Completed { case }));
            }
        }
    }
}
