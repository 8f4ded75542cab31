//! Successors of translated connections in the packet path.

use super::Swordbox;
use crate::NONE;
use crate::successor::Successor;
use rocev2::{Opcode, Packet};
use switch::forward::counters::HostQp;
use switch::{Nanos, PortId};

impl Swordbox {
    /// Stores a successor of a translated connection, unless the REP arrived on another port than the
    /// server's packets.
    pub(crate) fn add_successor(&mut self, successor: Successor) {
        let known = self.connections.find(&HostQp::new(successor.server.0, successor.server.1));
        let peer = known.map_or(NONE, |id| self.connections.endpoint(id).peer());
        let leads = peer != NONE
            && known.is_some_and(|id| self.connections.endpoint(id).port != successor.server_port);
        if leads {
            self.counters.spoofed.add(1);
            return;
        }
        self.handshakes.successors.keep(successor);
    }

    /// Returns whether a request that does not fit the translated connection is an early request of a
    /// successor. The server's old queue pair takes such a request for a duplicate or for one that is too
    /// early, and executes it in neither case.
    #[cold]
    pub(crate) fn is_for_successor(&mut self, packet: &Packet<'_>, now: Nanos) -> bool {
        let server = (packet.dst(), packet.bth().dest_qp());
        let (client, psn, ageing) = (packet.src(), packet.bth().psn(), self.config.ageing);
        let Some(successor) = self.handshakes.successors.of_server(server) else { return false };
        let fits = successor.is_early(psn);
        if successor.client.0 != client || !fits || now.since(successor.at) > ageing || !packet.verify_icrc()
        {
            return false;
        }
        successor.request_seen = true;
        true
    }

    /// Handles a response that fits no tracked connection: if it is the server's first acknowledgement to a
    /// successor, the successor replaces the old connection. Returns whether it does.
    #[cold]
    pub(crate) fn try_succeed(&mut self, packet: &Packet<'_>, port: PortId, now: Nanos) -> bool {
        let client = (packet.dst(), packet.bth().dest_qp());
        let psn = packet.bth().psn();
        let acknowledges =
            matches!(
                packet.layout().opcode(),
                Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE | Opcode::RC_READ_RESPONSE_ONLY
            ) && packet.aeth().is_some_and(|aeth| matches!(aeth.kind(), rocev2::aeth::Syndrome::Ack(_)));
        let Some(successor) = self.handshakes.successors.of_client(client) else { return false };
        if !successor.request_seen
            || !acknowledges
            || successor.server.0 != packet.src()
            || successor.server_port != port
            || now.since(successor.at) > self.config.ageing
            || !successor.is_early(psn)
            || !packet.verify_icrc()
        {
            return false;
        }
        self.handshakes.successors.remove(&successor);
        // Later requests are in flight already; tracking begins with the next one.
        self.replace_connection(&successor, false, now);
        true
    }
}
