//! Groups whose blocks a P4CE switch copies: the root writes each block once, to a P4CE group of all other members, and is
//! told once that all of them hold it (docs/p4ce.md). Everything else is as in other groups: receivers say that they are
//! ready by writing to the root, directly.
//!
//! A request for a P4CE group names 12 members (3 with IPv6), so a larger group has several, and the root sends a block once
//! to each.

use crate::config::Failure;
use crate::group::{Depth, Group, Lane, Resources, Use};
use core::net::IpAddr;
use p4ce::consensus::SwitchAddress as Switch;
use p4ce::wire::{GroupRequest, MemberRequest, Region, Replicas};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, private_data, service_id_of};
use rnic::{Access, ConnParam, Rnic};
use std::collections::BTreeMap;
use switch::Nanos;

/// A replica tells of memory that may be written to. Blocks go to receives that are posted, so there is no more than a
/// word, which nobody may write to.
const NOMINAL: usize = 8;

/// To how many receivers a switch copies a block that the root sends once: so many a request for a P4CE group names
pub const fn copied_at_once(ipv4: bool) -> usize {
    let (head, address) = (8, if ipv4 { 4 } else { 16 });
    (private_data::REQ_CMA - head) / address
}

/// The root asks the switch for its groups.
pub(crate) fn open(
    group: &mut Group,
    nic: &mut Rnic,
    resources: &mut Resources,
    conns: &mut BTreeMap<Conn, (u32, Use)>,
    (switch, port): (Switch, u16),
    now: Nanos,
) -> Result<(), Failure> {
    let number = group.config.number;
    let failed = Failure::Switch(resources.own);
    for members in group.config.members[1..].chunks(copied_at_once(resources.own.is_ipv4())) {
        let request = GroupRequest {
            replicas: Replicas::Listed(members.to_vec()),
            quorum: members.len() as u8,
            port,
            outvote: false,
        };
        let private_data = request.to_bytes().map_err(|_| failed)?;
        let depth = Depth::lane(group.config.ahead as usize);
        let qpn = nic.create_qp(resources.queue_pair(depth)).map_err(|_| Failure::NoRoom(resources.own))?;
        let param = ConnParam {
            access: Access::LOCAL_READ,
            ack_timeout: resources.ack_timeout,
            retry_count: resources.retry_count,
            private_data,
            // By this the members know which group they are asked for.
            src_port: number as u16,
            ..ConnParam::default()
        };
        let service = service_id_of(PortSpace::Tcp, switch.port);
        let Ok(conn) = nic.connect(qpn, switch.address, service, param, now) else {
            _ = nic.destroy_qp(qpn);
            return Err(failed);
        };
        let Some(through) = &mut group.through else { return Ok(()) };
        let of = (number, Use::Lane(through.lanes.len()));
        through.lanes.push(Lane { qpn, conn, stands: false, acknowledged: 0 });
        resources.uses.insert(qpn.get(), of);
        conns.insert(conn, of);
    }
    Ok(())
}

/// A switch asks a member for a connection on behalf of its root.
pub(crate) fn join(
    group: &mut Group,
    nic: &mut Rnic,
    resources: &mut Resources,
    conns: &mut BTreeMap<Conn, (u32, Use)>,
    conn: Conn,
    now: Nanos,
) -> Option<()> {
    let number = group.config.number;
    let depth = Depth::feed(group.config.ahead as usize);
    let through = group.through.as_mut().filter(|through| group.own != 0 && through.feed.is_none())?;
    let (buffer, mr) = nic.register_new(resources.pd, NOMINAL, 0, Access::LOCAL_READ).ok()?;
    let free = |nic: &mut Rnic| {
        _ = nic.deregister(mr);
        _ = nic.free(buffer);
    };
    let Ok(qpn) = nic.create_qp(resources.queue_pair(depth)) else {
        free(nic);
        return None;
    };
    let private_data = Region::new(0, mr.0, NOMINAL as u64).to_bytes();
    let param = ConnParam { access: Access::LOCAL_READ, private_data, ..ConnParam::default() };
    if nic.accept(conn, qpn, param, now).is_err() {
        _ = nic.destroy_qp(qpn);
        free(nic);
        return None;
    }
    through.feed = Some((qpn, conn, mr, buffer));
    through.feed_stands = true;
    resources.uses.insert(qpn.get(), (number, Use::Feed));
    conns.insert(conn, (number, Use::Feed));
    Some(())
}

/// For which group a switch asks: the root, and the group's number
pub(crate) fn asked_for(private_data: &[u8]) -> Option<(IpAddr, u32)> {
    let MemberRequest { leader, port } = MemberRequest::from_bytes(private_data)?;
    Some((leader, port.into()))
}

/// Something happened to a group's connection with a switch.
pub(crate) fn on_cm(group: &mut Group, of: Use, event: &CmEvent) -> Result<(), Failure> {
    let failed = Failure::Switch(group.ip(0));
    let Some(through) = &mut group.through else { return Ok(()) };
    match (event, of) {
        (CmEvent::Replied { .. }, Use::Lane(place)) => {
            through.lanes[place].stands = true;
            Ok(())
        }
        (CmEvent::Established { .. }, Use::Feed) => Ok(()),
        _ => Err(failed),
    }
}
