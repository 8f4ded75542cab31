//! Members that send anything.

use super::super::super::tests::{frame, peer};
use super::super::super::{Process, ProcessId};
use super::super::Member;
use super::network::{GRANT, qpn};
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use proptest::prelude::*;
use rocev2::Psn;
use switch::Nanos;

proptest! {
    /// Whatever members send, with right checksums and from right queue pairs, nothing panics, what a process
    /// holds stays within its buffer, and its commit value stays below what is not acknowledged.
    #[test]
    fn members_that_send_anything_are_refused_or_served(
        steps in prop::collection::vec((0u8..9, 0u32..40, any::<[u8; 32]>(), 0usize..40, 0u64..4000, any::<u8>()), 1..120),
    ) {
        let mut config = super::config(0, 3);
        (config.max_members, config.reliable_buffer) = (3, 3 * GRANT as usize);
        let (buffer, clock) = (config.reliable_buffer, config.clock);
        let mut process = Process::new(config).unwrap();
        let member = |id: u8| Member { id: ProcessId(id.into()), incarnation: 1, qpn: qpn(id, 1), grant: GRANT };
        process.join(1, &[member(1), member(2)], Nanos::ZERO).unwrap();
        process.admit(clock, Nanos::ZERO).unwrap();
        let (mut now, mut out, mut before) = (Nanos::from_micros(5), Vec::new(), None::<Timestamp>);
        for (what, psn, mut body, len, step, bits) in steps {
            now = now + Nanos(step);
            // Small numbers are more often those of packets that were sent.
            (body[0], body[1], body[4], body[5]) = (0, 0, 0, 0);
            (body[2], body[6], body[28], body[29], body[30]) = (psn as u8, (psn + 1) as u8, 0, 0, bits % 8);
            body[3] %= 3;
            let from = peer(false, 1 + bits % 2);
            let opcode = match what {
                0 | 1 => OnePipeOpcode::RELIABLE_DATA,
                2 => OnePipeOpcode::RECALL,
                3 | 4 => OnePipeOpcode::RELIABLE_ACK,
                5 => OnePipeOpcode::RECALL_ACK,
                6 => OnePipeOpcode::RELIABLE_PROBE,
                _ => {
                    let messages: [(_, &[u8]); 2] = [(ProcessId(1), &[7; 300]), (ProcessId(u32::from(bits % 3)), &body)];
                    _ = process.reliable_send(now, &messages[usize::from(bits % 2)..]);
                    continue;
                }
            };
            let mut header = OnePipe::new(opcode, clock.add(now.0 + u64::from(bits)), Psn::new(psn));
            header.set_barrier(None);
            header.set_first(bits & 4 != 0);
            header.set_timestamp_follows(bits & 8 != 0);
            header.set_end_of_message(bits & 16 != 0);
            let payload = &body[..len.min(32)];
            _ = process.on_frame(&frame(from, peer(false, 0), &header, payload), now);
            process.on_timer(now);
            while process.poll_transmit(now, &mut out) {
                let packet = rocev2::Packet::parse(&out).unwrap();
                let header = OnePipe::of(&packet).unwrap();
                if let Some(commit) = header.commit() {
                    prop_assert!(before.is_none_or(|before| !commit.precedes(before)), "it goes back");
                    prop_assert!(commit.precedes(header.timestamp()));
                    before = Some(commit);
                }
            }
            prop_assert!(process.held_reliable() <= buffer, "{}", process.held_reliable());
        }
    }
}
