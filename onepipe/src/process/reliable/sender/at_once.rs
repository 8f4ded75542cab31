//! Messages that are sent in the call: of one packet, if nothing waits before them and the windows have room.

use crate::header::{OnePipeOpcode, Timestamp};
use switch::Nanos;

use super::super::super::clock::Clock;
use super::super::super::config::cost;
use super::super::super::peers::Peers;
use super::super::super::types::Scattering;
use super::super::inbound::psn_of;
use super::super::receiver::header;
use super::super::types::Member;
use super::Sender;

/// Receiver of a message
#[derive(Clone, Copy)]
pub(in super::super) struct Receiving<'a> {
    /// Its index among the peers
    pub(in super::super) peer: u32,
    pub(in super::super) member: &'a Member,
}

impl Sender {
    /// Sends one message at once; see
    /// [`Process::reliable_send_at_once`](super::super::super::Process::reliable_send_at_once).
    #[expect(clippy::too_many_arguments, reason = "parts of the process and of the message")]
    #[inline]
    pub(in super::super) fn send_at_once(
        &mut self,
        next_number: impl FnOnce() -> Scattering,
        Receiving { peer, member }: Receiving<'_>,
        message: &[u8],
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        let has_room = message.len() <= self.fragment
            && self.buffered + message.len() <= self.send_buffer
            && self.unsettled + self.events.len() < self.max_unsettled;
        let cost = cost(message.len());
        if !self.schedule.is_empty() || !has_room || cost > member.grant as usize {
            return None;
        }
        let outbound = self.receivers[peer as usize].as_deref_mut()?;
        if !outbound.queue.is_empty() || !outbound.would_fit(cost) {
            return None;
        }
        let number = next_number();
        (self.buffered, self.unsettled) = (self.buffered + message.len(), self.unsettled + 1);
        let index = self.scatterings.add();
        let time = clock.stamp(now);
        self.schedule.on_sent();
        self.undecided.push(time, index);
        let position = outbound.send((index, 0), 0, true, cost, now);
        let to = (peer, member.incarnation);
        self.scatterings.get_mut(index).fill_sent(number, to, message, (time, position));
        let mut header = header(OnePipeOpcode::RELIABLE_DATA, Timestamp::new(time), psn_of(position));
        header.set_first(true);
        header.set_end_of_message(true);
        peers.emit(peer, outbound.is_unanswered(), &header, message, frame);
        self.counters.sent.add(1);
        self.counters.packets_sent.add(1);
        self.arm(peer);
        Some(number)
    }
}
