//! READs, whose responses take a number of PSNs that depends on the unknown path MTU.

use super::net::*;
use rocev2::aeth::{Credit, Syndrome};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::Nanos;

/// Returns a response on a client's own connection.
fn response(end: &Client, opcode: Opcode, psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(end.qpn), Psn::new(psn));
    frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &vec![0; len])
}

/// Two connections between the same two hosts, with equal PSNs. One sends a READ with unknown PSN count,
/// behind more atomics than are recorded. Its responses are not attributed to the other connection.
#[test]
fn the_end_of_a_read_stays_unknown_behind_many_atomics() {
    let mut net = Net::new(|config| config.rd_atomic = 4);
    let a = Client { psn: 0, ..new_client(1) };
    let b = Client { qpn: a.qpn + 1, server_qpn: a.server_qpn + 1, port: a.port + 1, ..a };
    for psn in 0..4 {
        net.up(&a.cas(psn, 0x8000_0000, 0, 1));
        net.up(&b.cas(psn, 0x8000_0000, 0, 1));
    }
    let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: 1600.into() };
    net.up(&a.request(Opcode::RC_READ_REQUEST, 4, |repr| repr.extended.reth = reth, &[]));
    (4..12).for_each(|psn| drop(net.up(&b.write(psn, 0x8000_0000, &[0; 8]))));
    for psn in 5..10 {
        let bth = Bth::new(Opcode::RC_READ_RESPONSE_MIDDLE, Qpn::new(a.qpn), Psn::new(psn));
        net.down(&frame(SERVER, a.ip, 0xd001, bth, |_| {}, &[0; 256]));
    }
    assert_eq!(net.count("paired"), 0);
}

/// Of two connections with equal PSNs one has long READs outstanding. Their responses, far behind its newest
/// request, are not attributed to the other connection.
#[test]
fn responses_to_long_reads_may_be_far_behind() {
    let mut net = Net::new(|_| ());
    let a = Client { psn: 0, ..new_client(1) };
    let b = Client { qpn: a.qpn + 1, server_qpn: a.server_qpn + 1, port: a.port + 1, ..a };
    let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: (8 << 20).into() };
    for psn in [0, 2048, 4096, 6144] {
        net.up(&a.request(Opcode::RC_READ_REQUEST, psn, |repr| repr.extended.reth = reth, &[]));
    }
    (0..10).for_each(|psn| drop(net.up(&b.write(psn, 0x8000_0000, &[0; 8]))));
    for psn in 1..6 {
        let bth = Bth::new(Opcode::RC_READ_RESPONSE_MIDDLE, Qpn::new(a.qpn), Psn::new(psn));
        net.down(&frame(SERVER, a.ip, 0xd001, bth, |_| {}, &[0; 4096]));
    }
    assert_eq!(net.count("paired"), 0);
}

/// The responses of a READ with unknown PSN count are reordered before the switch, and again behind it. The
/// client gets all of them in order, and does not retransmit. The READ is complete at the switch, too.
#[test]
fn reordered_responses_complete_a_read() {
    for lengths in [&[1024, 576][..], &[4096, 1], &[256, 256, 256, 256]] {
        for stage in [0, 1] {
            let mut net = Net::new(|config| config.servers[0].client_owned_qps = 1);
            let (mut a, b) = (new_client(1), new_client(2));
            if stage == 0 {
                for _ in 0..6 {
                    net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
                    net.down(&a.ack(a.psn));
                    a.psn += 1;
                }
            } else {
                net.connect(&mut a);
            }
            let len = lengths.iter().sum::<usize>();
            let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: (len as u32).into() };
            net.up(&a.request(Opcode::RC_READ_REQUEST, a.psn, |repr| repr.extended.reth = reth, &[]));
            for (n, &len) in lengths.iter().enumerate().rev() {
                let opcode = match n {
                    0 => Opcode::RC_READ_RESPONSE_FIRST,
                    _ if n + 1 == lengths.len() => Opcode::RC_READ_RESPONSE_LAST,
                    _ => Opcode::RC_READ_RESPONSE_MIDDLE,
                };
                let sent = net.down(&response(&a, opcode, a.psn + n as u32, len));
                assert_eq!(sent.len(), 1, "stage {stage}: {n} of {lengths:?}");
            }
            a.psn += lengths.len() as u32;
            let (mut net, mut a, _) = with_learnt_word(net, a, b);
            let owner = a;
            assert_eq!(resolve_cas(&mut net, &mut a, &owner, 0, 5).len(), 1, "stage {stage}: {lengths:?}");
        }
    }
}

