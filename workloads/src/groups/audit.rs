//! A P4CE switch whose behaviour is audited from outside, and that loses NAKs on their way to leaders. The
//! checks:
//!
//! * the switch withholds a NAK only if it has already sent the leader a NAK for the same or an earlier PSN,
//!   the leader has not repeated from there yet, and no acknowledgement since has covered that PSN; or if a
//!   quorum outvotes the NAK;
//! * the switch uses acknowledgements of each replica until it reports the replica's exclusion to the control
//!   plane, and sends nothing to excluded replicas;
//! * replicas receive connection requests no more often than the limits allow.

use core::net::IpAddr;
use p4ce::{Command, Control, Event, GroupId, P4ce};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Class, Opcode, Packet, Psn, Qpn, classify};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use switch::{DropReason, Egress, Frame, Full, Function, Nanos, Output, PortId, Probability, Rng, Verdict};

/// Findings about a switch, over all its incarnations.
#[derive(Debug, Default)]
pub struct Findings {
    /// First violation
    pub wrong: Option<String>,
    /// NAKs lost on purpose
    pub lost: u64,
    /// NAKs that the switch withheld, as it may
    pub withheld: u64,
    /// Transaction numbers of the REQs to replicas
    pub requests: BTreeSet<u64>,
}

/// Findings, shared by all parts of the switch.
pub type SharedFindings = Arc<Mutex<Findings>>;

fn wrong(seen: &SharedFindings, what: impl FnOnce() -> String) {
    seen.lock().unwrap_or_else(PoisonError::into_inner).wrong.get_or_insert_with(what);
}

/// What the switch has sent to a group's leader, and received from the leader and its replicas.
#[derive(Debug)]
struct LeaderView {
    /// Latest PSN that the switch acknowledged to the leader
    held: Psn,
    /// PSN of the NAK from which the leader has not repeated yet: sequence error, and receiver not ready
    back_to: [Option<Psn>; 2],
    /// PSN after the latest one that the leader sent
    next: Psn,
    /// Latest PSN acknowledged by each replica, and used by the switch
    acked: Vec<Psn>,
    excluded: BTreeSet<usize>,
}

/// Audited data plane
pub struct AuditedSwitch {
    function: P4ce,
    seen: SharedFindings,
    rng: Rng,
    nak_loss: Probability,
    groups: BTreeMap<GroupId, LeaderView>,
}

/// Sender of a packet of a group, with the PSN in the leader's numbering
#[derive(Clone, Copy)]
enum Sender {
    Leader(GroupId, Psn),
    Replica(GroupId, usize, Psn, Syndrome),
}

struct RecordingOutput<'a, O: Output> {
    out: &'a mut O,
    /// Destination queue pair of each frame sent; for acknowledgements, with PSN and syndrome
    sent: Vec<(Qpn, Option<(Psn, Syndrome)>)>,
}

fn parse(frame: &[u8]) -> Option<(Qpn, Option<(Psn, Syndrome)>)> {
    let Class::Roce(layout) = classify(frame) else { return None };
    let packet = Packet::new(frame, layout);
    let ack = packet.aeth().filter(|_| layout.opcode() == Opcode::RC_ACKNOWLEDGE);
    Some((packet.bth().dest_qp(), ack.map(|aeth| (packet.bth().psn(), aeth.kind()))))
}

impl<O: Output> Output for RecordingOutput<'_, O> {
    type Frame = O::Frame;

    fn make(&mut self, len: usize) -> Result<O::Frame, Full> {
        self.out.make(len)
    }

    fn room(&self, port: PortId) -> usize {
        self.out.room(port)
    }

    fn copy(&mut self, frame: &O::Frame) -> Result<O::Frame, Full> {
        self.out.copy(frame)
    }

    fn send(&mut self, frame: O::Frame, port: PortId) -> Result<(), Full> {
        self.sent.extend(parse(frame.bytes()));
        self.out.send(frame, port)
    }
}

impl AuditedSwitch {
    /// Creates an audited data plane that loses this share of the NAKs to leaders.
    pub fn new(function: P4ce, rng: Rng, nak_loss: Probability, seen: SharedFindings) -> Self {
        Self { function, seen, rng, nak_loss, groups: BTreeMap::new() }
    }

    /// Returns the data plane.
    pub fn function(&self) -> &P4ce {
        &self.function
    }

