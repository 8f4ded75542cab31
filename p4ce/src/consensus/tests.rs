//! Servers whose NICs are joined by wires without delay: time passes between frames only where a test says so.

use super::follower::{Follower, Stage};
use super::hello::{Hello, Purpose};
use super::log::HEAD;
use super::server::{Use, log_scratch, log_scratch_va};
use super::watch::{SCRATCH_VA, control_len};
use super::{
    BootstrapError, Config, Decided, Layout, ProposeError, Server, SnapshotError, Standing, Term, Waiting,
};
use crate::secret::Secret;
use core::net::IpAddr;
use rnic::{Data, Interface, Operation, Remote, Rnic, SendRequest};
use rocev2::ethernet::MacAddr;
use switch::Nanos;

const HEARTBEAT: Nanos = Nanos::from_micros(100);

struct Net {
    now: Nanos,
    nics: Vec<Rnic>,
    servers: Vec<Server>,
    config: Config,
    /// Servers that no frame reaches or leaves
    away: Vec<u8>,
    /// What each server's application was told in this incarnation
    told: Vec<Vec<Decided>>,
    restarts: u64,
}

fn ip(server: u8) -> IpAddr {
    [10, 0, 0, server + 1].into()
}

impl Net {
    /// Servers that have not begun.
    fn new(servers: u8, tune: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            id: 0,
            servers: (0..servers).map(ip).collect(),
            port: 7000,
            layout: Layout::new(8, 48, 1000),
            heartbeat: HEARTBEAT,
            window: 4,
            ack_timeout: 5,
            retry_count: 6,
            through: None,
            incarnation: 0,
            secret: None,
            #[cfg(feature = "canary")]
            bug: None,
        };
        tune(&mut config);
        let mut net = Self {
            now: Nanos::ZERO,
            nics: Vec::new(),
            servers: Vec::new(),
            config,
            away: Vec::new(),
            told: Vec::new(),
            restarts: 0,
        };
        for n in 0..servers {
            let (nic, server) = net.start(n);
            net.nics.push(nic);
            net.servers.push(server);
            net.told.push(Vec::new());
        }
        net
    }

    /// Three servers of which the first one leads, and all are members.
    fn begun(tune: impl FnOnce(&mut Config)) -> Self {
        let mut net = Self::new(3, tune);
        net.beats(3);
        assert_eq!(net.servers[0].bootstrap(), Ok(()));
        net.beats(60);
        assert!(net.servers[0].leads());
        assert!(net.servers.iter().all(|server| server.standing() == Standing::Member));
        net
    }

    /// Makes an incarnation of a server.
    fn start(&mut self, n: u8) -> (Rnic, Server) {
        self.restarts += 1;
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24);
        let mut nic = Rnic::new(rnic::Config { seed: self.restarts, ..rnic::Config::new(interface) });
        let mut server = Server::new(Config { id: n, incarnation: self.restarts, ..self.config.clone() });
        server.start(&mut nic, self.now).unwrap();
        (nic, server)
    }

    /// Restarts a server with empty memory.
    fn restart(&mut self, n: u8) {
        let at = usize::from(n);
        (self.nics[at], self.servers[at]) = self.start(n);
        self.told[at].clear();
    }

    fn run_server(&mut self, at: usize) {
        self.servers[at].run(&mut self.nics[at], self.now);
        while let Some(decided) = self.servers[at].poll_decided() {
            self.told[at].push(decided);
        }
    }

    /// Delivers one frame, if there is one.
    fn deliver(&mut self) -> bool {
        let mut frame = Vec::new();
        let now = self.now;
        let Some(from) = self.nics.iter_mut().position(|nic| nic.poll_transmit(now, &mut frame)) else {
            return false;
        };
        let is_away = |at: usize| self.away.contains(&(at as u8));
        let hears: Vec<_> =
            (0..self.nics.len()).filter(|to| *to != from && !is_away(from) && !is_away(*to)).collect();
        for to in hears {
            self.nics[to].on_frame(&frame, now);
            self.run_server(to);
        }
        self.run_server(from);
        true
    }

    /// Delivers all frames; no time passes.
    fn deliver_all(&mut self) {
        while self.deliver() {}
    }

    /// Delivers a frame, or lets time pass until the next timer. Returns false if that is behind `end`.
    fn step(&mut self, end: Nanos) -> bool {
        if self.deliver() {
            return true;
        }
        let nics = self.nics.iter().filter_map(Rnic::next_timer);
        let next = nics.chain(self.servers.iter().map(Server::next_timer)).min().unwrap_or(end);
        if next > end {
            return false;
        }
        self.now = self.now.max(next);
        for at in 0..self.nics.len() {
            self.nics[at].on_timer(self.now);
            self.run_server(at);
        }
        true
    }

    /// Stops as soon as something is so.
    fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = self.now + Nanos(HEARTBEAT.0 * 200);
        while !is_so(self) {
            assert!(self.step(end), "after 200 heartbeats: not {what}");
        }
    }

    /// Lets so many heartbeats pass.
    fn beats(&mut self, count: u64) {
        let end = self.now + Nanos(HEARTBEAT.0 * count);
        while self.step(end) {}
        self.now = end;
    }

    fn propose(&mut self, server: usize, value: &[u8]) -> Result<u64, ProposeError> {
        self.servers[server].propose(&mut self.nics[server], value)
    }

    /// Proposes values of so many bytes at the first server, one when the other is decided.
    fn decide(&mut self, count: u8, len: usize) {
        for n in 0..count {
            self.propose(0, &vec![n; len]).unwrap();
            self.deliver_all();
        }
    }

    fn give_snapshot(&mut self, state: &[u8]) -> Result<(), SnapshotError> {
        self.servers[0].give_snapshot(&mut self.nics[0], state, self.now)
    }
}