fn read(end: &Client, psn: u32, va: u64, len: u32) -> Vec<u8> {
    let reth = Reth { va: va.into(), rkey: KEY.into(), len: len.into() };
    end.request(Opcode::RC_READ_REQUEST, psn, |repr| repr.extended.reth = reth, &[])
}

/// Returns the response to a READ of one packet, or, without payload, to an ATOMIC WRITE.
fn only(end: &Client, psn: u32, len: usize) -> Vec<u8> {
    response(end, Opcode::RC_READ_RESPONSE_ONLY, psn, len)
}

/// The owner `a` of the shared QP has sent a READ, its client did not get the response, and `b` has used the
/// QP since.
fn read_and_passed() -> (Net, Client, Client, Vec<u8>) {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    let request = read(&a, a.psn, 0x8000_0000, 64);
    let sent = net.up(&request);
    assert_eq!(sent.len(), 1);
    let forwarded = net.down(&only(&a, psn(&sent[0].0), 64));
    assert_eq!((forwarded.len(), psn(&forwarded[0].0)), (1, a.psn));
    a.psn += 1;
    for n in 0..5 {
        assert_eq!(resolve_cas(&mut net, &mut b, &owner, n, n + 1).len(), 1);
    }
    (net, a, b, request)
}

/// A responder need not keep a READ after later atomics of other clients.
#[test]
fn a_retransmitted_read_is_a_new_request_to_the_server() {
    let (mut net, mut a, _, request) = read_and_passed();
    let owner = a;
    let sent = net.up(&request);
    assert_eq!(
        (sent.len(), opcode(&sent[0].0), dest(&sent[0].0)),
        (1, Opcode::RC_READ_REQUEST, a.server_qpn)
    );
    let again = psn(&sent[0].0);
    assert_eq!(again, a.psn + 5, "behind everything sent on the shared QP");
    // A second retransmission gets no new PSN; the switch retransmits the READ.
    assert_eq!(net.up(&request).len(), 0, "the READ is in flight");
    let resent = net.advance_time(Nanos::from_millis(1));
    assert!(!resent.is_empty() && resent.iter().all(|(frame, _)| psn(frame) == again), "{}", resent.len());
    let forwarded = net.down(&only(&a, again, 64));
    assert_eq!((forwarded.len(), psn(&forwarded[0].0), dest(&forwarded[0].0)), (1, a.psn - 1, a.qpn));
    assert_eq!(net.advance_time(Nanos::from_millis(1)).len(), 0, "the READ is complete");
    // The next operation on the shared QP takes the PSN behind it.
    let sent = net.up(&a.cas(a.psn, TABLE, 5, 6));
    assert_eq!((opcode(&sent[0].0), psn(&sent[0].0)), (Opcode::RC_WRITE_ONLY, again + 1));
    a.psn += 1;
    let forwarded = net.down(&owner.ack(again + 1));
    assert_eq!((forwarded.len(), psn(&forwarded[0].0)), (1, a.psn - 1));
    assert_eq!(net.count("reread"), 1);
}

#[test]
fn a_retransmitted_read_waits_for_an_empty_shared_qp_and_is_waited_for() {
    let (mut net, a, mut b, request) = read_and_passed();
    let sent = net.up(&b.cas(b.psn, TABLE, 5, 6));
    let in_flight = psn(&sent[0].0);
    b.psn += 1;
    assert_eq!(net.up(&request).len(), 0, "an operation of another client is in flight");
    assert_eq!(net.up(&b.cas(b.psn, TABLE, 6, 7)).len(), 0, "the shared QP is reserved for its owner");
    let sent = net.down(&a.ack(in_flight));
    let read = sent.iter().find(|(frame, _)| opcode(frame) == Opcode::RC_READ_REQUEST).unwrap();
    assert_eq!(psn(&read.0), in_flight + 1);
    let sent = net.down(&only(&a, in_flight + 1, 64));
    assert!(sent.iter().any(|(frame, _)| dest(frame) == a.qpn && psn(frame) == a.psn - 1));
    let cas =
        sent.iter().find(|(frame, _)| dest(frame) == a.server_qpn).expect("the other client's operation");
    assert_eq!(psn(&cas.0), in_flight + 2);
}

