//! Packet trace: the received frame, the frames sent for it, lost frames, and always the result.

use crate::common::{capture, config, port};
use dataplane::config::Device;
use dataplane::watch::{FrameFilter, FrameRecord, MAX_SNAP_LEN, TraceAction, Watcher, watches};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Runtime, Stop};
use std::sync::Arc;
use switch::{DropReason, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;

const IN: PortId = PortId(0);
const OUT: PortId = PortId(1);
/// Number of copies of each frame that are sent before the frame itself
const COPIES: usize = 40;
/// Number of copies that are recorded
const SHOWN: usize = 32;

/// Sends copies of each frame, and then the frame itself.
struct Scattering;

impl Function for Scattering {
    type Command = ();
    type Event = ();

    /// The other port only sends.
    fn receives_from(&self, port: PortId) -> bool {
        port == IN
    }

    fn on_frame<O: Output>(&mut self, frame: &mut O::Frame, _: PortId, _: Nanos, out: &mut O) -> Verdict {
        for number in 0..COPIES {
            // One copy has several segments.
            let copy = if number == 1 { out.share(frame, 20, 4) } else { out.copy(frame) };
            let copy = copy.expect("a buffer");
            _ = out.send(copy, OUT);
        }
        Verdict::Forward(OUT)
    }

    fn on_timer<O: Output>(&mut self, _: Nanos, _: &mut O) {}

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn on_command(&mut self, (): (), _: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Traces packets until a condition is met.
struct Watching<P> {
    watcher: Option<Watcher>,
    condition: P,
    found: Option<Vec<FrameRecord>>,
    snap_len: usize,
    ticks: u32,
}

impl<P: Fn(&[FrameRecord]) -> bool> ControlHandler<Scattering> for Watching<P> {
    fn on_event(&mut self, _: usize, (): (), _: &mut ControlOutput<'_, Scattering>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Scattering>) {}

    fn on_tick(&mut self, _: &Live<'_>, out: &mut ControlOutput<'_, Scattering>) -> bool {
        let watcher = self.watcher.get_or_insert_with(|| {
            let wanted: FrameFilter = Arc::new(|_: &[u8]| true);
            let (mut ends, mut watchers) = watches(1, &wanted, 256, self.snap_len);
            assert!(out.watch(0, ends.pop()).is_ok(), "there is room for it");
            watchers.pop().expect("one for each worker")
        });
        while let Some(first) = watcher.pop() {
            let event_id = first.event_id;
            let mut records = vec![first];
            while let Some(next) = watcher.next_of(event_id) {
                records.push(next);
            }
            if (self.condition)(&records) {
                self.found = Some(records);
                return false;
            }
        }
        self.ticks += 1;
        assert!(self.ticks < 100_000, "the condition was never met");
        true
    }
}

/// Returns the records of the first frame sent to this device that meet the condition, with this length of copies.
fn seen(device: Device, snap_len: usize, condition: impl Fn(&[FrameRecord]) -> bool) -> Vec<FrameRecord> {
    let endless = Device::Pcap { rx: vec![capture("rc_send_64.pcap")], tx: None, infinite: true };
    let mut config = config(vec![port("in", endless), port("out", device)], 1);
    for port in &mut config.ports {
        port.mtu = 1500;
    }
    let mut runtime = Runtime::start(config).unwrap();
    let mut control = Watching { watcher: None, condition, found: None, snap_len, ticks: 0 };
    let outcome = runtime.run(vec![Scattering], &mut control, &Stop::new());
    // Received frames are counted with a trace as without one; the counters equal the device's.
    let (counted, device) = (outcome.workers[0].ports[0].rx.get(), outcome.devices[0]);
    assert_eq!(counted, (device.rx_frames, device.rx_bytes));
    let records = control.found.expect("the run ended because the condition was met");
    // The received frame, some of the copies, and the result, with the number of copies that were not
    // recorded
    assert_eq!((records.len(), records[0].action), (1 + SHOWN + 1, TraceAction::In(IN)));
    assert_eq!(records[SHOWN].omitted, 0);
    assert_eq!(records[SHOWN + 1].omitted, (COPIES - SHOWN) as u64);
    assert!(
        records.iter().all(|record| record.len == records[0].len && record.bytes() == records[0].bytes())
    );
    let kept = |record: &FrameRecord| record.bytes().len() == snap_len.min(record.len as usize);
    assert!(records.iter().all(kept), "{records:?}");
    records
}

#[test]
fn result_of_a_frame_is_recorded_however_many_frames_were_sent_for_it() {
    alone!();
    let records = seen(Device::Null { size: 64, copy: false }, MAX_SNAP_LEN, |_| true);
    assert!(records[1..].iter().all(|record| record.action == TraceAction::Out(OUT)), "{records:?}");
}

#[test]
fn frames_that_a_full_port_does_not_accept_are_recorded_as_lost() {
    alone!();
    // No worker receives from the ring: it fills, then the worker's queue in front of it.
    let lost = TraceAction::Lost(OUT, DropReason::PortFull);
    let records = seen(Device::Ring, 50, |records| records.last().is_some_and(|last| last.action == lost));
    // The ring does not empty any more, so frames before the first lost one may have been sent, and none
    // after it.
    let first = records.iter().position(|record| record.action == lost).unwrap();
    assert!(records[1..first].iter().all(|record| record.action == TraceAction::Out(OUT)), "{records:?}");
    assert!(records[first..].iter().all(|record| record.action == lost), "{records:?}");
}
