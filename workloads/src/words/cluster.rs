//! Clients and memory servers around a switch that the caller supplies.

use super::connect::Endpoint;
use super::history::{Affected, Shared};
use super::linear::Rules;
use super::{ClientApp, Config, ServerApp, TABLE_VA, Verb};
use core::net::IpAddr;
use rnic::{Interface, Rnic};
use rocev2::Psn;
use rocev2::ethernet::MacAddr;
use sim::{Clock, EPOCH, Fault, Forger, ForgerConfig, Host, NicCounters, NodeId, World, draws_forgetful};
use std::collections::BTreeMap;
use switch::{Nanos, Rng};

/// Limit of set-ups of one connection; hosts have resources for this number
const MAX_SETUPS: u32 = 50;
/// Limit of consecutive connections on which no operation completes. A client doubles its pause after each,
/// up to a second. A lost ARP or neighbour solicitation is repeated half a second later, which spans ten or
/// eleven attempts; the margin is for several losses.
const MAX_UNUSED: u32 = 16;
/// Limit of breaks of a connection by random loss, where lost packets exhaust three or more retries
const MAX_BREAKS_BY_LOSS: u32 = 10;
/// Time that the run continues after the last operation, for late duplicates and timers
const DRAIN: Nanos = Nanos::from_millis(5);

/// Nodes that hosts are connected to: one switch, or one for each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// Node of the clients; if it is the servers' node, too, the clients' ports follow the servers'
    pub clients: NodeId,
    /// Node of the servers
    pub servers: NodeId,
}

impl From<NodeId> for Sides {
    fn from(node: NodeId) -> Self {
        Self { clients: node, servers: node }
    }
}

/// Information about the hosts for the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Number of ports: one for each host, servers first
    pub ports: u16,
    /// Addresses of the servers
    pub servers: Vec<IpAddr>,
    /// Addresses of the clients
    pub clients: Vec<IpAddr>,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// Completed operations, in the order of [`Verb::ALL`]
    pub operations: [u64; Verb::ALL.len()],
    /// `CmpSwap`s among them that stored a value
    pub swapped: u64,
    /// Critical sections that got their lock
    pub sections: u64,
    /// `CmpSwap`s of critical sections on locks
    pub tries: u64,
    /// Connections that broke
    pub broken: u64,
    /// Operations on single words, of all verbs
    pub recorded: u64,
    /// Operations among these with an unknown outcome
    pub unknown: u64,
    /// Frames that arrived at a node
    pub packets: u64,
    /// Longest latency of an operation, without those of a starved connection and the first ones of each
    /// connection
    pub longest_wait: Nanos,
}

impl Totals {
    /// Adds the totals of another run.
    pub fn add(&mut self, other: &Self) {
        self.operations.iter_mut().zip(other.operations).for_each(|(sum, n)| *sum += n);
        self.swapped += other.swapped;
        self.sections += other.sections;
        self.tries += other.tries;
        self.broken += other.broken;
        self.recorded += other.recorded;
        self.unknown += other.unknown;
        self.packets += other.packets;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

/// Action of the simulator that is due at a time of the world.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Sets up a connection
    Connect { client: usize, task: usize },
    /// Checks whether everything is over
    Check,
    /// Changes the UDP source ports of a host
    Rehash,
    /// Revokes the rights of a connection at a server
    Revoke,
    /// Calls the operator's function on the switch
    Operate(fn(&mut World, NodeId, u64), u64),
}

/// Clients and memory servers.
#[derive(Debug)]
pub struct Cluster {
    /// The network
    pub world: World,
    /// Clients, by number
    pub clients: Vec<NodeId>,
    /// Servers, by number
    pub servers: Vec<NodeId>,
    /// Nodes that the hosts are connected to
    pub sides: Sides,
    config: Config,
    wiring: Wiring,
    history: Shared,
    rng: Rng,
    next_conn_id: u32,
    actions: BTreeMap<(Nanos, u64), Action>,
    action_count: u64,
    first_psn: Psn,
    /// Time of the last fault
    faults_until: Nanos,
}

pub(super) fn address(config: &Config, host: u16) -> (IpAddr, u8) {
    let [high, low] = (host + 1).to_be_bytes();
    if config.v6 {
        ([0xfd00, 0, 0, 0, 0, 0, 0, host + 1].into(), 64)
    } else {
        ([10, 0, high, low].into(), 16)
    }
}

/// Returns the MAC address of a host: servers are numbered first, then clients.
pub(super) const fn mac(host: u16) -> MacAddr {
    let [high, low] = host.to_be_bytes();
    MacAddr([2, 0, 0, 1, high, low])
}

fn nic_of(config: &Config, host: u16, max_qps: usize) -> impl FnMut() -> Rnic + Send + 'static {
    let (address, prefix) = address(config, host);
    let interface = Interface::new(mac(host), address, prefix);
    let nic = rnic::Config {
        max_qps,
        max_regions: max_qps * 4 + 64,
        mtu: config.mtu,
        window: config.window,
        ack: config.ack,
        forgetful: draws_forgetful(config.seed, host.into(), config.forgetful),
        bug: config.bug,
        ..rnic::Config::new(interface)
    };
    let seed = config.seed ^ u64::from(host) << 16;
    let mut starts = 0;
    let keeps_keys = config.same_keys_after_restart && host < config.servers;
    move || {
        starts += u64::from(starts == 0 || !keeps_keys);
        Rnic::new(rnic::Config { seed: seed ^ starts << 40, ..nic.clone() })
    }
}