/// A client that gets a NAK for a READ again and again runs out of retries.
#[test]
fn a_read_of_unknown_count_is_held_and_nothing_is_held_behind_it() {
    let (mut net, a, b) = two_clients(|_| {});
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 1));
    let in_flight = psn(&sent[0].0);
    assert_eq!(
        net.up(&read(&a, a.psn, 0x8000_0000, 2048)).len(),
        0,
        "an operation of another client is in flight"
    );
    let behind = |number: u32| a.write(a.psn + number, 0x8000_0000, &[0; 8]);
    assert_eq!((net.up(&behind(1)).len(), net.up(&behind(2)).len()), (0, 0), "the next PSN is unknown");
    let sent = net.down(&a.ack(in_flight));
    let own = sent.iter().find(|(frame, _)| dest(frame) == a.server_qpn).expect("the READ is forwarded");
    assert_eq!((opcode(&own.0), psn(&own.0)), (Opcode::RC_READ_REQUEST, in_flight + 1));
    assert_eq!((net.count("naks"), net.count("overflowed")), (0, 0));
    for (number, code) in
        [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_LAST].into_iter().enumerate()
    {
        net.down(&response(&a, code, in_flight + 1 + number as u32, 1024));
    }
    assert_eq!(net.count("naks"), 1, "the requests behind it are NAKed");
    assert_eq!(net.up(&behind(2)).len(), 1);
}

/// READs of several packets are retransmitted from the first missing packet on.
#[test]
fn retransmitted_reads_are_executed_one_at_a_time() {
    let (mut net, mut a, _) = two_clients(|_| {});
    let first = a.psn;
    let reads = [(first, 2048), (first + 2, 64)];
    for (at, len) in reads {
        assert_eq!(net.up(&read(&a, at, 0x8000_0000, len)).len(), 1);
        let responses = match len {
            64 => vec![(Opcode::RC_READ_RESPONSE_ONLY, 64)],
            _ => vec![(Opcode::RC_READ_RESPONSE_FIRST, 1024), (Opcode::RC_READ_RESPONSE_LAST, 1024)],
        };
        for (n, (opcode, len)) in (0..).zip(responses) {
            assert_eq!(net.down(&response(&a, opcode, at + n, len)).len(), 1);
        }
    }
    a.psn += 3;
    // The second packet of the first READ, and then the second READ
    let sent = net.up(&read(&a, first + 1, 0x8000_0400, 1024));
    assert_eq!(sent.len(), 1);
    let again = psn(&sent[0].0);
    assert_eq!(again, a.psn);
    assert_eq!(net.up(&read(&a, first + 2, 0x8000_0000, 64)).len(), 0);
    let sent = net.down(&only(&a, again, 1024));
    let reply = sent.iter().find(|(frame, _)| dest(frame) == a.qpn).unwrap();
    assert_eq!(psn(&reply.0), first + 1);
    let second =
        sent.iter().find(|(frame, _)| dest(frame) == a.server_qpn).expect("the next READ is forwarded");
    assert_eq!(psn(&second.0), again + 1);
    let sent = net.down(&only(&a, again + 1, 64));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, first + 2));
}

/// A READ that is retransmitted from its middle has no PSNs at the server for its first part; those PSNs
/// belong to other READs.
#[test]
fn a_read_retransmitted_from_its_middle_takes_no_responses_of_the_next() {
    let (mut net, mut a, _) = two_clients(|_| {});
    let (first, second) = (a.psn, a.psn + 3);
    assert_eq!(net.up(&read(&a, first, 0x8000_0000, 3072)).len(), 1);
    let [begin, middle, end] =
        [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST];
    for (n, opcode) in (0..).zip([begin, middle, end]) {
        assert_eq!(net.down(&response(&a, opcode, first + n, 1024)).len(), 1);
    }
    assert_eq!(net.up(&read(&a, second, 0x8000_1000, 64)).len(), 1);
    assert_eq!(net.down(&only(&a, second, 64)).len(), 1);
    a.psn += 4;
    let sent = net.up(&read(&a, first + 1, 0x8000_0400, 2048));
    let again = psn(&sent[0].0);
    assert_eq!(again, a.psn);
    // The server responds to the second READ once more: a duplicate on the link.
    let sent = net.down(&only(&a, second, 64));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, second), "the response is not the first READ's");
    for (n, opcode) in (0..).zip([begin, end]) {
        let sent = net.down(&response(&a, opcode, again + n, 1024));
        assert_eq!((sent.len(), psn(&sent[0].0)), (1, first + 1 + n));
    }
    // In the middle of a message, a retransmitted READ keeps its PSN; the first part of the first READ has
    // none.
    let message = first_of_two(&a);
    assert_eq!(opcode(&net.up(&message)[0].0), Opcode::RC_ACKNOWLEDGE, "the client gets a NAK");
    assert_eq!(dest(&net.up(&message)[0].0), a.server_qpn);
    assert_eq!(net.up(&read(&a, first, 0x8000_0000, 3072)).len(), 0);
    let sent = net.up(&read(&a, first + 1, 0x8000_0400, 2048));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, again));
    let sent = net.up(&read(&a, second, 0x8000_1000, 64));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, second));
}

