//! Requests of the system for a device.

use crate::common::{Ticks, config, port};
use dataplane::config::Device;
use dataplane::{ControlHandler, ControlOutput, Link, LinkChange, Live, Mbuf, PortInfo, Runtime, Stop};
use switch::forward::config::ForwardingMode;
use switch::forward::{Config, Event, Forward};
use switch::{PortId, drop::FaultSet};
use understudy_tests::alone;

/// Ticks after which the test ends the run
const LIMIT: u32 = 20_000;

/// Requests the second port's device in the fifth tick, as the driver of VFIO does, and notes what is reported.
struct Request {
    limit: Ticks,
    ticks: u32,
    changes: Vec<(String, LinkChange)>,
}

impl ControlHandler<Forward> for &mut Request {
    fn on_event(&mut self, _: usize, _: Event, _: &mut ControlOutput<'_, Forward>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Forward>) {}

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Forward>) -> bool {
        self.ticks += 1;
        if self.ticks == 5 {
            // SAFETY: passes a C string.
            unsafe {
                dpdk_sys::rte_dev_event_callback_process(
                    c"net_null1".as_ptr(),
                    dpdk_sys::rte_dev_event_type_RTE_DEV_EVENT_REMOVE,
                );
            }
        }
        self.limit.on_tick(live, out)
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        self.changes.push((port.name.clone(), change.clone()));
    }
}

#[test]
fn a_run_ends_when_the_system_requests_a_device() {
    alone!();
    let folder = tempfile::tempdir().unwrap();
    let source = |name: &str| port(name, Device::Null { size: 64, copy: false });
    // With memif, DPDK's interrupt thread, from which requests come, has other work, too.
    let memif = Device::Memif { socket: folder.path().join("m.sock"), id: 0, server: true, peer_uid: None };
    let ports = vec![source("one"), source("two"), port("three", memif)];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let function = Forward::new(&Config {
        ports: 3,
        mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 16,
        health: false,
    });
    let mut control = Request { limit: Ticks(LIMIT), ticks: 0, changes: Vec::new() };
    let outcome = runtime.run(vec![function], &mut &mut control, &Stop::new());
    assert!(control.ticks < LIMIT, "the run ends by itself");
    assert_eq!(outcome.lost_link, Some(PortId(1)));
    assert_eq!(control.changes.last(), Some(&("two".into(), LinkChange::Now(Link::Gone))));
}