    /// Returns the sender of a packet, if its ICRC is correct and it is of an open group.
    fn sender_of(&self, frame: &[u8]) -> Option<Sender> {
        let Class::Roce(layout) = classify(frame) else { return None };
        let packet = Packet::new(frame, layout);
        let (qpn, psn, src) = (packet.bth().dest_qp(), packet.bth().psn(), packet.src());
        if !packet.verify_icrc() {
            return None;
        }
        self.groups.keys().find_map(|id| {
            let config = self.function.group(*id)?.config();
            if (config.leader.local_qp, config.leader.remote) == (qpn, src) {
                let is_request = packet.aeth().is_none() && layout.opcode() != Opcode::CNP;
                return is_request.then_some(Sender::Leader(*id, psn));
            }
            let is_of = |replica: &p4ce::Replica| (replica.peer.local_qp, replica.peer.remote) == (qpn, src);
            let member = config.replicas.iter().position(is_of)?;
            let ahead = config.replicas[member].peer.first.distance(config.leader.first) as u32;
            let aeth = packet.aeth().filter(|_| layout.opcode() == Opcode::RC_ACKNOWLEDGE)?;
            Some(Sender::Replica(*id, member, psn.sub(ahead), aeth.kind()))
        })
    }

    /// Checks the verdict on a packet and the frames that it caused.
    fn check_verdict(&mut self, sender: Sender, verdict: Verdict, sent: &[(Qpn, Option<(Psn, Syndrome)>)]) {
        let (Sender::Leader(id, _) | Sender::Replica(id, ..)) = sender;
        let Some(config) = self.function.group(id).map(p4ce::Group::config) else { return };
        let Some(view) = self.groups.get_mut(&id) else { return };
        let to_leader = sent.iter().find(|(qpn, ack)| *qpn == config.leader.remote_qp && ack.is_some());
        match sender {
            Sender::Leader(_, psn) => {
                if view.next.precedes(psn.add(1)) {
                    view.next = psn.add(1);
                }
                for back_to in &mut view.back_to {
                    back_to.take_if(|back_to| !back_to.precedes(psn));
                }
                let is_excluded = |qpn: Qpn| {
                    view.excluded.iter().any(|member| config.replicas[*member].peer.remote_qp == qpn)
                };
                let others =
                    |qpn: Qpn| config.replicas.iter().filter(|replica| replica.peer.remote_qp == qpn).count();
                // Acknowledgements go to the leader, whose queue pair may have the same number.
                let is_wrong =
                    |(qpn, ack): &&(Qpn, Option<_>)| ack.is_none() && is_excluded(*qpn) && others(*qpn) == 1;
                if let Some((qpn, _)) = sent.iter().find(is_wrong) {
                    wrong(&self.seen, || {
                        format!("{id:?}: a packet was sent to queue pair {qpn} of an excluded replica")
                    });
                }
            }
            Sender::Replica(_, member, psn, syndrome) => {
                let kind = match syndrome {
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => Some(0),
                    Syndrome::RnrNak(_) => Some(1),
                    _ => None,
                };
                let held = if matches!(syndrome, Syndrome::Ack(_)) { psn } else { psn.sub(1) };
                let is_new = view.acked[member].precedes(held) && held.precedes(view.next);
                let sent_ack = to_leader.and_then(|(_, ack)| *ack);
                if let Verdict::Drop(_) = verdict {
                    if is_new && !view.excluded.contains(&member) {
                        wrong(&self.seen, || {
                            format!(
                                "{id:?}: an ACK of replica {member} was dropped without a reported exclusion"
                            )
                        });
                    }
                    return;
                }
                if is_new {
                    view.acked[member] = held;
                }
                let limit = view.held.add(1);
                let back_to = if limit.precedes(psn) { limit } else { psn };
                let nak = |ack: (Psn, Syndrome)| !matches!(ack.1, Syndrome::Ack(_));
                if let Some(kind) = kind.filter(|_| !sent_ack.is_some_and(nak)) {
                    let outvoted = config.outvote && !view.held.precedes(psn);
                    let is_pending = view.back_to[kind].is_some_and(|pending| !back_to.precedes(pending));
                    if !outvoted && !is_pending && verdict == Verdict::Consume {
                        wrong(&self.seen, || {
                            format!(
                                "{id:?}: a NAK for PSN {psn} of replica {member} was withheld: \
                                 the leader got an ACK up to {} and the NAKs {:?}",
                                view.held, view.back_to
                            )
                        });
                    }
                    self.seen.lock().unwrap_or_else(PoisonError::into_inner).withheld += 1;
                }
            }
        }
        if let Some((psn, syndrome)) = to_leader.and_then(|(_, ack)| *ack) {
            let held = if matches!(syndrome, Syndrome::Ack(_)) { psn } else { psn.sub(1) };
            if view.held.precedes(held) {
                view.held = held;
            }
            let held = view.held;
            // A leader does not repeat what was acknowledged.
            match syndrome {
                _ if !held.precedes(psn) => {}
                Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => view.back_to[0] = Some(psn),
                Syndrome::RnrNak(_) => view.back_to[1] = Some(psn),
                _ => {}
            }
            for back_to in &mut view.back_to {
                back_to.take_if(|back_to| !held.precedes(*back_to));
            }
        }
    }
}

