//! Copies that share a payload, on virtual devices.

use crate::common::{Ticks, UntilIdle, capture, config, play, port};
use dataplane::config::{Device, Port};
use dataplane::{NoControl, Runtime, Stop};
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::frames;

const COPIES: u8 = 5;
const HEAD: usize = 42;
const TAIL: usize = 4;

/// Sends each frame, and before it copies that share its middle and differ in the bytes around it.
struct Shares {
    /// Whether each port prefers to share a payload of this length
    preferred: Vec<(usize, Vec<bool>)>,
}

impl Function for Shares {
    type Command = ();
    type Event = ();

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        _now: Nanos,
        out: &mut O,
    ) -> Verdict {
        for (len, preferred) in &self.preferred {
            let now: Vec<_> = (0..).map(PortId).take(preferred.len()).collect();
            let now: Vec<_> = now.iter().map(|port| out.prefers_sharing(*port, *len)).collect();
            assert_eq!(now, *preferred, "{len} bytes");
        }
        let len = frame.bytes().len();
        for number in 1..=COPIES {
            let bytes = frame.bytes_mut();
            (bytes[0], bytes[len - 1]) = (number, number);
            let copy = out.share(frame, HEAD, TAIL).expect("three buffers");
            assert_eq!((copy.bytes(), copy.is_whole()), (&frame.bytes()[..HEAD], false));
            out.send(copy, PortId(1)).expect("room");
        }
        let bytes = frame.bytes_mut();
        (bytes[0], bytes[len - 1]) = (0, 0);
        Verdict::Forward(PortId(1))
    }

    fn on_timer<O: Output>(&mut self, _now: Nanos, _out: &mut O) {}

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn on_command(&mut self, (): (), _now: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

#[test]
fn each_copy_has_its_own_ends_and_the_common_middle() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (capture("ipv6_rc_write_4096.pcap"), dir.path().join("out.pcap"));
    let record = Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false };
    let out = Port { share_from: Some(100), ..port("out", record) };
    let mut runtime = Runtime::start(config(vec![port("in", play(&input, None)), out], 1)).unwrap();
    let preferred = vec![(99, vec![false, false]), (100, vec![false, true])];
    let outcome = runtime.run(vec![Shares { preferred }], &mut UntilIdle::new(NoControl), &Stop::new());
    drop(runtime);
    let (sent, received_frames) = (frames(&input), frames(&output));
    assert_eq!(received_frames.len(), sent.len() * usize::from(COPIES + 1));
    for (original, copies) in sent.iter().zip(received_frames.chunks(usize::from(COPIES + 1))) {
        let len = original.len();
        for (number, copy) in (1..=COPIES).chain([0]).zip(copies) {
            assert_eq!((copy.len(), copy[0], copy[len - 1]), (len, number, number));
            assert_eq!(copy[1..len - 1], original[1..len - 1]);
        }
    }
    let bytes: usize = received_frames.iter().map(Vec::len).sum();
    assert_eq!(outcome.workers[0].ports[1].tx.get(), (received_frames.len() as u64, bytes as u64));
}

#[test]
fn no_buffer_is_lost() {
    alone!();
    // Plays endlessly, with a pool that a hundred bursts would empty if a buffer were not returned.
    let input = capture("ipv6_rc_write_4096.pcap");
    let device = Device::Pcap { rx: vec![input], tx: None, infinite: true };
    let ports = vec![port("in", device), port("out", Device::Null { size: 64, copy: false })];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let outcome = runtime.run(vec![Shares { preferred: vec![] }], &mut Ticks(300), &Stop::new());
    let worker = &outcome.workers[0];
    assert!(worker.ports[0].rx.frames.get() > 10_000, "{} frames", worker.ports[0].rx.frames.get());
    assert!(worker.drops.iter().all(|count| count.get() == 0));
}

#[test]
fn drivers_with_multi_segment_support_get_shared_payloads() {
    alone!();
    let ports = vec![
        port("in", play(&capture("rc_write_64.pcap"), None)),
        port("out", Device::Null { size: 64, copy: false }),
        port("ring", Device::Ring),
    ];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let preferred = vec![(3071, vec![false; 3]), (3072, vec![false, false, true])];
    let outcome = runtime.run(vec![Shares { preferred }], &mut Ticks(100), &Stop::new());
    assert!(outcome.workers[0].ports[1].tx.frames.get() > 0);
}