impl Cluster {
    /// Builds the hosts around a switch, which `switch` adds to the world. The hosts do nothing before
    /// [`run`](Self::run).
    pub fn new<S: Into<Sides>>(config: &Config, switch: impl FnOnce(&mut World, &Wiring) -> S) -> Self {
        let mut world = World::new(config.seed);
        let addresses = |hosts: core::ops::Range<u16>| hosts.map(|host| address(config, host).0).collect();
        let wiring = Wiring {
            ports: config.ports(),
            servers: addresses(0..config.servers),
            clients: addresses(config.servers..config.servers + config.clients),
        };
        let sides = switch(&mut world, &wiring).into();
        let history = Shared::new(config);
        let all = usize::from(config.clients) * config.connections as usize;
        // Ends of broken connections may stay, and those of connections that the switch gave up.
        let spare = if config.may_fail { MAX_SETUPS as usize } else { 1 };
        let room = all * spare + config.switch_connections * MAX_SETUPS as usize + 1;
        let servers: Vec<_> = (0..config.servers)
            .map(|n| {
                let app = ServerApp::new(config, n.into(), history.clone());
                let host = Host::new(nic_of(config, n, room), app);
                world.add(&format!("server {n}"), host, Clock::default())
            })
            .collect();
        let own = config.connections as usize * usize::from(config.servers);
        let clients: Vec<_> = (0..config.clients)
            .map(|n| {
                let app = ClientApp::new(config, n.into(), history.clone());
                let host = Host::new(nic_of(config, config.servers + n, own * spare + 1), app);
                world.add(&format!("client {n}"), host, Clock::default())
            })
            .collect();
        for server in &servers {
            world.connect(*server, sides.servers, config.server_link);
        }
        for client in &clients {
            world.connect(*client, sides.clients, config.client_link);
        }
        if config.forged_rounds > 0 {
            let interfaces =
                |hosts: core::ops::Range<u16>| hosts.map(|n| (address(config, n).0, mac(n))).collect();
            let hosts = config.servers + config.clients;
            let forger = Forger::new(ForgerConfig {
                seed: config.seed,
                own: (address(config, hosts).0, mac(hosts)),
                targets: interfaces(0..config.servers),
                switch: None,
                impersonated: interfaces(config.servers..hosts),
                words: (TABLE_VA, config.table_size() as u64 / 8),
                by_cm: config.by_cm,
                rounds: config.forged_rounds,
                from: Nanos::from_micros(1),
            });
            let forger = world.add("forger", forger, Clock::default());
            world.connect(forger, sides.clients, config.client_link);
        }
        let mut rng = Rng::stream(config.seed, 0x636c_7573);
        let first_psn = first_psn(&mut rng);
        Self {
            world,
            clients,
            servers,
            sides,
            config: config.clone(),
            wiring,
            history,
            rng,
            next_conn_id: 0,
            actions: BTreeMap::new(),
            action_count: 0,
            first_psn,
            faults_until: Nanos::ZERO,
        }
    }

    /// Returns the parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the seed of this run.
    pub fn seed(&self) -> u64 {
        self.config.seed
    }

    /// Schedules a fault at a time of the world; the run does not end before that.
    pub fn schedule(&mut self, at: Nanos, fault: Fault) {
        self.history.get().faults.extend(self.affected(&fault).map(|affected| (at + EPOCH, affected)));
        self.world.schedule(at, fault);
        self.faults_until = self.faults_until.max(at);
        self.enter(at + Nanos(1), Action::Check);
    }