#[test]
fn all_servers_are_told_the_same() {
    let mut net = Net::begun(|_| {});
    net.decide(5, 48);
    net.beats(2);
    let expected: Vec<_> = (0..5).map(|n| Decided::Entry { index: n.into(), value: vec![n; 48] }).collect();
    assert_eq!(net.told, vec![expected; 3]);
}

#[test]
fn an_entry_says_what_was_decided_before_it() {
    // Of one packet, and of three
    for len in [48, 2500] {
        let mut net = Net::begun(|config| config.layout = Layout::new(32, len, 1000));
        net.decide(20, len);
        // No heartbeat has passed.
        assert_eq!([net.told[1].len(), net.told[2].len()], [19, 19], "{len} bytes");
    }
}

#[test]
fn no_more_values_are_under_way_than_the_window_allows() {
    let mut net = Net::begun(|config| config.window = 3);
    for round in 0..3 {
        for n in 0..3 {
            assert_eq!(net.propose(0, b"a value"), Ok(3 * round + n));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.beats(2);
    }
}

#[test]
fn a_value_is_as_long_as_an_entry_can_be() {
    let mut net = Net::begun(|_| {});
    assert_eq!(net.propose(0, &[1; 49]), Err(ProposeError::TooLong));
    assert_eq!(net.propose(0, &[1; 48]), Ok(0));
    assert_eq!(net.propose(1, &[1; 48]), Err(ProposeError::NotLeader));
}

#[test]
fn no_entry_is_written_over_that_a_follower_has_not_taken() {
    let mut net = Net::begun(|config| config.window = 100);
    for round in 0..3 {
        for n in 0..8 {
            assert_eq!(net.propose(0, &[n]), Ok(8 * round + u64::from(n)));
        }
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        // It is held, and decided, and a heartbeat has to say that it was taken.
        net.deliver_all();
        assert_eq!(net.servers[0].decided(), 8 * round + 8);
        assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
        net.beats(3);
    }
}

#[test]
fn a_leader_that_a_majority_does_not_follow_takes_no_values_and_gives_up() {
    let mut net = Net::begun(|_| {});
    net.away = vec![1, 2];
    net.beats(14);
    assert!(net.servers[0].leads(), "it waits for them");
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::Busy));
    net.beats(10);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
    net.away = vec![2];
    net.beats(250);
    assert_eq!(net.propose(0, b"a value"), Ok(0));
    // Long in office, it does not wait.
    net.away = vec![1, 2];
    net.beats(18);
    assert_eq!(net.propose(0, b"a value"), Err(ProposeError::NotLeader));
}

