use super::super::super::receiver::inbound::RunFlags;
use super::super::inbound::{Complete, Inbound, Packet};
use super::*;
use proptest::prelude::*;

const COST: usize = 100;
const GRANT: u32 = 6400;

fn outbound() -> Outbound {
    let mut config = super::super::tests::config(0, 3);
    (config.max_members, config.reliable_buffer, config.mtu) = (4, 4 * GRANT as usize, 256);
    Outbound::new(1, &config)
}

fn ack(next: u64, held: u128, window: u32) -> (Psn, ReliableAckBody) {
    let mut body = ReliableAckBody::default();
    (body.held, body.window) = (held.into(), window.into());
    body.set_next(psn_of(next));
    let highest = if held == 0 { psn_of(next).sub(1) } else { psn_of(next).add(128 - held.leading_zeros()) };
    (highest, body)
}

fn send(outbound: &mut Outbound, number: u32, now: u64) {
    assert_eq!(outbound.send((number, 0), 0, true, COST, Nanos(now)), number.into());
}

fn report(outbound: &mut Outbound, (highest, body): (Psn, ReliableAckBody)) -> Vec<(u32, bool)> {
    let mut arrived = Vec::new();
    outbound.on_ack(highest, &body, Nanos(50), &mut arrived).unwrap();
    arrived.iter().map(|arrived| (arrived.run.0, arrived.is_complete)).collect()
}

#[test]
fn run_is_complete_when_everything_before_it_is_acknowledged() {
    let mut outbound = outbound();
    (0..5).for_each(|number| send(&mut outbound, number, 10));
    assert_eq!(report(&mut outbound, ack(1, 0b101, GRANT)), [(0, true), (2, false), (4, false)]);
    assert!(!outbound.can_resend(), "two packets have overtaken the second one, which may be reordering");
    send(&mut outbound, 5, 20);
    assert_eq!(report(&mut outbound, ack(1, 0b1101, GRANT)), [(5, false)]);
    assert_eq!(outbound.resend(Nanos(30)), Some(((1, 0), 0, Psn::new(1))), "three have");
    assert_eq!(report(&mut outbound, ack(3, 0b11, GRANT)), [(1, true), (2, true)]);
    assert_eq!(report(&mut outbound, ack(6, 0, GRANT)), [(3, true), (4, true), (5, true)]);
    assert_eq!((outbound.outstanding, outbound.in_network, outbound.deadline()), (0, 0, None));
}

#[test]
fn acks_that_were_overtaken_or_report_what_was_not_sent_are_refused() {
    let mut outbound = outbound();
    (0..3).for_each(|number| send(&mut outbound, number, 10));
    report(&mut outbound, ack(2, 0, GRANT));
    for (next, held) in [(1, 0), (4, 0), (2, 0b10)] {
        let (highest, body) = ack(next, held, GRANT);
        let refused = outbound.on_ack(highest, &body, Nanos(60), &mut Vec::new());
        assert_eq!(refused, Err(Refusal::Answer), "{next}");
    }
    assert!(outbound.has_room(GRANT as usize - COST, Nanos(60)));
    assert!(!outbound.has_room(GRANT as usize - COST + 1, Nanos(60)), "one packet is outstanding");
}

#[test]
fn recalled_packets_are_not_repeated_and_recalls_are() {
    let mut outbound = outbound();
    (0..2).for_each(|number| send(&mut outbound, number, 10));
    outbound.recall((0, 0), (0, 0), Some(7));
    let sent = |outbound: &mut Outbound, now| outbound.next_recall(Nanos(now)).map(|recall| recall.run);
    assert_eq!((sent(&mut outbound, 20), sent(&mut outbound, 20)), (Some((0, 0)), None));
    let rto = outbound.deadline().unwrap().0;
    let due = outbound.on_timeout(Nanos(rto + 10));
    assert_eq!((due, outbound.lost), (Due { control: true, resend: true }, 1), "the other packet is lost");
    assert_eq!(sent(&mut outbound, rto + 10), Some((0, 0)));
    assert!(outbound.take_recall(Psn::new(0), Psn::new(1)).is_none());
    assert!(outbound.take_recall(Psn::new(0), Psn::new(0)).is_some());
    assert_eq!(sent(&mut outbound, 10 * rto), None);
    assert_eq!(report(&mut outbound, ack(2, 0, GRANT)), [(1, true)], "a recalled run is never acknowledged");
}

