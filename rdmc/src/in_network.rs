//! Groups whose blocks a P4CE switch copies. The root sends each block once, to a P4CE group of all other
//! members, and gets one acknowledgement when all of them have it (docs/p4ce.md). Everything else is as in
//! other groups: receivers write their ready words to the root directly.
//!
//! A request for a P4CE group names at most 12 members (3 with IPv6). For more members there are several P4CE
//! groups, and the root sends each block once to each of them.

use crate::config::Failure;
use crate::depth::Depth;
use crate::group::{Group, QpUse, Resources, SwitchConnection};
use core::net::IpAddr;
use p4ce::SwitchAddress as Switch;
use p4ce::wire::{GroupRequest, MemberRequest, Region, Replicas};
use rnic::cm::{Conn, Event as CmEvent, private_data};
use rnic::{Access, ConnError, ConnParam, Rnic};
use std::collections::BTreeMap;
use switch::Nanos;

/// Bytes of the region that a member announces to the switch. A P4CE replica has to announce memory that may
/// be written. Blocks go to posted receives, so this is a single word, without remote access.
const ANNOUNCED_LEN: usize = 8;

/// Returns the number of receivers to which a switch copies a block that the root sends once: the maximum
/// number of members in a request for a P4CE group.
pub const fn switch_fanout(ipv4: bool) -> usize {
    let (head, address) = (8, if ipv4 { 4 } else { 16 });
    (private_data::REQ_CMA - head) / address
}

/// Requests the P4CE groups from the switch, at the root.
pub(crate) fn request_groups(
    group: &mut Group,
    nic: &mut Rnic,
    resources: &mut Resources,
    conns: &mut BTreeMap<Conn, (u32, QpUse)>,
    (switch, port): (Switch, u16),
    now: Nanos,
) -> Result<(), Failure> {
    let number = group.config.number;
    let failed = Failure::Switch(resources.own);
    for members in group.config.members[1..].chunks(switch_fanout(resources.own.is_ipv4())) {
        let request = GroupRequest {
            replicas: Replicas::Listed(members.to_vec()),
            quorum: members.len() as u8,
            port,
            outvote: false,
        };
        let private_data = request.to_bytes().map_err(|_| failed)?;
        let depth = Depth::to_switch(group.config.max_in_flight as usize);
        let param = ConnParam {
            access: Access::LOCAL_READ,
            ack_timeout: resources.ack_timeout,
            retry_count: resources.retry_count,
            private_data,
            // Identifies the RDMC group in the switch's requests to the members.
            src_port: number as u16,
            ..ConnParam::default()
        };
        let to = (switch.address, switch.port);
        let connected = nic.connect_new(resources.queue_pair(depth), to, param, now);
        let (qpn, conn) = connected.map_err(|error| match error {
            ConnError::Qp(_) => Failure::NoRoom(resources.own),
            _ => failed,
        })?;
        let Some(switch_connections) = &mut group.switch_connections else { return Ok(()) };
        let qp_use = (number, QpUse::ToSwitch(switch_connections.to_switch.len()));
        switch_connections.to_switch.push(SwitchConnection { qpn, conn, connected: false, acknowledged: 0 });
        resources.uses.insert(qpn.get(), qp_use);
        conns.insert(conn, qp_use);
    }
    Ok(())
}

/// Accepts a switch's connection request on behalf of the root, at another member. Returns `None` if it is
/// not accepted.
pub(crate) fn accept_switch(
    group: &mut Group,
    nic: &mut Rnic,
    resources: &mut Resources,
    conns: &mut BTreeMap<Conn, (u32, QpUse)>,
    conn: Conn,
    now: Nanos,
) -> Option<()> {
    let number = group.config.number;
    let depth = Depth::from_switch(group.config.max_in_flight as usize);
    let switch_connections = group
        .switch_connections
        .as_mut()
        .filter(|connections| group.own != 0 && connections.from_switch.is_none())?;
    let (buffer, mr) = nic.register_new(resources.pd, ANNOUNCED_LEN, 0, Access::LOCAL_READ).ok()?;
    let private_data = Region::new(0, mr.0, ANNOUNCED_LEN as u64).to_bytes();
    let param = ConnParam { access: Access::LOCAL_READ, private_data, ..ConnParam::default() };
    let Ok(qpn) = nic.accept_new(conn, resources.queue_pair(depth), param, now) else {
        _ = nic.deregister(mr);
        _ = nic.free(buffer);
        return None;
    };
    switch_connections.from_switch = Some((qpn, conn, mr, buffer));
    switch_connections.from_switch_connected = true;
    resources.uses.insert(qpn.get(), (number, QpUse::FromSwitch));
    conns.insert(conn, (number, QpUse::FromSwitch));
    Some(())
}

/// Returns the group of a switch's connection request: the root's address, and the number of the group.
pub(crate) fn requested_group(private_data: &[u8]) -> Option<(IpAddr, u32)> {
    let MemberRequest { leader, port } = MemberRequest::from_bytes(private_data)?;
    Some((leader, port.into()))
}

/// Handles a CM event of a group's connection with a switch.
pub(crate) fn on_cm(group: &mut Group, qp_use: QpUse, event: &CmEvent) -> Result<(), Failure> {
    let failed = Failure::Switch(group.ip(0));
    let Some(switch_connections) = &mut group.switch_connections else { return Ok(()) };
    match (event, qp_use) {
        (CmEvent::Replied { .. }, QpUse::ToSwitch(index)) => {
            switch_connections.to_switch[index].connected = true;
            Ok(())
        }
        (CmEvent::Established { .. }, QpUse::FromSwitch) => Ok(()),
        _ => Err(failed),
    }
}