#[test]
fn a_follower_that_lacks_a_snapshot_is_no_part_of_a_majority() {
    let mut net = one_lacks_a_snapshot(|_| {});
    net.away = vec![1];
    net.run_until("alone", |net| !net.servers[0].leads());
}

#[test]
fn an_idle_leader_reads_and_asks_each_server_once_a_heartbeat() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(5);
    let before = net.nics[0].counters().sent;
    net.beats(10);
    // Two READs and two WRITEs, and answers to two READs
    assert_eq!(net.nics[0].counters().sent - before, 60);
}

#[test]
fn a_server_that_forgot_everything_is_admitted_when_another_member_confirms_the_leader() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(2);
    net.restart(2);
    net.run_until("up to date", |net| net.told[2].len() == 3);
    net.away = vec![1];
    net.beats(8);
    assert!(net.servers[0].leads());
    assert_eq!(net.servers[2].standing(), Standing::Blank);
    net.away.clear();
    net.beats(3);
    assert_eq!(net.servers[2].standing(), Standing::Member);
}

#[test]
fn logs_are_read_again_when_a_permission_is_lost_before_there_is_a_leader() {
    let mut net = Net::new(5, |_| {});
    net.beats(3);
    net.servers[1].bootstrap().unwrap();
    let reading = |net: &Net| -> Vec<u8> {
        let Some(leadership) = &net.servers[0].leadership else { return Vec::new() };
        let reads = |follower: &Follower| matches!(follower.stage, Stage::Reading | Stage::Read);
        (0..).zip(&leadership.followers).filter(|(_, one)| reads(one)).map(|(server, _)| server).collect()
    };
    net.run_until("reading", |net| reading(net).len() == 2);
    let [lost, other] = reading(&net)[..] else { unreachable!() };
    let (server, nic) = (&mut net.servers[0], &mut net.nics[0]);
    let qpn = server.follower(lost, |follower| follower.link.unwrap().qpn).unwrap();
    server.follower_lost(nic, lost, qpn, net.now);
    server.drop_qp(nic, qpn);
    // Until a third one has given permission, nothing is read; the answer to the READ of before comes, and does not count.
    net.away = (1..5).filter(|server| ![lost, other].contains(server)).collect();
    net.deliver_all();
    assert_eq!(net.servers[0].follower(other, |follower| follower.stage), Some(Stage::Granted));
    net.away.clear();
    net.beats(40);
    assert!(net.servers[0].leads());
}

#[test]
fn a_server_that_lacks_entries_gets_them_when_it_is_back() {
    let mut net = Net::begun(|_| {});
    net.away = vec![2];
    net.beats(20);
    net.decide(5, 40);
    assert_eq!((net.told[1].len(), net.told[2].len()), (4, 0));
    net.away.clear();
    net.beats(40);
    assert_eq!(net.told[2], net.told[0]);
}

/// One server of three has not taken what the log holds no more: it needs a snapshot.
fn one_lacks_a_snapshot(tune: impl FnOnce(&mut Config)) -> Net {
    let mut net = Net::begun(tune);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::NotWanted));
    net.away = vec![2];
    net.beats(20);
    for _ in 0..3 {
        net.decide(5, 40);
        net.beats(3);
    }
    assert!(!net.servers[0].wants_snapshot());
    net.away.clear();
    net.beats(40);
    assert!(net.servers[0].wants_snapshot() && !net.servers[1].wants_snapshot());
    net
}