/// The server reads again, and keeps that READ instead of an older one, whose response the client may not
/// have.
#[test]
fn a_message_behind_a_retransmitted_read_is_naked_first() {
    let (mut net, mut a, _) = two_clients(|_| {});
    let (first, second) = (a.psn, a.psn + 1);
    for psn in [first, second] {
        assert_eq!(net.up(&read(&a, psn, 0x8000_0000, 64)).len(), 1);
        assert_eq!(net.down(&only(&a, psn, 64)).len(), 1);
    }
    a.psn += 2;
    let again = psn(&net.up(&read(&a, first, 0x8000_0000, 64))[0].0);
    assert_eq!(net.down(&only(&a, again, 64)).len(), 1);
    let message = first_of_two(&a);
    let sent = net.up(&message);
    assert_eq!((sent.len(), dest(&sent[0].0), psn(&sent[0].0)), (1, a.qpn, a.psn), "a NAK for the message");
    // The client has no response to the second READ. No message has begun, so the READ is forwarded as a new
    // request.
    let sent = net.up(&read(&a, second, 0x8000_0000, 64));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, again + 1));
}

/// Returns the first of two packets of a WRITE.
fn first_of_two(end: &Client) -> Vec<u8> {
    end.request(Opcode::RC_WRITE_FIRST, end.psn, |repr| repr.extended.reth = reth(2048), &[0; 1024])
}

/// Sends a READ of the owner `a` of the shared QP, and its response; then an unresolved CAS of the owner or
/// of another client. Returns the queue pair that the next frame goes to after the owner's First packet of a
/// message.
fn first_packet_goes_to(is_owners: bool) -> u32 {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    assert_eq!(net.up(&read(&a, a.psn, 0x8000_0000, 64)).len(), 1);
    assert_eq!(net.down(&only(&a, a.psn, 64)).len(), 1);
    a.psn += 1;
    // A resolved atomic is a WRITE to the server.
    resolve_cas(&mut net, &mut b, &owner, 0, 5);
    let client = if is_owners { &mut a } else { &mut b };
    let sent = net.up(&client.cas(client.psn, TABLE + 8, 1, 1));
    client.psn += 1;
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, owner.server_qpn));
    net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    let sent = net.up(&first_of_two(&a));
    assert_eq!(sent.len(), 1);
    dest(&sent[0].0)
}

/// The server keeps another client's atomic instead of the READ, whose response the owner may not have.
#[test]
fn a_message_behind_another_clients_atomic_is_naked_first() {
    assert_eq!(first_packet_goes_to(false), new_client(1).qpn);
}

/// A client has no more READs and atomics outstanding than the server keeps, and WRITEs are not kept.
#[test]
fn a_message_behind_the_owners_atomic_and_other_writes_begins_at_once() {
    assert_eq!(first_packet_goes_to(true), new_client(1).server_qpn);
}

fn reth(len: u32) -> Reth {
    Reth { va: 0x8000_2000.into(), rkey: KEY.into(), len: len.into() }
}

/// A second execution would undo later writes of other clients.
#[test]
fn a_retransmitted_atomic_write_is_answered_and_not_executed_again() {
    let (mut net, mut a, _) = two_clients(|_| {});
    let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: 8.into() };
    let request = a.request(Opcode::RC_ATOMIC_WRITE, a.psn, |repr| repr.extended.reth = reth, &[1; 8]);
    assert_eq!(net.up(&request).len(), 1);
    assert_eq!(net.down(&only(&a, a.psn, 0)).len(), 1);
    a.psn += 1;
    let sent = net.up(&request);
    assert_eq!(sent.len(), 1);
    let (reply, port) = &sent[0];
    assert_eq!((opcode(reply), dest(reply), *port), (Opcode::RC_READ_RESPONSE_ONLY, a.qpn, CLIENTS));
    assert_eq!(psn(reply), a.psn - 1);
}