    /// Partitions a client from a server for a while; both still reach all other hosts.
    pub fn partition(&mut self, client: u16, server: u16, at: Nanos, until: Nanos) {
        let (client, server) = (mac(self.config.servers + client), mac(server));
        // A shared connection of the switch may be dead while neither host can notify the switch. Until the
        // switch gives the connection up, the other clients fail to reconnect, and once more if the
        // connection is first used when the partition ends.
        if self.config.shares_fate {
            let dead_for = Nanos(self.config.forwarded_for.0 * 2) + until.since(at);
            let more = dead_for.0 / self.config.retry_interval().0;
            self.history.get().faults.extend((0..more).map(|_| (at + EPOCH, Affected::All)));
        }
        self.schedule(at, Fault::PartitionPair(client, server));
        self.schedule(until, Fault::HealPair(client, server));
    }

    /// Schedules a call of an operator's function, with the argument `what`, on the servers' switch.
    pub fn operate(&mut self, at: Nanos, operate: fn(&mut World, NodeId, u64), what: u64) {
        self.enter(at, Action::Operate(operate, what));
    }

    /// Returns what a fault affects: a host, or the switch and so all hosts. `None` if the fault only ends
    /// another one.
    fn affected(&self, fault: &Fault) -> Option<Affected> {
        let at = |nodes: &[NodeId]| {
            let client = self.clients.iter().position(|client| nodes.contains(client)).map(Affected::Client);
            let server =
                || self.servers.iter().position(|server| nodes.contains(server)).map(Affected::Server);
            let own = client.or_else(server).filter(|_| !self.config.shares_fate);
            own.unwrap_or(Affected::All)
        };
        match fault {
            Fault::Crash(node) | Fault::Pause(node) => Some(at(&[*node])),
            Fault::Cut(links) | Fault::Mute(_, links) => {
                links.first().map(|link| at(&self.world.ends(*link)))
            }
            Fault::Mtu(link, mtu) => (*mtu < self.world.mtu(*link)).then(|| at(&self.world.ends(*link))),
            Fault::PartitionPair(a, b) => {
                let of = |n: usize| mac(self.config.servers + n as u16);
                (0..self.clients.len()).find(|n| [*a, *b].contains(&of(*n))).map(|n| at(&[self.clients[n]]))
            }
            Fault::Swap(..) => Some(Affected::All),
            _ => None,
        }
    }

    /// Returns all hosts and switches.
    pub fn nodes(&self) -> Vec<NodeId> {
        let sides = [self.sides.clients, self.sides.servers];
        let switches = &sides[..if sides[0] == sides[1] { 1 } else { 2 }];
        [&self.clients[..], &self.servers[..], switches].concat()
    }

    /// Returns a client.
    pub fn client(&self, number: usize) -> &Host<ClientApp> {
        self.world.node(self.clients[number])
    }

    /// Returns a server.
    pub fn server(&self, number: usize) -> &Host<ServerApp> {
        self.world.node(self.servers[number])
    }

    /// Returns the counters of a server's NIC since its last start.
    pub fn server_counters(&self, number: usize) -> &NicCounters {
        self.server(number).nic.counters()
    }

    /// Returns the totals so far.
    pub fn totals(&self) -> Totals {
        let history = self.history.get();
        let (recorded, unknown) = history.recorded();
        let counts = history.counts;
        Totals {
            operations: counts.operations,
            swapped: counts.swapped,
            sections: counts.sections,
            tries: counts.tries,
            broken: counts.broken,
            recorded,
            unknown,
            packets: self.world.events().1,
            longest_wait: counts.longest_wait,
        }
    }

    /// Runs to the end, and checks everything.
    ///
    /// # Errors
    /// The first violation, or the list of the clients that are not done at `limit`.
    pub fn run(&mut self, limit: Nanos) -> Result<(), String> {
        for client in 0..self.clients.len() {
            for task in 0..self.client(client).app.task_count() {
                self.enter(self.config.begin_at, Action::Connect { client, task });
            }
        }
        let mut rng = Rng::stream(self.config.seed, 0x0070_6174_6873);
        for (due, count) in
            [(Action::Rehash, self.config.rehashes), (Action::Revoke, self.config.revocations)]
        {
            for _ in 0..count {
                self.enter(Nanos::from_micros(rng.between(20, 400)), due);
            }
        }
        self.run_until_done(limit)?;
        if self.config.by_cm {
            for node in self.clients.clone() {
                self.world
                    .with(node, |host: &mut Host<ClientApp>, now| host.app.disconnect(&mut host.nic, now));
            }
        }
        self.world.run_until(self.world.now() + DRAIN);
        self.check()
    }