#[test]
fn a_snapshot_stands_for_the_entries_that_a_log_does_not_hold() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let state: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
    assert_eq!(net.give_snapshot(&[0; 1001]), Err(SnapshotError::TooLong));
    assert_eq!(net.give_snapshot(&state), Ok(()));
    assert!(!net.servers[0].wants_snapshot());
    net.beats(3);
    assert_eq!(net.told[2], [Decided::Snapshot { next: 15, state }]);
    net.decide(5, 40);
    net.beats(3);
    assert_eq!(net.told[2][1..], net.told[0][15..]);
}

#[test]
fn a_leader_gives_the_snapshot_that_it_has_just_installed() {
    let mut net = one_lacks_a_snapshot(|_| {});
    let taken = net.servers[0].taken;
    net.servers[0].vouched = taken;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    assert_eq!(net.told[2], [Decided::Snapshot { next: taken, state: b"state".to_vec() }]);
}

#[test]
fn a_snapshot_of_less_than_the_log_still_holds_is_too_old() {
    let mut net = one_lacks_a_snapshot(|_| {});
    // The application has not taken any entry yet: the first ones have left the log.
    let taken = core::mem::replace(&mut net.servers[0].taken, 6);
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    assert!(net.servers[0].wants_snapshot(), "of what was decided since");
    // Entries below a snapshot that it has installed are from before that.
    let vouched = core::mem::replace(&mut net.servers[0].vouched, taken);
    net.servers[0].taken = taken - 1;
    assert_eq!(net.give_snapshot(b"state"), Err(SnapshotError::TooOld));
    net.servers[0].vouched = vouched;
    net.servers[0].taken = taken - 8;
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    assert_eq!(net.told[2].len(), 9);
    assert_eq!(net.told[2][1..], net.told[0][7..]);
}

#[test]
fn a_snapshot_makes_a_server_that_forgot_everything_a_member_too() {
    let mut net = one_lacks_a_snapshot(|_| {});
    assert_eq!(net.give_snapshot(b"state"), Ok(()));
    net.beats(3);
    net.decide(2, 40);
    net.restart(2);
    net.beats(60);
    // The entries behind the snapshot are still there.
    assert!(!net.servers[0].wants_snapshot());
    assert_eq!((net.servers[2].standing(), net.servers[2].waits_for()), (Standing::Member, None));
    assert_eq!(net.told[2].len(), 3);
    assert_eq!(net.told[2][0], Decided::Snapshot { next: 15, state: b"state".to_vec() });
    assert_eq!(net.told[2][1..], net.told[0][15..]);
}

#[test]
fn the_next_server_leads_when_the_first_is_gone_until_it_is_back() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(1);
    let term = net.servers[0].term();
    net.away = vec![0];
    net.beats(100);
    assert!(net.servers[1].leads() && net.servers[1].term() > term);
    assert_eq!([1, 2].map(|at: usize| net.servers[at].leader()), [Some(1); 2]);
    assert_eq!(net.propose(1, b"of the second"), Ok(3));
    net.beats(2);
    net.away.clear();
    net.beats(150);
    assert!(net.servers[0].leads() && !net.servers[1].leads());
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].leader()), [Some(0); 3]);
    assert_eq!(net.propose(0, b"of the first"), Ok(4));
    net.beats(2);
    let own = Decided::Entry { index: 3, value: b"of the second".to_vec() };
    assert!(net.told.iter().all(|told| told.len() == 5 && told[3] == own && *told == net.told[0]));
}

#[test]
fn a_new_leader_takes_over_a_log_that_is_full_of_what_is_not_known_to_be_decided() {
    let mut net = Net::begun(|config| config.window = 100);
    for n in 0..8 {
        net.propose(0, &[n]).unwrap();
    }
    net.deliver_all();
    assert_eq!((net.servers[0].decided(), net.told[1].len(), net.told[2].len()), (8, 0, 0));
    net.away = vec![0];
    net.beats(100);
    assert!(net.servers[1].leads());
    assert_eq!((&net.told[1], &net.told[2]), (&net.told[0], &net.told[0]));
}

