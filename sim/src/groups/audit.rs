//! A P4CE switch whose behaviour is audited from outside, and that loses NAKs on their way to leaders. The
//! checks:
//!
//! * the switch withholds a NAK only if it has already sent the leader a NAK for the same or an earlier PSN,
//!   the leader has not repeated from there yet, and no acknowledgement since has covered that PSN;
//! * the switch uses acknowledgements of each replica until it reports the replica's exclusion to the control
//!   plane, and sends nothing to excluded replicas;
//! * replicas receive connection requests no more often than the limits allow.

use core::net::IpAddr;
use p4ce::{Command, Control, Event, GroupId, P4ce};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Class, Opcode, Packet, Psn, Qpn, classify};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use switch::{Chance, DropReason, Egress, Frame, Full, Function, Nanos, Output, PortId, Share, Verdict};

/// Findings about a switch, over all its incarnations.
#[derive(Debug, Default)]
pub struct Seen {
    /// First violation
    pub wrong: Option<String>,
    /// NAKs lost on purpose
    pub lost: u64,
    /// NAKs that the switch withheld, as it may
    pub withheld: u64,
    /// Transaction numbers of the REQs to replicas
    pub asked: BTreeSet<u64>,
}

/// Findings, shared by all parts of the switch.
pub type SharedSeen = Arc<Mutex<Seen>>;

fn wrong(seen: &SharedSeen, what: impl FnOnce() -> String) {
    seen.lock().unwrap_or_else(PoisonError::into_inner).wrong.get_or_insert_with(what);
}

/// What the switch has sent to a group's leader, and received from the leader and its replicas.
#[derive(Debug)]
struct Told {
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
    seen: SharedSeen,
    rng: Chance,
    lose_naks: Share,
    groups: BTreeMap<GroupId, Told>,
}

/// Sender of a packet of a group, with the PSN in the leader's numbering
#[derive(Clone, Copy)]
enum Of {
    Leader(GroupId, Psn),
    Replica(GroupId, usize, Psn, Syndrome),
}

struct Watched<'a, O: Output> {
    out: &'a mut O,
    /// Destination queue pair of each frame sent; for acknowledgements, with PSN and syndrome
    sent: Vec<(Qpn, Option<(Psn, Syndrome)>)>,
}

fn read(frame: &[u8]) -> Option<(Qpn, Option<(Psn, Syndrome)>)> {
    let Class::Roce(layout) = classify(frame) else { return None };
    let packet = Packet::new(frame, layout);
    let said = packet.aeth().filter(|_| layout.opcode() == Opcode::RC_ACKNOWLEDGE);
    Some((packet.bth().dest_qp(), said.map(|aeth| (packet.bth().psn(), aeth.kind()))))
}

impl<O: Output> Output for Watched<'_, O> {
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
        self.sent.extend(read(frame.bytes()));
        self.out.send(frame, port)
    }
}

impl AuditedSwitch {
    /// Creates an audited data plane that loses this share of the NAKs to leaders.
    pub fn new(function: P4ce, rng: Chance, lose_naks: Share, seen: SharedSeen) -> Self {
        Self { function, seen, rng, lose_naks, groups: BTreeMap::new() }
    }

    /// Returns the data plane.
    pub fn function(&self) -> &P4ce {
        &self.function
    }

