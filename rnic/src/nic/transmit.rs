//! The transmit path: control frames first, then one packet of each queue pair in round-robin order.

use super::Rnic;
use crate::path::Path;
use crate::qp::{Event, Transport};
use crate::wire::PathHeaders;
use core::net::IpAddr;
use switch::Nanos;

/// The low two bits of the traffic class: not ECN-capable (RFC 3168)
const NOT_ECT: u8 = 0;

impl Rnic {
    /// Writes the next frame to send into `frame`. Returns false if there is none now. Call it again after a
    /// frame has arrived, a request was posted, or the time of [`next_timer`](Self::next_timer) has come.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        loop {
            let sent = self.endpoint.poll_transmit(now, frame)
                || self.poll_queue_pairs(now, frame)
                // The round may have queued a request for a neighbour's address.
                || self.endpoint.poll_transmit(now, frame);
            // Queue pairs that just failed may have a final packet to send.
            if !self.handle_overrun() || sent {
                self.counters.sent += u64::from(sent);
                return sent;
            }
        }
    }

    fn poll_queue_pairs(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        while let Some(slot) = self.qps.next_scheduled() {
            if self.transmit_qp(slot, now, frame) {
                self.update_schedule(slot);
                return true;
            }
            self.update_timer(slot);
        }
        false
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have a frame.
    pub fn wants_to_transmit(&self) -> bool {
        self.qps.ready() > 0 || self.endpoint.wants_to_transmit()
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    pub fn next_timer(&self) -> Option<Nanos> {
        [self.timers.first(), self.endpoint.next_timer()].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn on_timer(&mut self, now: Nanos) {
        while let Some(slot) = self.timers.pop_due(now) {
            let Some(mut ctx) = self.context(slot) else { continue };
            let unresponsive = ctx.on_timer(now);
            if let Some(ip) = unresponsive {
                self.endpoint.verify(ip, now);
            }
            self.update_schedule(slot);
        }
        let given_up = self.endpoint.run_timers(now);
        if !given_up.is_empty() {
            self.fail_unresolved(&given_up);
            self.wake_unresolved();
        }
        self.process_cm_events(now);
        self.handle_overrun();
    }

    /// Updates the schedule of a queue pair after a change: the round-robin queue if it may send, and its
    /// timer.
    pub(super) fn update_schedule(&mut self, slot: u32) {
        let Some(qp) = self.qps.at(slot) else { return };
        let wants = qp.wants_to_send();
        if qp.has_drained() {
            self.events.push_back(Event::Drained(qp.qpn()));
        }
        if wants {
            self.qps.schedule(slot);
        }
        self.update_timer(slot);
    }

    #[inline]
    fn update_timer(&mut self, slot: u32) {
        if let Some(deadline) = self.qps.at(slot).and_then(|qp| qp.deadline()) {
            self.timers.arm(slot, deadline);
        }
    }

    /// Retries queue pairs that waited for a neighbour, after one was resolved.
    pub(super) fn wake_unresolved(&mut self) {
        self.endpoint.retry_waiting();
        for slot in core::mem::take(&mut self.unresolved) {
            if let Some(qp) = self.qps.at(slot) {
                qp.stop_waiting();
            }
            self.update_schedule(slot);
        }
    }

    /// Fails requests to neighbours whose resolution was given up, if they would otherwise wait forever.
    fn fail_unresolved(&mut self, given_up: &[IpAddr]) {
        for slot in self.unresolved.clone() {
            let Some(dst) = self.qps.at(slot).and_then(|qp| qp.unresolved_destination()) else { continue };
            if given_up.contains(&self.config.interface.next_hop(dst))
                && let Some(mut ctx) = self.context(slot)
            {
                ctx.on_unreachable();
            }
        }
    }

    fn transmit_qp(&mut self, slot: u32, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(qp) = self.qps.at(slot) else { return false };
        if qp.init().transport == Transport::Ud {
            return self.transmit_datagram(slot, now, frame);
        }
        // A change of the neighbour table makes the headers of every path stale.
        if !qp.has_path_headers(self.endpoint.neighbours_version()) {
            let Some((path, remote)) = qp.peer() else { return false };
            let src_port = qp.src_port(remote);
            let Some(path_headers) = self.path_headers(&path, src_port, now) else {
                self.wait_for_neighbour(slot, now);
                return false;
            };
            let version = self.endpoint.neighbours_version();
            if let Some(qp) = self.qps.at(slot) {
                qp.set_path_headers(path_headers, version);
            }
        }
        self.context(slot).is_some_and(|mut ctx| ctx.transmit(now, frame))
    }

    fn wait_for_neighbour(&mut self, slot: u32, now: Nanos) {
        self.unresolved.insert(slot);
        if let Some(qp) = self.qps.at(slot) {
            qp.wait_for_neighbour(now);
        }
    }

    /// Returns the headers of packets to a host if its next hop's MAC address is known; otherwise sends a
    /// request for it.
    pub(super) fn path_headers(&mut self, path: &Path, src_port: u16, now: Nanos) -> Option<PathHeaders> {
        // ECT(0) unless the path sets the ECN bits: DCQCN cannot slow down a sender whose packets are not
        // ECN-capable.
        let capable = self.config.congestion.is_some() && path.traffic_class % 4 == NOT_ECT;
        let traffic_class = path.traffic_class | if capable { 2 } else { 0 };
        self.endpoint.path_headers(&Path { traffic_class, ..*path }, src_port, now)
    }

    fn transmit_datagram(&mut self, slot: u32, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(qp) = self.qps.at(slot) else { return false };
        let Some(to) = qp.next_datagram() else { return false };
        let src_port = qp.src_port(to.qpn);
        let Some(mut path_headers) = self.path_headers(&to.path, src_port, now) else {
            self.wait_for_neighbour(slot, now);
            return false;
        };
        self.context(slot).is_some_and(|mut ctx| ctx.transmit_datagram(&mut path_headers, &to, frame))
    }
}