/// Server 0 is gone, server 1 lacks more than a log holds, and server 2 leads.
fn one_is_behind() -> Net {
    let mut net = Net::new(5, |config| config.window = 100);
    net.beats(3);
    net.servers[0].bootstrap().unwrap();
    net.beats(40);
    net.away = vec![1];
    net.beats(15);
    for n in 0..8 {
        net.propose(0, &[n]).unwrap();
    }
    net.beats(3);
    // Server 2 alone gets the entry that takes the place of the first one.
    net.away = vec![1, 3, 4];
    net.propose(0, b"the ninth").unwrap();
    net.deliver_all();
    net.away = vec![0];
    net.beats(200);
    assert_eq!((net.servers[1].leads(), net.servers[2].leads()), (false, true));
    assert_eq!(net.servers[1].standing(), Standing::Behind);
    net
}

#[test]
fn a_server_whose_log_cannot_hold_what_it_lacks_does_not_lead_before_it_has_got_it() {
    let mut net = one_is_behind();
    assert!([2, 3, 4].iter().all(|at: &usize| net.told[*at].len() == 9));
    assert!(net.servers[2].wants_snapshot());
    net.servers[2].give_snapshot(&mut net.nics[2], b"state", net.now).unwrap();
    net.beats(3);
    assert_eq!(net.told[1], [Decided::Snapshot { next: 9, state: b"state".to_vec() }]);
    net.beats(100);
    assert_eq!(net.servers[1].standing(), Standing::Member);
    assert!(net.servers[1].leads());
}

#[test]
fn a_group_does_not_begin_while_a_member_lives_that_is_behind() {
    let mut net = one_is_behind();
    for server in [0, 2, 3, 4] {
        net.restart(server);
    }
    net.away.clear();
    net.beats(40);
    for at in [0, 2, 3, 4] {
        assert_eq!(net.servers[at].waits_for(), Some(Waiting::Admission(1)));
        assert_eq!(net.servers[at].bootstrap(), Err(BootstrapError::Begun(1)));
    }
}

#[test]
fn a_follower_that_lacks_a_whole_log_gets_it_at_once() {
    let mut net = Net::begun(|config| config.layout = Layout::new(256, 8, 1000));
    net.away = vec![2];
    net.beats(20);
    net.decide(240, 8);
    net.away.clear();
    net.run_until("up to date", |net| net.told[2].len() == 240);
    assert_eq!(net.told[2], net.told[0]);
}

#[test]
fn what_is_read_of_servers_lies_apart() {
    for servers in [1, 3, 5, 9] {
        let net = Net::new(servers, |_| {});
        let (config, count) = (&net.servers[0].config, usize::from(servers));
        let room = net.nics[0].bytes(net.servers[0].resources.as_ref().unwrap().scratch.0);
        let mut end = SCRATCH_VA + (count * control_len(count)) as u64;
        for server in 0..servers {
            assert_eq!(log_scratch_va(config, server), end);
            assert_eq!(log_scratch(config, room, server).len(), config.layout.log_len());
            end += config.layout.log_len() as u64;
        }
        assert_eq!(end, SCRATCH_VA + room.len() as u64);
    }
}

#[test]
fn a_leader_repeats_requests_as_often_as_it_is_told_to() {
    for (retry_count, expected) in [(1, Err(ProposeError::Busy)), (6, Ok(0))] {
        let mut net = Net::begun(|config| config.retry_count = retry_count);
        net.away = vec![1, 2];
        net.beats(8);
        assert_eq!(net.propose(0, b"a value"), expected, "{retry_count} repetitions");
    }
}

