//! Two software NICs with connected queue pairs, for benchmarks.

use rnic::{
    Access, Config, Cq, Interface, Modify, Mr, Path, PathMtu, QpInit, ReadyToReceive, ReadyToSend, Rnic,
    Transport,
};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};

/// Virtual address at which each NIC's memory begins
pub const VA: u64 = 0x1000;

/// Returns the IP address of NIC 0 or 1.
pub fn address(nic: u8) -> core::net::IpAddr {
    [10, 0, 0, nic + 1].into()
}

fn mac(nic: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, nic + 1])
}

/// Returns NIC 0 or 1 with `count` queue pairs, each connected to the one of the same number at the other
/// NIC. Returns the NIC, its queue pairs, its completion queue, and its memory region of 64 KiB at [`VA`].
pub fn nic(number: u8, count: usize) -> (Rnic, Vec<Qpn>, Cq, Mr) {
    let mut interface = Interface::new(mac(number), address(number), 24);
    interface.neighbours.push((address(1 - number), mac(1 - number)));
    let mut nic = Rnic::new(Config { max_qps: count, ..Config::new(interface) });
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(1024).expect("room for a completion queue");
    let (_, mr) = nic.register_new(pd, 1 << 16, VA, Access::ALL).expect("room for a region");
    let init = QpInit {
        transport: Transport::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        max_send: 4,
        max_recv: 1,
    };
    let qpns: Vec<_> = (0..count).map(|_| nic.create_qp(init).expect("room for a queue pair")).collect();
    for qpn in &qpns {
        let rtr = ReadyToReceive {
            path: Path::new(address(number), address(1 - number)),
            dest_qp: *qpn,
            mtu: PathMtu::B1024,
            rq_psn: Psn::new(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: RnrTimer(1),
        };
        let rts = ReadyToSend {
            sq_psn: Psn::new(0),
            max_rd_atomic: 1,
            timeout: 20,
            retry_count: 7,
            rnr_retry: 7,
            flow_control: false,
        };
        for modify in [Modify::Init { access: Access::ALL, qkey: 0 }, Modify::Rtr(rtr), Modify::Rts(rts)] {
            nic.modify_qp(*qpn, modify).expect("a new queue pair can change to this state");
        }
    }
    (nic, qpns, cq, mr)
}