    fn run_until_done(&mut self, limit: Nanos) -> Result<(), String> {
        // Starts the hosts.
        self.world.next_at();
        loop {
            let due = self.actions.first_key_value().map(|((at, _), _)| *at);
            let next = self.world.next_at();
            if let Some(at) = due
                && next.is_none_or(|next| next >= at)
            {
                self.history.get().now = at + EPOCH;
                self.world.run_until(at);
                match self.actions.pop_first() {
                    Some((_, Action::Connect { client, task })) => self.connect(client, task),
                    Some((_, Action::Rehash)) => self.rehash(),
                    Some((_, Action::Revoke)) => self.revoke(),
                    Some((_, Action::Operate(operate, what))) => {
                        operate(&mut self.world, self.sides.servers, what);
                    }
                    Some((_, Action::Check)) | None => {}
                }
                self.history.get().check_needed = true;
            } else {
                self.history.get().now = next.unwrap_or(limit) + EPOCH;
                if !self.world.step(limit) {
                    return Err(self.not_done());
                }
            }
            if core::mem::take(&mut self.history.get().check_needed) && self.reconnect_broken()? {
                return Ok(());
            }
        }
    }

    /// Reconnects broken connections. Returns whether everything is over.
    fn reconnect_broken(&mut self) -> Result<bool, String> {
        let broken = {
            let mut history = self.history.get();
            if let Some(wrong) = &history.wrong {
                return Err(wrong.clone());
            }
            core::mem::take(&mut history.broken)
        };
        for (client, task) in broken {
            self.notify_server(client, task);
            let [_, unused] = self.client(client).app.breaks(task);
            let after = Nanos(self.config.reconnect_after.0 << unused.min(12));
            self.enter(self.world.now() + after, Action::Connect { client, task });
        }
        let connects = self.actions.values().any(|due| matches!(due, Action::Connect { .. }));
        let over = !connects && self.world.now() > self.faults_until;
        Ok(over && (0..self.clients.len()).all(|client| self.client(client).app.is_done()))
    }

    fn not_done(&self) -> String {
        let not_done: Vec<_> =
            (0..self.clients.len()).filter(|client| !self.client(*client).app.is_done()).collect();
        format!("at {:?}, clients {not_done:?} are not done", self.world.now())
    }

    fn enter(&mut self, at: Nanos, due: Action) {
        self.action_count += 1;
        self.actions.insert((at, self.action_count), due);
    }

    /// Notifies a server that connections of a client are over. The server may have to detect the end of the
    /// last one by itself.
    fn notify_server(&mut self, client: usize, task: usize) {
        let host = self.client(client);
        let server = host.app.server_of(task);
        // A client that restarts reuses its queue pair numbers. Packets of the server's old queue pairs would
        // be mistaken for packets of the new ones.
        let stays = if self.config.linger && host.starts == 1 {
            host.app.end(task).map(|end| end.conn_id)
        } else {
            None
        };
        let over =
            host.app.ends().filter(|end| end.broken && end.server == server && Some(end.conn_id) != stays);
        let conn_ids: Vec<u32> = over.map(|end| end.conn_id).collect();
        for conn_id in conn_ids {
            self.history.get().now = self.world.now() + EPOCH;
            self.world.with(self.servers[server], |host: &mut Host<ServerApp>, _| {
                host.app.drop_connection(&mut host.nic, conn_id);
            });
        }
    }

    /// Returns a violation if a connection broke more often than the faults explain.
    fn breaks_too_often(&self, client: usize, task: usize) -> Option<String> {
        let app = &self.client(client).app;
        let server = app.server_of(task);
        let [interrupted, unused] = app.breaks(task);
        let faults = self.history.get().faults_affecting(client, server, self.world.now() + EPOCH) as u32;
        let by_loss = if self.config.costs_retries() { MAX_BREAKS_BY_LOSS } else { 0 };
        let most = faults + self.config.revocations + by_loss;
        let too_often = interrupted > most || unused > MAX_UNUSED || app.setups(task) >= MAX_SETUPS;
        too_often.then(|| {
            format!(
                "a connection of client {client} with server {server} broke {interrupted} times in use, \
                 and {unused} times since then without use: {faults} faults do not explain this"
            )
        })
    }