#[test]
fn a_connection_for_reading_writes_nothing() {
    let mut net = Net::begun(|_| {});
    let log = net.servers[0].follower(2, |follower| follower.link.unwrap().remote.unwrap()).unwrap();
    let watch = net.servers[1].watch.others[2].link.unwrap().qpn;
    let before = net.servers[2].slots(&net.nics[2]).to_vec();
    let write = Operation::Write(Remote { va: log.va() + HEAD as u64, rkey: log.rkey() });
    let request = SendRequest::new(0, write, Data::Inline(vec![1; 8]));
    net.nics[1].post_send(watch, request).unwrap();
    net.beats(1);
    assert_eq!(net.servers[2].slots(&net.nics[2]), before);
    assert_eq!(before.len(), 8 * (48 + 40));
}

/// Has a server ask another one for permission to write in a term. Returns whether it is given.
fn is_given(net: &mut Net, (from, to): (u8, u8), as_server: u8, term: Term) -> bool {
    let (at, before) = (usize::from(from), net.servers[usize::from(to)].writer);
    let (server, nic) = (&mut net.servers[at], &mut net.nics[at]);
    let hello = Hello { server: as_server, purpose: Purpose::Write(term), group: server.config.group() };
    let (qpn, _) = server.connect(nic, (ip(to), 7000), hello.to_bytes(), Use::Group, net.now).unwrap();
    net.deliver_all();
    net.servers[at].drop_qp(&mut net.nics[at], qpn);
    net.servers[usize::from(to)].writer != before
}

#[test]
fn permission_to_write_is_given_in_a_later_term_of_the_server_that_asks_alone() {
    let mut net = Net::begun(|_| {});
    let term = net.servers[0].term();
    let of = |server: u8| term.next_of(server, 5).unwrap();
    let refused = [
        ("an earlier one", 1, Term(term.0 - 0xff)),
        ("the leader's", 1, term),
        ("its own", 1, of(2)),
        ("of no server", 1, of(3)),
        ("without a round", 1, Term(1)),
        ("behind the last round", 1, Term(u64::MAX << 8 | 1)),
        ("in the name of the leader", 0, of(0)),
        ("in its own name", 2, of(2)),
        ("in the name of no server", 3, of(3)),
    ];
    for (what, as_server, asked) in refused {
        assert!(!is_given(&mut net, (1, 2), as_server, asked), "{what}");
        assert_eq!((net.servers[2].term(), net.servers[2].leader()), (term, Some(0)), "{what}");
    }
    // Those in another server's name
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].refused()), [0, 0, 3]);
    net.decide(3, 40);
    assert!(is_given(&mut net, (1, 2), 1, of(1)));
    assert_eq!((net.servers[2].term(), net.servers[2].leader()), (of(1), Some(1)));
    assert!(is_given(&mut net, (1, 2), 1, of(1)), "of a server whose connection was lost");
    assert!(!is_given(&mut net, (0, 2), 0, of(0)), "the term of server 1 is the later one");
    assert_eq!(net.propose(0, b"a value"), Ok(3), "one follower is left");
}

#[test]
fn an_operator_is_told_why_a_group_does_not_begin() {
    let mut net = Net::new(3, |_| {});
    assert_eq!(net.servers[0].waits_for(), Some(Waiting::Server(1)));
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(1)));
    net.beats(3);
    net.away = vec![2];
    net.beats(20);
    assert_eq!(net.servers[0].waits_for(), Some(Waiting::Server(2)));
    net.away.clear();
    net.beats(40);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [Some(Waiting::Bootstrap); 3]);
    net.beats(100);
    assert!(net.servers.iter().all(|server| server.leader().is_none()), "no server begins by itself");
    assert_eq!(net.servers[1].bootstrap(), Ok(()));
    assert_eq!(net.servers[1].beginning(), [1, 2, 3]);
    assert_eq!(net.servers[1].bootstrap(), Err(BootstrapError::Member));
    // Another server sees that it has begun, and is part of that.
    net.beats(2);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [None; 3]);
    assert_eq!([0, 2].map(|at: usize| net.servers[at].beginning()), [[1, 2, 3]; 2]);
}

