//! Authorization of connections, and bootstrap.

use super::{HEARTBEAT, Net, ip, one_is_behind};
use crate::hello::{Hello, Purpose};
use crate::log::HEAD;
use crate::resources::{
    CONTROL_VA, QpRole, SCRATCH_VA, control_len, log_scratch, log_scratch_va, queue_pair,
};
use crate::{BootstrapError, Config, Membership, Server, Term, WaitReason};
use p4ce::Secret;
use rnic::{Data, Interface, Operation, Remote, Rnic, SendRequest, Sge};
use rocev2::ethernet::MacAddr;

#[test]
fn bootstrap_fails_while_a_member_runs_that_is_behind() {
    let mut net = one_is_behind();
    for server in [0, 2, 3, 4] {
        net.restart(server);
    }
    net.partitioned.clear();
    net.run_heartbeats(40);
    for at in [0, 2, 3, 4] {
        assert_eq!(net.servers[at].waits_for(), Some(WaitReason::Admission(1)));
        assert_eq!(net.servers[at].bootstrap(), Err(BootstrapError::OtherMember(1)));
    }
}

#[test]
fn scratch_areas_of_servers_do_not_overlap() {
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
fn a_connection_for_heartbeats_cannot_write() {
    let mut net = Net::begun(|_| {});
    let log = net.servers[0].follower(2, |follower| follower.link.unwrap().remote.unwrap()).unwrap();
    let watch = net.servers[1].watch.peers[2].link.unwrap().qpn;
    let before = net.servers[2].slots(&net.nics[2]).to_vec();
    let write = Operation::Write(Remote { va: log.va() + HEAD as u64, rkey: log.rkey() });
    let request = SendRequest::new(0, write, Data::Inline(vec![1; 8]));
    net.nics[1].post_send(watch, request).unwrap();
    net.run_heartbeats(1);
    assert_eq!(net.servers[2].slots(&net.nics[2]), before);
    assert_eq!(before.len(), 8 * (48 + 40));
}

#[test]
fn the_requester_of_a_connection_allows_no_reads_through_it() {
    let mut net = Net::begun(|_| {});
    // Server 2 tries to read the leader's control words through the connection on which the leader writes its
    // log.
    let shown = net.servers[0].resources.as_ref().unwrap().control.1;
    let (scratch, mr) = net.servers[2].resources.as_ref().unwrap().scratch;
    let len = control_len(3);
    let read = Operation::Read(Remote { va: CONTROL_VA, rkey: shown.0 });
    let into = Data::Memory(Sge { mr, va: SCRATCH_VA + 2 * len as u64, len: len as u32 });
    let (qpn, _) = net.servers[2].writer.unwrap();
    net.nics[2].post_send(qpn, SendRequest::new(0, read, into)).unwrap();
    net.run_heartbeats(1);
    assert_eq!(net.nics[2].bytes(scratch)[2 * len..][..len], vec![0; len]);
}

/// Lets a server request permission to write from another one. Returns whether it is granted.
fn is_granted(net: &mut Net, (from, to): (u8, u8), as_server: u8, term: Term) -> bool {
    let (at, before) = (usize::from(from), net.servers[usize::from(to)].writer);
    let (server, nic) = (&mut net.servers[at], &mut net.nics[at]);
    let hello = Hello { server: as_server, purpose: Purpose::Write(term), group: server.config.group() };
    let (qpn, _) = server.connect(nic, (ip(to), 7000), hello.to_bytes(), QpRole::Group, net.now).unwrap();
    net.deliver_all();
    net.servers[at].drop_qp(&mut net.nics[at], qpn);
    net.servers[usize::from(to)].writer != before
}

#[test]
fn permission_is_granted_only_in_a_later_term_of_the_requester() {
    let mut net = Net::begun(|_| {});
    let term = net.servers[0].term();
    let of = |server: u8| term.next_of(server, 5).unwrap();
    let refused = [
        ("an earlier term", 1, Term(term.0 - 0xff)),
        ("the leader's term", 1, term),
        ("the responder's own term", 1, of(2)),
        ("a term of no server", 1, of(3)),
        ("a term without a round", 1, Term(1)),
        ("a term after the last round", 1, Term(u64::MAX << 8 | 1)),
        ("in the name of the leader", 0, of(0)),
        ("in the name of the responder", 2, of(2)),
        ("in the name of no server", 3, of(3)),
    ];
    for (what, as_server, requested) in refused {
        assert!(!is_granted(&mut net, (1, 2), as_server, requested), "{what}");
        assert_eq!((net.servers[2].term(), net.servers[2].leader()), (term, Some(0)), "{what}");
    }
    // The requests in the name of another server
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].refused()), [0, 0, 3]);
    net.propose_and_decide(3, 40);
    assert!(is_granted(&mut net, (1, 2), 1, of(1)));
    assert_eq!((net.servers[2].term(), net.servers[2].leader()), (of(1), Some(1)));
    assert!(is_granted(&mut net, (1, 2), 1, of(1)), "the requester's connection was lost");
    assert!(!is_granted(&mut net, (0, 2), 0, of(0)), "the term of server 1 is the later one");
    assert_eq!(net.propose(0, b"a value"), Ok(3), "one follower is left");
}