#[test]
fn timeouts_grow_until_a_round_trip_is_known() {
    // Longer than the first timeouts
    const ROUND_TRIP: u64 = 250_000;
    let mut outbound = outbound();
    let (mut now, mut repeated) = (0, 0);
    for number in 0..20 {
        send(&mut outbound, number, now);
        outbound.last = Nanos(now);
        let arrives = now + ROUND_TRIP;
        while let Some(at) = outbound.deadline().filter(|at| at.0 < arrives) {
            outbound.on_timeout(at);
            repeated += u64::from(outbound.resend(at).is_some());
        }
        let (highest, body) = ack(u64::from(number) + 1, 0, GRANT);
        outbound.on_ack(highest, &body, Nanos(arrives), &mut Vec::new()).unwrap();
        now = arrives;
    }
    assert!(repeated < 20, "{repeated}");
    assert_eq!((outbound.round_trip, outbound.timeouts), (ROUND_TRIP, 0));
}

#[test]
fn samples_of_lost_acks_do_not_make_timeouts_long_for_ever() {
    let mut outbound = outbound();
    let mut exchange = |sent: &[(u32, u64)], now: u64| {
        for &(number, at) in sent {
            send(&mut outbound, number, at);
        }
        let (highest, body) = ack(u64::from(sent[sent.len() - 1].0) + 1, 0, GRANT);
        outbound.on_ack(highest, &body, Nanos(now), &mut Vec::new()).unwrap();
        outbound.round_trip
    };
    assert_eq!(exchange(&[(0, 0), (1, 395_000)], 400_000), 5000, "the ACK of the first packet was lost");
    assert_eq!(exchange(&[(2, 400_000)], 800_000), 54_375, "that of a packet, and of its ACK's repetition");
    let after = [3, 4, 5, 6].map(|number| exchange(&[(number, 900_000)], 905_000));
    assert!(after[3] < 12_000, "{after:?}");
}

proptest! {
    /// Over a link that loses and reorders packets and ACKs, every run arrives and is reported once, and
    /// the window that was granted is not exceeded.
    #[test]
    fn every_run_arrives(
        seed in any::<u64>(),
        loss in prop::sample::select(vec![0u64, 100, 500]),
        runs in 1u32..60,
    ) {
        let mut rng = switch::Rng::new(seed);
        let (mut outbound, mut inbound, mut out) = (outbound(), Inbound::new(), Complete::default());
        let (mut on_link, mut now, mut sent, mut reported) = (Vec::new(), 0, 0, Vec::new());
        outbound.window.update(0, GRANT);
        while reported.len() < runs as usize {
            now += 1000;
            prop_assert!(now < 1_000_000_000, "{} of {runs} runs are reported", reported.len());
            while sent < runs && outbound.has_room(COST, Nanos(now)) {
                send(&mut outbound, sent, now);
                on_link.push(psn_of(sent.into()));
                sent += 1;
            }
            if outbound.deadline().is_some_and(|at| at.0 <= now) {
                outbound.on_timeout(Nanos(now));
            }
            while outbound.can_resend() {
                on_link.push(outbound.resend(Nanos(now)).unwrap().2);
            }
            while !on_link.is_empty() && rng.below(3) > 0 {
                let psn = on_link.swap_remove(rng.below(on_link.len() as u64) as usize);
                let flags = RunFlags { first: true, end: true, last: true };
                if rng.below(1000) >= loss && let Ok(index) = inbound.check(psn, GRANT as usize / 64) {
                    let payload = &[0; COST - 64];
                    inbound.accept(&Packet { time: now, flags, payload }, index, &mut out);
                }
            }
            let (_, highest, mut body) = inbound.ack_contents();
            body.window = GRANT.into();
            let mut arrived = Vec::new();
            if rng.below(1000) >= loss {
                outbound.on_ack(highest, &body, Nanos(now), &mut arrived).unwrap();
            }
            reported.extend(arrived.iter().filter(|arrived| arrived.is_complete).map(|arrived| arrived.run.0));
            prop_assert!(outbound.outstanding <= GRANT as usize);
        }
        prop_assert_eq!(reported, (0..runs).collect::<Vec<_>>());
        prop_assert_eq!((out.runs.len(), outbound.outstanding, outbound.lost), (runs as usize, 0, 0));
    }
}