#[test]
fn a_server_that_restarts_before_it_has_read_of_the_beginning_is_no_part_of_it() {
    let mut net = Net::new(3, |_| {});
    net.beats(3);
    net.servers[0].bootstrap().unwrap();
    net.restart(2);
    net.run_until("in need of a leader", |net| net.servers[2].waits_for() == Some(Waiting::Admission(0)));
    let standings = [0, 1, 2].map(|at: usize| net.servers[at].standing());
    assert_eq!(standings, [Standing::Member, Standing::Member, Standing::Blank]);
    assert_eq!(net.servers[2].bootstrap(), Err(BootstrapError::Begun(0)));
    // It is admitted by the leader.
    net.beats(60);
    assert_eq!((net.servers[2].standing(), net.servers[2].beginning()), (Standing::Member, &[0; 3][..]));
}

#[test]
fn a_group_does_not_begin_over_what_a_lost_leader_has_written() {
    let mut net = Net::begun(|_| {});
    net.decide(3, 40);
    net.beats(2);
    net.restart(2);
    net.run_until("up to date", |net| net.told[2].len() == 3);
    assert_eq!(net.servers[2].standing(), Standing::Blank);
    net.restart(0);
    net.restart(1);
    net.away.clear();
    net.beats(40);
    for at in 0..3 {
        assert_eq!(net.servers[at].waits_for(), Some(Waiting::Restart(2)), "server {at}");
        assert_eq!(net.servers[at].bootstrap(), Err(BootstrapError::Written(2)), "server {at}");
    }
    net.restart(2);
    net.beats(20);
    assert_eq!(net.servers[1].waits_for(), Some(Waiting::Bootstrap));
    assert_eq!(net.servers[1].bootstrap(), Ok(()));
}

#[test]
fn two_servers_were_empty_at_one_moment_if_one_was_read_before_and_behind_the_other() {
    let mut net = Net::new(3, |_| {});
    net.run_until("seen", |net| matches!(net.servers[0].waits_for(), Some(Waiting::Bootstrap)));
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(1)));
    net.away = vec![2];
    net.beats(1);
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(2)));
    net.away.clear();
    net.beats(3);
    assert_eq!(net.servers[0].bootstrap(), Ok(()));
}

#[test]
fn a_server_that_does_not_run_yet_refuses_nothing() {
    let mut net = Net::new(3, |_| {});
    let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, 2]), ip(2), 24);
    net.nics[2] = Rnic::new(rnic::Config::new(interface));
    net.servers[2] = Server::new(Config { id: 2, ..net.config.clone() });
    net.beats(30);
    assert_eq!(net.servers[0].waits_for(), Some(Waiting::Server(2)));
}

#[test]
fn a_server_of_another_group_is_refused() {
    let mut net = Net::new(3, |_| {});
    net.config.secret = Some(Secret::new("another secret"));
    net.restart(2);
    net.beats(30);
    // Two servers ask it every five heartbeats.
    assert!((2..=14).contains(&net.servers[2].refused()), "{}", net.servers[2].refused());
    assert_eq!(net.servers[0].waits_for(), Some(Waiting::Refused(2)));
    assert_eq!(net.servers[1].waits_for(), Some(Waiting::Refused(2)));
    assert_eq!(net.servers[2].waits_for(), Some(Waiting::Refused(0)));
    assert!(net.servers.iter().all(|server| server.refused() > 0));
    net.config.secret = None;
    net.restart(2);
    net.beats(30);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [Some(Waiting::Bootstrap); 3]);
}

#[test]
fn servers_that_come_and_go_leave_no_queue_pairs_behind() {
    let mut net = Net::begun(|_| {});
    let usual = [0, 1, 2].map(|at: usize| net.servers[at].queue_pairs());
    // Each watches two, and is watched by two; one writes to two.
    assert_eq!(usual, [6, 5, 5]);
    for away in [2, 1, 0, 2, 0] {
        net.away = vec![away];
        net.beats(80);
        net.away.clear();
        net.beats(150);
        assert!(net.servers[0].leads());
        let now = [0, 1, 2].map(|at: usize| net.servers[at].queue_pairs());
        assert_eq!(now, usual, "server {away} was away");
    }
}