/// Consecutive READs of one packet each, on a connection that was set up without the connection manager.
#[test]
fn a_response_of_one_packet_bounds_the_path_mtu_from_below() {
    let (mut net, mut a, _) = two_clients(|_| {});
    assert_eq!(net.up(&read(&a, a.psn, 0x9000_0000, 1024)).len(), 1);
    assert_eq!(net.down(&response(&a, Opcode::RC_READ_RESPONSE_ONLY, a.psn, 1024)).len(), 1);
    a.psn += 1;
    let passed: Vec<_> = (0..4).map(|n| net.up(&read(&a, a.psn + n, 0x9000_0000, 1024)).len()).collect();
    assert_eq!(passed, [1; 4]);
    for n in 0..4 {
        let back = net.down(&response(&a, Opcode::RC_READ_RESPONSE_ONLY, a.psn + n, 1024));
        assert_eq!((back.len(), psn(&back[0].0)), (1, a.psn + n));
    }
}

/// A host forges the First packet of a long message in a client's name before that client's first packet. If
/// its payload determined the path MTU, the client's READs would take too few PSNs, and a retransmitted READ
/// would be refused forever.
#[test]
fn a_forged_request_does_not_set_the_path_mtu() {
    let mut net = Net::new(|_| {});
    let (mut a, mut b) = (new_client(1), new_client(2));
    let reth = Reth { va: 0x9000_0000.into(), rkey: 0xbad.into(), len: u32::MAX.into() };
    net.up(&a.request(Opcode::RC_WRITE_FIRST, a.psn - 10_000, |repr| repr.extended.reth = reth, &[7; 1024]));
    net.connect(&mut a);
    net.connect(&mut b);
    assert_eq!(net.up(&read(&a, a.psn, 0x9000_0000, 769)).len(), 1);
    for (n, opcode, len) in
        [(0, Opcode::RC_READ_RESPONSE_FIRST, 512), (1, Opcode::RC_READ_RESPONSE_LAST, 257)]
    {
        let back = net.down(&response(&a, opcode, a.psn + n, len));
        assert_eq!((back.len(), psn(&back[0].0)), (1, a.psn + n));
    }
    assert_eq!(net.up(&a.write(a.psn + 2, 0x9000_0000, &[1; 8])).len(), 1, "the READ took two PSNs");
}

/// Any full packet of a response determines the path MTU, whichever arrives first.
#[test]
fn any_full_packet_of_a_response_sets_the_path_mtu() {
    for first in [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE] {
        let (mut net, mut a, _) = two_clients(|_| {});
        assert_eq!(net.up(&read(&a, a.psn, 0x9000_0000, 3072)).len(), 1);
        let at = u32::from(first == Opcode::RC_READ_RESPONSE_MIDDLE);
        net.down(&response(&a, first, a.psn + at, 1024));
        a.psn += 3;
        let passed: Vec<_> =
            (0..3).map(|n| net.up(&read(&a, a.psn + 2 * n, 0x9000_0000, 2048)).len()).collect();
        assert_eq!(passed, [1; 3], "{first:?}");
    }
}

/// The path MTU may also be configured.
#[test]
fn consecutive_reads_pass_with_a_configured_path_mtu() {
    let (mut net, a, _) = two_clients(|config| config.servers[0].path_mtu = 1024);
    let passed: Vec<_> = (0..4).map(|n| net.up(&read(&a, a.psn + 4 * n, 0x9000_0000, 4096)).len()).collect();
    assert_eq!(passed, [1; 4]);
}

/// After a path change, the server's responses arrive on another port, and the response to a retransmitted
/// READ is the first one.
#[test]
fn a_response_to_a_retransmitted_read_updates_the_servers_port() {
    let (mut net, a, b, request) = read_and_passed();
    let sent = net.up(&request);
    let again = psn(&sent[0].0);
    assert_eq!(net.up(&only(&a, again, 64)).len(), 1);
    let sent = net.up(&b.cas(b.psn, TABLE, 5, 6));
    assert_eq!((dest(&sent[0].0), sent[0].1), (a.server_qpn, CLIENTS));
}

/// The same path change; the response is that of a READ with unknown PSN count whose first packet was lost.
#[test]
fn the_last_response_to_a_read_of_unknown_count_updates_the_servers_port() {
    let (mut net, mut a, b) = two_clients(|_| {});
    let sent = net.up(&read(&a, a.psn, 0x8000_0000, 2048));
    let first = psn(&sent[0].0);
    assert_eq!(net.up(&response(&a, Opcode::RC_READ_RESPONSE_LAST, first + 1, 1024)).len(), 1);
    a.psn += 2;
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert_eq!((dest(&sent[0].0), sent[0].1), (a.server_qpn, CLIENTS));
}