    /// Returns the sender of a packet, if its ICRC is correct and it is of an open group.
    fn owner(&self, frame: &[u8]) -> Option<Of> {
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
                return is_request.then_some(Of::Leader(*id, psn));
            }
            let is_of = |replica: &p4ce::Replica| (replica.peer.local_qp, replica.peer.remote) == (qpn, src);
            let member = config.replicas.iter().position(is_of)?;
            let ahead = config.replicas[member].peer.first.distance(config.leader.first) as u32;
            let aeth = packet.aeth().filter(|_| layout.opcode() == Opcode::RC_ACKNOWLEDGE)?;
            Some(Of::Replica(*id, member, psn.sub(ahead), aeth.kind()))
        })
    }

    /// Checks the verdict on a packet and the frames that it caused.
    fn judge(&mut self, of: Of, verdict: Verdict, sent: &[(Qpn, Option<(Psn, Syndrome)>)]) {
        let (Of::Leader(id, _) | Of::Replica(id, ..)) = of;
        let Some(config) = self.function.group(id).map(p4ce::Group::config) else { return };
        let Some(told) = self.groups.get_mut(&id) else { return };
        let to_leader = sent.iter().find(|(qpn, said)| *qpn == config.leader.remote_qp && said.is_some());
        match of {
            Of::Leader(_, psn) => {
                if told.next.precedes(psn.add(1)) {
                    told.next = psn.add(1);
                }
                for back_to in &mut told.back_to {
                    back_to.take_if(|back_to| !back_to.precedes(psn));
                }
                let is_excluded = |qpn: Qpn| {
                    told.excluded.iter().any(|member| config.replicas[*member].peer.remote_qp == qpn)
                };
                let others =
                    |qpn: Qpn| config.replicas.iter().filter(|replica| replica.peer.remote_qp == qpn).count();
                // Acknowledgements go to the leader, whose queue pair may have the same number.
                let is_wrong = |(qpn, said): &&(Qpn, Option<_>)| {
                    said.is_none() && is_excluded(*qpn) && others(*qpn) == 1
                };
                if let Some((qpn, _)) = sent.iter().find(is_wrong) {
                    wrong(&self.seen, || {
                        format!("{id:?}: a packet was sent to queue pair {qpn} of an excluded replica")
                    });
                }
            }
            Of::Replica(_, member, psn, syndrome) => {
                let kind = match syndrome {
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => Some(0),
                    Syndrome::RnrNak(_) => Some(1),
                    _ => None,
                };
                let held = if matches!(syndrome, Syndrome::Ack(_)) { psn } else { psn.sub(1) };
                let is_news = told.acked[member].precedes(held) && held.precedes(told.next);
                let is_told = to_leader.and_then(|(_, said)| *said);
                if let Verdict::Drop(_) = verdict {
                    if is_news && !told.excluded.contains(&member) {
                        wrong(&self.seen, || {
                            format!(
                                "{id:?}: an ACK of replica {member} was dropped without a reported exclusion"
                            )
                        });
                    }
                    return;
                }
                if is_news {
                    told.acked[member] = held;
                }
                let limit = told.held.add(1);
                let back_to = if limit.precedes(psn) { limit } else { psn };
                let nak = |said: (Psn, Syndrome)| !matches!(said.1, Syndrome::Ack(_));
                if let Some(kind) = kind.filter(|_| !is_told.is_some_and(nak)) {
                    let outvoted = config.outvote && !told.held.precedes(psn);
                    let waits = told.back_to[kind].is_some_and(|asked| !back_to.precedes(asked));
                    if !outvoted && !waits && verdict == Verdict::Consume {
                        wrong(&self.seen, || {
                            format!(
                                "{id:?}: a NAK for PSN {psn} of replica {member} was withheld: \
                                 the leader got an ACK up to {} and the NAKs {:?}",
                                told.held, told.back_to
                            )
                        });
                    }
                    self.seen.lock().unwrap_or_else(PoisonError::into_inner).withheld += 1;
                }
            }
        }
        if let Some((psn, syndrome)) = to_leader.and_then(|(_, said)| *said) {
            let held = if matches!(syndrome, Syndrome::Ack(_)) { psn } else { psn.sub(1) };
            if told.held.precedes(held) {
                told.held = held;
            }
            let held = told.held;
            // A leader does not repeat what was acknowledged.
            match syndrome {
                _ if !held.precedes(psn) => {}
                Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => told.back_to[0] = Some(psn),
                Syndrome::RnrNak(_) => told.back_to[1] = Some(psn),
                _ => {}
            }
            for back_to in &mut told.back_to {
                back_to.take_if(|back_to| !held.precedes(*back_to));
            }
        }
    }
}

impl Function for AuditedSwitch {
    type Command = Command;
    type Event = Event;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let of = self.owner(frame.bytes());
        let mut watched = Watched { out, sent: Vec::new() };
        let verdict = self.function.on_frame(frame, port, now, &mut watched);
        let mut sent = watched.sent;
        if let Verdict::Forward(_) = verdict {
            sent.extend(read(frame.bytes()));
        }
        let Some(of) = of else { return verdict };
        self.judge(of, verdict, &sent);
        let is_nak = sent.iter().any(|(_, said)| {
            said.is_some_and(|(_, syndrome)| {
                matches!(syndrome, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) | Syndrome::RnrNak(_))
            })
        });
        if matches!(of, Of::Replica(..)) && is_nak && self.rng.happens(self.lose_naks) {
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
                if let Some(told) = self.groups.get_mut(id) {
                    told.excluded.insert(*member);
                }
            }
            Command::Open(group) => {
                let config = group.config();
                let before = config.leader.first.sub(1);
                let told = Told {
                    held: before,
                    back_to: [None; 2],
                    next: config.leader.first,
                    acked: vec![before; config.replicas.len()],
                    excluded: BTreeSet::new(),
                };
                self.groups.insert(config.id, told);
            }
            Command::Close(id) => _ = self.groups.remove(id),
            Command::SetQuorum(..) => {}
        }
        self.function.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        let event = self.function.poll_event();
        if let Some(Event::Excluded(id, member)) = &event
            && let Some(told) = self.groups.get_mut(id)
        {
            told.excluded.insert(*member);
        }
        event
    }
}

/// Audited control plane
pub struct AuditedControl {
    /// The control plane
    pub control: Control,
    seen: SharedSeen,
}

impl AuditedControl {
    /// Creates an audited control plane.
    pub fn new(control: Control, seen: SharedSeen) -> Self {
        Self { control, seen }
    }
}

/// Attribute ID of a REQ (IB 12.6.5), and the length of the UDP header, BTH and DETH before the MAD
const REQ: [u8; 2] = [0, 0x10];
const MAD: usize = 8 + 12 + 8;

/// Returns the transaction number of a REQ; None for all other frames.
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

    fn poll_command(&mut self) -> Option<Command> {
        self.control.poll_command()
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        let egress = self.control.poll_transmit(now, frame)?;
        let asked = transaction(frame);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).asked.extend(asked);
        Some(egress)
    }
}