#[test]
fn waits_for_names_the_obstacle_to_bootstrap() {
    let mut net = Net::new(3, |_| {});
    assert_eq!(net.servers[0].waits_for(), Some(WaitReason::Server(1)));
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(1)));
    net.run_heartbeats(3);
    net.partitioned = vec![2];
    net.run_heartbeats(20);
    assert_eq!(net.servers[0].waits_for(), Some(WaitReason::Server(2)));
    net.partitioned.clear();
    net.run_heartbeats(40);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [Some(WaitReason::Bootstrap); 3]);
    net.run_heartbeats(100);
    assert!(net.servers.iter().all(|server| server.leader().is_none()), "no server bootstraps by itself");
    assert_eq!(net.servers[1].bootstrap(), Ok(()));
    assert_eq!(net.servers[1].bootstrap_incarnations(), [1, 2, 3]);
    assert_eq!(net.servers[1].bootstrap(), Err(BootstrapError::Member));
    // Another server observes the bootstrap and becomes a member.
    net.run_heartbeats(2);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [None; 3]);
    assert_eq!([0, 2].map(|at: usize| net.servers[at].bootstrap_incarnations()), [[1, 2, 3]; 2]);
}

#[test]
fn a_server_that_restarts_before_it_reads_of_the_bootstrap_has_to_be_admitted() {
    let mut net = Net::new(3, |_| {});
    net.run_heartbeats(3);
    net.servers[0].bootstrap().unwrap();
    net.restart(2);
    net.run_until("in need of a leader", |net| net.servers[2].waits_for() == Some(WaitReason::Admission(0)));
    let memberships = [0, 1, 2].map(|at: usize| net.servers[at].membership());
    assert_eq!(memberships, [Membership::Member, Membership::Member, Membership::Blank]);
    assert_eq!(net.servers[2].bootstrap(), Err(BootstrapError::OtherMember(0)));
    // The leader admits it.
    net.run_heartbeats(60);
    assert_eq!(
        (net.servers[2].membership(), net.servers[2].bootstrap_incarnations()),
        (Membership::Member, &[0; 3][..])
    );
}

#[test]
fn bootstrap_fails_while_a_server_holds_entries_of_a_lost_leader() {
    let mut net = Net::begun(|_| {});
    net.propose_and_decide(3, 40);
    net.run_heartbeats(2);
    net.restart(2);
    net.run_until("up to date", |net| net.delivered[2].len() == 3);
    assert_eq!(net.servers[2].membership(), Membership::Blank);
    net.restart(0);
    net.restart(1);
    net.partitioned.clear();
    net.run_heartbeats(40);
    for at in 0..3 {
        assert_eq!(net.servers[at].waits_for(), Some(WaitReason::Restart(2)), "server {at}");
        assert_eq!(net.servers[at].bootstrap(), Err(BootstrapError::MayHoldEntries(2)), "server {at}");
    }
    net.restart(2);
    net.run_heartbeats(20);
    assert_eq!(net.servers[1].waits_for(), Some(WaitReason::Bootstrap));
    assert_eq!(net.servers[1].bootstrap(), Ok(()));
}

#[test]
fn bootstrap_requires_blank_observations_that_overlap() {
    let mut net = Net::new(3, |_| {});
    net.run_until("seen", |net| matches!(net.servers[0].waits_for(), Some(WaitReason::Bootstrap)));
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(1)));
    net.partitioned = vec![2];
    net.run_heartbeats(1);
    assert_eq!(net.servers[0].bootstrap(), Err(BootstrapError::Unseen(2)));
    net.partitioned.clear();
    net.run_heartbeats(3);
    assert_eq!(net.servers[0].bootstrap(), Ok(()));
}