    /// Sets up a connection, unless an end is down.
    fn connect(&mut self, client: usize, task: usize) {
        let host = self.client(client);
        if !host.app.needs_connection(task) {
            return;
        }
        let (starts, server) = (host.starts, host.app.server_of(task));
        if let Some(reason) = self.breaks_too_often(client, task) {
            self.history.get().fail(|| reason);
            return;
        }
        if !self.server(server).app.is_up() {
            self.enter(self.world.now() + Nanos::from_millis(1), Action::Connect { client, task });
            return;
        }
        self.next_conn_id += 1;
        let conn_id = self.next_conn_id;
        let (client_node, server_node) = (self.clients[client], self.servers[server]);
        let addresses = [self.wiring.clients[client], self.wiring.servers[server]];
        if self.config.by_cm {
            self.world.with(client_node, |host: &mut Host<ClientApp>, now| {
                host.app.connect(&mut host.nic, task, conn_id, addresses[1], now);
            });
            return;
        }
        let psns = [(); 2].map(|()| {
            let psn = first_psn(&mut self.rng);
            // Late packets for a reused queue pair number must not have a valid PSN.
            let random = Psn::new(self.rng.bits() as u32);
            match (starts > 1 || self.server(server).starts > 1, self.config.equal_psns) {
                (true, _) => random,
                (false, true) => self.first_psn,
                (false, false) => psn,
            }
        });
        let qpn = self
            .world
            .with(client_node, |host: &mut Host<ClientApp>, _| host.app.open(&mut host.nic, task, conn_id));
        let own = Endpoint { address: addresses[0], qpn, psn: psns[0] };
        let accepted = self.world.with(server_node, |host: &mut Host<ServerApp>, _| {
            let (qpn, memory) = host.app.serve(&mut host.nic, conn_id)?;
            let other = Endpoint { address: addresses[1], qpn, psn: psns[1] };
            host.app.connected(&mut host.nic, other, own);
            Some((other, memory))
        });
        if let Some((other, memory)) = accepted {
            self.world.with(client_node, |host: &mut Host<ClientApp>, now| {
                host.app.connected(&mut host.nic, task, own, other, memory);
                sim::App::run(&mut host.app, &mut host.nic, now);
            });
        }
    }

    /// Changes the UDP source ports of a random host.
    fn rehash(&mut self) {
        let salt = self.rng.bits() as u16;
        let hosts = self.clients.len() + self.servers.len();
        let host = self.rng.below(hosts as u64) as usize;
        if let Some(client) = self.clients.get(host) {
            self.world.with(*client, |host: &mut Host<ClientApp>, _| host.nic.set_path_salt(salt));
            return;
        }
        let server = self.servers[host - self.clients.len()];
        self.world.with(server, |host: &mut Host<ServerApp>, _| host.nic.set_path_salt(salt));
    }

    /// Revokes the rights of a random connection at a random server.
    fn revoke(&mut self) {
        let server = self.servers[self.rng.below(self.servers.len() as u64) as usize];
        let nth = self.rng.bits();
        let conn_id =
            self.world.with(server, |host: &mut Host<ServerApp>, _| host.app.revoke(&mut host.nic, nth));
        if let Some(conn_id) = conn_id {
            let now = self.world.now() + EPOCH;
            let mut history = self.history.get();
            history.revoke(conn_id, now + self.config.revoked_within);
            history.faults.extend(self.config.shares_fate.then_some((now, Affected::All)));
        }
    }

    /// Checks everything that has to hold at the end.
    fn check(&self) -> Result<(), String> {
        let history = self.history.get();
        if let Some(wrong) = &history.wrong {
            return Err(wrong.clone());
        }
        let rules = Rules { reads_in_order: self.config.keeps_order() };
        history.lost().try_for_each(|memory| history.check(memory, None, rules))?;
        for number in 0..self.servers.len() {
            let host = self.server(number);
            history.check(history.memory_of(number), Some(host.app.table(&host.nic)), rules)?;
            let failed = host.app.failed(&host.nic);
            if !self.config.may_fail && !self.config.by_cm && failed > 0 {
                return Err(format!(
                    "server {number}: {failed} queue pairs are in the error state at the end"
                ));
            }
            for client in 0..self.clients.len() {
                for end in self.client(client).app.ends().filter(|end| end.server == number) {
                    if let Some((own, messages)) = host.app.of_connection(&host.nic, end.conn_id) {
                        end.check(own, messages)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Draws an initial PSN: in half of the cases just below 2^24, so that it wraps around soon.
fn first_psn(rng: &mut Rng) -> Psn {
    let near = 0u32.wrapping_sub(rng.between(1, 64) as u32);
    let any = rng.bits() as u32;
    Psn::new(if rng.below(2) == 0 { near } else { any })
}
