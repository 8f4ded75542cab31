//! Arbitrary bytes at a tunnel endpoint: a frame passes unchanged, loses one header, or is dropped and
//! counted once.

use core::net::IpAddr;
use rocev2::ethernet::MacAddr;
use switch::forward::{self, Forward};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::tunnel::{Config, InnerForwarding, Refusal, Tunnel};
use switch::{Frame, Function, Nanos, PortId, Verdict};

/// The switch's MAC address. The fuzzer finds the other values itself.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, rest)) = input.split_first() else { return };
    let [end, source, next] = [101u8, 1, 2].map(|n| [IpAddr::from([10, 0, 0, n]), IpAddr::from([n; 16])]);
    let onward = if how & 1 == 0 {
        InnerForwarding::Function
    } else {
        InnerForwarding::NextHops(next.map(|address| (address, MacAddr([2; 6]))).into())
    };
    let config = Config { mac: MAC, endpoints: end.into(), sources: source.into(), inner_forwarding: onward };
    let mut tunnel = Tunnel::new(&config, Forward::new(&forward::Config::bridge(3, 4)));
    let mut bytes = rest.to_vec();
    if how & 2 == 0 && bytes.len() >= 6 {
        bytes[..6].copy_from_slice(&MAC.0);
    }
    let mut frame =
        if how & 4 == 0 { MemoryFrame::new(bytes.clone()) } else { MemoryFrame::truncated(bytes.clone()) };
    let verdict = tunnel.on_frame(&mut frame, PortId(0), Nanos::ZERO, &mut FrameCollector::with_room(3));
    let counters = tunnel.counters();
    let refused: u64 = Refusal::ALL.iter().map(|&why| counters.refused(why)).sum();
    let (terminated, _) = counters.terminated.get();
    assert!(refused + terminated <= 1);
    assert!(refused == 0 || matches!(verdict, Verdict::Drop(_)));
    if terminated == 1 {
        assert!(frame.bytes().len() + 20 <= bytes.len());
    } else {
        assert_eq!(frame.bytes(), bytes);
    }
}