impl Function for AuditedSwitch {
    type Command = Command;
    type Event = Event;
    const HAS_OWNERS: bool = P4ce::HAS_OWNERS;

    fn owner(&self, frame: &impl Frame, port: PortId) -> Option<usize> {
        self.function.owner(frame, port)
    }

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let sender = self.sender_of(frame.bytes());
        let mut recording = RecordingOutput { out, sent: Vec::new() };
        let verdict = self.function.on_frame(frame, port, now, &mut recording);
        let mut sent = recording.sent;
        if let Verdict::Forward(_) = verdict {
            sent.extend(parse(frame.bytes()));
        }
        let Some(sender) = sender else { return verdict };
        self.check_verdict(sender, verdict, &sent);
        let is_nak = sent.iter().any(|(_, ack)| {
            ack.is_some_and(|(_, syndrome)| {
                matches!(syndrome, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) | Syndrome::RnrNak(_))
            })
        });
        if matches!(sender, Sender::Replica(..)) && is_nak && self.rng.happens(self.nak_loss) {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).lost += 1;
            return Verdict::Drop(DropReason::PortFull);
        }
        verdict
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.function.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.function.next_timer()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match &command {
            Command::Exclude(id, member) => {
                if let Some(view) = self.groups.get_mut(id) {
                    view.excluded.insert(*member);
                }
            }
            Command::Open(group) => {
                let config = group.config();
                let before = config.leader.first.sub(1);
                let view = LeaderView {
                    held: before,
                    back_to: [None; 2],
                    next: config.leader.first,
                    acked: vec![before; config.replicas.len()],
                    excluded: BTreeSet::new(),
                };
                self.groups.insert(config.id, view);
            }
            Command::Close(id) => _ = self.groups.remove(id),
            Command::SetQuorum(..) | Command::Learn(..) => {}
        }
        self.function.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.function.poll_event();
        if let Some(Event::Excluded(id, member)) = &event
            && let Some(view) = self.groups.get_mut(id)
        {
            view.excluded.insert(*member);
        }
        event
    }
}

/// Audited control plane
pub struct AuditedControl {
    /// The control plane
    pub control: Control,
    seen: SharedFindings,
}

impl AuditedControl {
    /// Creates an audited control plane.
    pub fn new(control: Control, seen: SharedFindings) -> Self {
        Self { control, seen }
    }
}

/// Attribute ID of a REQ (IB 12.6.5), and the length of the UDP header, BTH and DETH before the MAD
const REQ: [u8; 2] = [0, 0x10];
const MAD: usize = 8 + 12 + 8;

/// Returns the transaction number of a REQ; `None` for all other frames.
fn transaction(frame: &[u8]) -> Option<u64> {
    let Class::Roce(layout) = classify(frame) else { return None };
    let packet = Packet::new(frame, layout);
    let header = if matches!(packet.src(), IpAddr::V6(_)) { 40 } else { 20 };
    let mad = frame.get(layout.l3() + header + MAD..)?;
    let is_req = packet.bth().dest_qp() == Qpn::GSI && mad.get(16..18)? == REQ;
    is_req.then(|| mad.get(8..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)))?
}

impl switch::Control for AuditedControl {
    type Function = AuditedSwitch;

    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        self.control.on_punt(frame, port, now);
    }

    fn on_event(&mut self, event: Event, now: Nanos) {
        self.control.on_event(event, now);
    }

    fn on_timer(&mut self, now: Nanos) {
        self.control.on_timer(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.control.next_timer()
    }

    fn poll_command(&mut self) -> Option<(usize, Command)> {
        self.control.poll_command()
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        let egress = self.control.poll_transmit(now, frame)?;
        let number = transaction(frame);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).requests.extend(number);
        Some(egress)
    }
}
