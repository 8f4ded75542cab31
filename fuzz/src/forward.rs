//! Forwards arbitrary frames on any port, between pairs of ports and as a bridge. No frame is changed, and
//! each leaves on an existing port.

use rocev2::ethernet::MacAddr;
use switch::drop::FaultSet;
use switch::forward::config::{ForwardingMode, MacTable};
use switch::forward::{Config, Forward};
use switch::memory::run_frame;
use switch::{Function, Nanos, PortId, Verdict};

const PORTS: u16 = 3;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let mode = if how & 1 == 0 {
        ForwardingMode::Pairs(vec![(PortId(0), PortId(1)), (PortId(2), PortId(2))])
    } else {
        let fixed = vec![(MacAddr([2; 6]), PortId(1))];
        ForwardingMode::Mac(MacTable { capacity: 4, ageing: Nanos::from_secs(1), fixed })
    };
    let mut forward = Forward::new(&Config {
        ports: PORTS,
        mode,
        drop: if how & 2 == 0 { FaultSet::NONE } else { FaultSet::ALL },
        verify_icrc: how & 4 == 0,
        verify_udp_checksum: how & 8 == 0,
        counted_qps: usize::from(how >> 6),
        health: true,
    });
    let mut now = Nanos::ZERO;
    while let Some((&[port, len], after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at(usize::from(len).min(after.len()));
        rest = after;
        now = now + Nanos::from_millis(u64::from(port));
        let (verdict, frames) = run_frame(&mut forward, frame, PortId(u16::from(port) % PORTS), now);
        assert!(
            frames.len() < usize::from(PORTS)
                && frames.iter().all(|(bytes, port)| bytes == frame && port.0 < PORTS)
        );
        if let Verdict::Forward(port) = verdict {
            assert!(port.0 < PORTS);
        }
        while forward.poll_event().is_some() {}
        forward.on_timer(now, &mut switch::memory::FrameCollector::with_room(0));
    }
}