#[test]
fn a_server_that_has_not_started_does_not_count_as_refusing() {
    let mut net = Net::new(3, |_| {});
    let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, 2]), ip(2), 24);
    net.nics[2] = Rnic::new(rnic::Config::new(interface));
    net.servers[2] = Server::new(Config { id: 2, ..net.config.clone() });
    net.run_heartbeats(30);
    assert_eq!(net.servers[0].waits_for(), Some(WaitReason::Server(2)));
}

#[test]
fn a_server_of_another_group_is_refused() {
    let mut net = Net::new(3, |_| {});
    net.config.secret = Some(Secret::new("another secret"));
    net.restart(2);
    net.run_heartbeats(30);
    // Two servers send it a request every five heartbeats.
    assert_eq!(net.servers[2].refused(), 14);
    assert_eq!(net.servers[0].waits_for(), Some(WaitReason::Refused(2)));
    assert_eq!(net.servers[1].waits_for(), Some(WaitReason::Refused(2)));
    assert_eq!(net.servers[2].waits_for(), Some(WaitReason::Refused(0)));
    assert!(net.servers.iter().all(|server| server.refused() > 0));
    net.config.secret = None;
    net.restart(2);
    net.run_heartbeats(30);
    assert_eq!([0, 1, 2].map(|at: usize| net.servers[at].waits_for()), [Some(WaitReason::Bootstrap); 3]);
}

#[test]
fn lost_servers_leave_no_queue_pairs_behind() {
    let mut net = Net::begun(|_| {});
    let usual = [0, 1, 2].map(|at: usize| net.servers[at].queue_pairs());
    // Each server reads two and is read by two; the leader writes to two.
    assert_eq!(usual, [6, 5, 5]);
    for away in [2, 1, 0, 2, 0] {
        net.partitioned = vec![away];
        net.run_heartbeats(80);
        net.partitioned.clear();
        net.run_heartbeats(150);
        assert!(net.servers[0].is_leader());
        let now = [0, 1, 2].map(|at: usize| net.servers[at].queue_pairs());
        assert_eq!(now, usual, "server {away} was away");
    }
}

#[test]
fn bootstrap_succeeds_although_a_server_stopped_after_all_were_blank() {
    let mut net = Net::new(3, |_| {});
    net.run_heartbeats(3);
    net.partitioned = vec![2];
    net.run_heartbeats(30);
    assert_eq!(net.servers[0].bootstrap(), Ok(()));
    net.run_heartbeats(120);
    assert!(net.servers[0].is_leader());
    net.partitioned.clear();
    net.restart(2);
    net.run_heartbeats(60);
    assert_eq!(
        (net.servers[2].membership(), net.servers[2].bootstrap_incarnations()),
        (Membership::Member, &[0; 3][..])
    );
}

#[test]
fn a_candidate_without_a_majority_gives_up_after_more_than_sixty_heartbeats() {
    let mut net = Net::new(3, |_| {});
    net.run_heartbeats(3);
    net.servers[0].bootstrap().unwrap();
    net.partitioned = vec![1, 2];
    // It starts a candidacy at the twentieth heartbeat, gives up after the eightieth, and starts again twenty
    // later.
    net.run_heartbeats(17);
    let first = net.servers[0].term();
    assert!(first > Term::default());
    net.run_heartbeats(80);
    assert_eq!(net.servers[0].term(), first);
    net.run_heartbeats(1);
    assert!(net.servers[0].term() > first);
}

#[test]
fn a_rejection_in_the_same_term_does_not_end_the_leadership() {
    let mut net = Net::begun(|_| {});
    let init = queue_pair(net.servers[2].resources.as_ref().unwrap(), 1);
    while net.nics[2].create_qp(init).is_ok() {}
    // The leader requests a connection for heartbeats, and is rejected with its own term.
    let term = net.servers[0].term();
    let qpn = net.servers[0].watch.peers[2].link.unwrap().qpn;
    net.servers[0].watch.on_lost(2, |_| true);
    net.servers[0].drop_qp(&mut net.nics[0], qpn);
    net.run_heartbeats(8);
    assert!(net.servers[0].is_leader());
    assert_eq!(net.servers[0].term(), term);
}

#[test]
fn an_unanswered_request_is_repeated_after_more_than_five_heartbeats() {
    let mut net = Net::new(2, |config| config.servers.push(ip(2)));
    net.add_nic(2, 7000);
    net.run_heartbeats(20);
    let from_first = net.requests.iter().filter(|request| request.from == ip(0));
    let beats: Vec<_> = from_first.map(|request| request.at.0 / HEARTBEAT.0).collect();
    assert_eq!(beats, [0, 6, 12, 18]);
}
