//! Forwarding on virtual devices, without privileges or huge pages.

use crate::common::{Ticks, UntilIdle, capture, config, play, port};
use core::cell::RefCell;
use dataplane::config::Device;
use dataplane::{NoControl, Outcome, Runtime, Stop};
use std::collections::VecDeque;
use std::time::Instant;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{Config, Forward};
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::frames;

fn pairs(ports: u16, pairs: &[(u16, u16)]) -> Config {
    Config {
        ports,
        mode: ForwardingMode::Pairs(pairs.iter().map(|&(a, b)| (PortId(a), PortId(b))).collect()),
        drop: FaultSet::NONE,
        verify_icrc: true,
        verify_udp_checksum: true,
        counted_qps: 16,
        health: true,
    }
}

fn run(runtime: &mut Runtime, function: &Config, workers: usize) -> Outcome {
    let functions = (0..workers).map(|_| Forward::new(function)).collect();
    runtime.run(functions, &mut UntilIdle::new(NoControl), &Stop::new())
}

fn sum(outcome: &Outcome, count: impl Fn(&dataplane::counters::WorkerCounters) -> u64) -> u64 {
    outcome.workers.iter().map(|worker| count(worker)).sum()
}

/// Statistics that a port's driver supports, which determines what can be compared.
#[derive(Clone, Copy)]
enum Driver {
    /// Frames and bytes (pcap)
    CountsBytes,
    /// Only frames (null, ring): all received frames have this length, and all sent ones, unless `sent_bytes`
    /// is their total length
    CountsFrames { len: u64, sent_bytes: Option<u64> },
}
use Driver::{CountsBytes, CountsFrames};

/// Driver that counts only frames, all of 64 bytes.
const FRAMES_OF_64: Driver = CountsFrames { len: 64, sent_bytes: None };

/// Asserts that the workers' counters of each port equal those of its device (`rte_eth_stats`), in frames and
/// bytes.
fn assert_devices_agree(outcome: &Outcome, drivers: &[Driver]) {
    assert_eq!(outcome.devices.len(), drivers.len());
    for (port, driver) in drivers.iter().enumerate() {
        let (device, before) = (outcome.devices[port], outcome.devices_before[port]);
        let rx = sum(outcome, |w| w.ports[port].rx.frames.get());
        let tx = sum(outcome, |w| w.ports[port].tx.frames.get());
        let rx_bytes = sum(outcome, |w| w.ports[port].rx.bytes.get());
        let tx_bytes = sum(outcome, |w| w.ports[port].tx.bytes.get());
        assert_eq!(rx, device.rx_frames - before.rx_frames, "received at port {port}");
        assert_eq!(tx, device.tx_frames - before.tx_frames, "sent at port {port}");
        let bytes = match *driver {
            CountsBytes => (device.rx_bytes - before.rx_bytes, device.tx_bytes - before.tx_bytes),
            CountsFrames { len, sent_bytes } => {
                (device.rx_frames * len, sent_bytes.unwrap_or(device.tx_frames * len))
            }
        };
        assert_eq!((rx_bytes, tx_bytes), bytes, "bytes received and sent at port {port}");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "compares cycles with the time that passes")]
fn replayed_capture_is_forwarded_unchanged() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (capture("rc_write_loss.pcap"), dir.path().join("out.pcap"));
    let ports = vec![
        port("in", play(&input, None)),
        port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }),
    ];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let began = Instant::now();
    let outcome = run(&mut runtime, &pairs(2, &[(0, 1)]), 1);
    let elapsed = began.elapsed();
    drop(runtime);
    let (sent, received_frames) = (frames(&input), frames(&output));
    assert_eq!(received_frames, sent);
    let bytes: usize = sent.iter().map(Vec::len).sum();
    let worker = &outcome.workers[0];
    assert_eq!(worker.ports[0].rx.get(), (sent.len() as u64, bytes as u64));
    assert_eq!(worker.ports[1].tx.get(), (sent.len() as u64, bytes as u64));
    assert_devices_agree(&outcome, &[CountsBytes; 2]);
    let device = outcome.devices[1];
    assert_eq!((device.tx_frames, device.tx_bytes), (sent.len() as u64, bytes as u64));
    assert!(worker.drops.iter().all(|count| count.get() == 0));
    // The driver returns whole bursts until the end of the file, and a burst takes longer than a hundred
    // cycles.
    let bursts = sent.len().div_ceil(32) as u64;
    assert!(worker.busy_turns.get() == bursts && worker.turns.get() > bursts);
    let busy = worker.busy_cycles.get();
    // DPDK rounds the TSC frequency.
    let most = elapsed.as_secs_f64() * 1.1 * outcome.tsc_hz as f64;
    assert!(busy > 100 * bursts && (busy as f64) < most, "{busy} cycles of {most}");
}

#[test]
fn workers_hand_off_frames_to_the_owner_of_the_port() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    // Each of three workers polls a port; the fourth port has one send queue, and therefore one owner.
    let inputs = ["rc_send_64.pcap", "rc_write_64.pcap", "rc_read_4096.pcap"].map(capture);
    let mut ports: Vec<_> = inputs.iter().map(|file| port("in", play(file, None))).collect();
    ports.push(port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }));
    let mut runtime = Runtime::start(config(ports, 3)).unwrap();
    // Every input is forwarded to the output; each pair names the output, and the last pair determines the
    // reverse direction.
    let outcome = run(&mut runtime, &pairs(4, &[(0, 3), (1, 3), (2, 3)]), 3);
    drop(runtime);
    let received_frames = frames(&output);
    let expected: usize = inputs.iter().map(|file| frames(file).len()).sum();
    assert_eq!(received_frames.len(), expected);
    assert!(sum(&outcome, |w| w.handed_off.get()) > 0);
    assert_eq!(sum(&outcome, |w| w.ports[3].tx.frames.get()), expected as u64);
    assert_devices_agree(&outcome, &[CountsBytes; 4]);
    // Each frame is sent as often as it was received, unchanged.
    let mut sent: Vec<_> = inputs.iter().flat_map(|file| frames(file)).collect();
    let mut sorted = received_frames.clone();
    sent.sort();
    sorted.sort();
    assert!(sorted == sent, "frames were changed");
    // The order within each input is preserved.
    for file in &inputs {
        let sent = frames(file);
        let subsequence: Vec<_> = received_frames.iter().filter(|frame| sent.contains(frame)).collect();
        assert_eq!(subsequence, sent.iter().collect::<Vec<_>>(), "{}", file.display());
    }
}

#[test]
fn frames_longer_than_a_buffer_are_oversized() {
    alone!();
    // damaged.pcap contains frames longer than 8 kB; these buffers hold 2 kB.
    let mut input = port("in", play(&capture("damaged.pcap"), None));
    input.mtu = 1500;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.pcap");
    let output = Device::Pcap { rx: vec![], tx: Some(file.clone()), infinite: false };
    let mut runtime = Runtime::start(config(vec![input, port("out", output)], 1)).unwrap();
    let mut function = pairs(2, &[(0, 1)]);
    function.drop = FaultSet::ALL;
    let outcome = run(&mut runtime, &function, 1);
    drop(runtime);
    assert_devices_agree(&outcome, &[CountsBytes; 2]);
    let (sent, received_frames) = (frames(&capture("damaged.pcap")), frames(&file));
    let dropped = sum(&outcome, |w| w.drops.iter().map(switch::counters::Counter::get).sum());
    assert_eq!(
        received_frames.len() as u64 + dropped,
        sent.len() as u64,
        "each frame is forwarded or dropped"
    );
    let mut rest = sent.iter();
    assert!(
        received_frames.iter().all(|frame| rest.any(|sent| sent == frame)),
        "frames were changed or reordered"
    );
    let long = sent.iter().filter(|frame| frame.len() > 2100).count() as u64;
    assert!(long > 0 && received_frames.iter().all(|frame| frame.len() <= 2100));
    let oversized = outcome.workers[0].drops[DropReason::Malformed(rocev2::Fault::Oversized).index()].get();
    assert!(oversized >= long, "{oversized} of {long}");
}

#[test]
fn stop_request_ends_an_endless_run() {
    alone!();
    let ports = vec![port("a", Device::Null { size: 64, copy: false }), port("b", Device::Ring)];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    let stop = Stop::new();
    stop.stop();
    let outcome = runtime.run(vec![Forward::new(&pairs(2, &[(0, 1)]))], &mut NoControl, &stop);
    let worker = &outcome.workers[0];
    let (received, sent) = (worker.received(), worker.ports.iter().map(|p| p.tx.frames.get()).sum::<u64>());
    let dropped: u64 = worker.drops.iter().map(switch::counters::Counter::get).sum();
    assert_eq!(received, sent + dropped, "every frame is accounted for");
    assert_devices_agree(&outcome, &[FRAMES_OF_64; 2]);
}

/// Returns whether every received frame was sent, or dropped with a reason, by the workers' own counters.
/// [`assert_devices_agree`] compares these with the devices' counters.
fn all_accounted_for(outcome: &Outcome) -> bool {
    let dropped = sum(outcome, |w| w.drops.iter().map(switch::counters::Counter::get).sum());
    let received: u64 = outcome.workers.iter().map(|w| w.received()).sum();
    received == sum(outcome, |w| w.ports.iter().map(|p| p.tx.frames.get()).sum()) + dropped
}

#[test]
fn full_port_drops_and_counts() {
    alone!();
    // Frames that the ring returns are sent to it again, in addition to those of the other port.
    let ports = vec![port("source", Device::Null { size: 64, copy: false }), port("ring", Device::Ring)];
    let mut config = config(ports, 1);
    config.ports[0].buffers = 8191;
    let mut runtime = Runtime::start(config).unwrap();
    let function = pairs(2, &[(0, 1), (1, 1)]);
    let outcome = runtime.run(vec![Forward::new(&function)], &mut Ticks(50), &Stop::new());
    assert!(outcome.workers[0].drops[DropReason::PortFull.index()].get() > 0);
    assert!(all_accounted_for(&outcome));
    assert_devices_agree(&outcome, &[FRAMES_OF_64; 2]);
    // A ring returns the frames that were sent to it, and holds no more than its descriptors.
    let ring = outcome.devices[1];
    assert!(ring.rx_frames <= ring.tx_frames && ring.tx_frames - ring.rx_frames <= 1024, "{ring:?}");
}

#[test]
fn full_hand_off_ring_drops_and_counts() {
    alone!();
    // The driver copies 64 zero bytes into each frame.
    let source = || port("source", Device::Null { size: 64, copy: true });
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    // One send queue, which the first worker owns; the second hands off the frames that it receives.
    let sink = port("sink", play(&capture("rc_send_64.pcap"), Some(&output)));
    let mut config = config(vec![source(), source(), sink], 2);
    config.workers.handoff_ring = 1;
    let mut runtime = Runtime::start(config).unwrap();
    let function = pairs(3, &[(0, 2), (1, 2)]);
    let functions = vec![Forward::new(&function), Forward::new(&function)];
    let outcome = runtime.run(functions, &mut Ticks(50), &Stop::new());
    assert!(sum(&outcome, |w| w.drops[DropReason::HandoffFull.index()].get()) > 0);
    assert!(all_accounted_for(&outcome));
    drop(runtime);
    let received_frames = frames(&output);
    assert_eq!(received_frames.len() as u64, sum(&outcome, |w| w.ports[2].tx.frames.get()));
    assert!(received_frames.iter().all(|frame| *frame == [0; 64]), "frames were changed");
    // The second null device also sends the frames that the sink port receives.
    let played: usize = frames(&capture("rc_send_64.pcap")).iter().map(Vec::len).sum();
    let second = CountsFrames { len: 64, sent_bytes: Some(played as u64) };
    assert_devices_agree(&outcome, &[FRAMES_OF_64, second, CountsBytes]);
}

/// Asserts that both prefetch methods are called for each frame before it is handled, and forwards it.
#[derive(Default)]
struct PrefetchOrder {
    tables: RefCell<VecDeque<Vec<u8>>>,
    states: RefCell<VecDeque<Vec<u8>>>,
}

impl Function for PrefetchOrder {
    type Command = ();
    type Event = ();

    fn prefetch_table(&self, frame: &impl Frame, _fetch: impl Fn(*const u8)) {
        self.tables.borrow_mut().push_back(frame.bytes().to_vec());
    }

    fn prefetch_state(&self, frame: &impl Frame, _fetch: impl Fn(*const u8)) {
        assert_eq!(self.tables.borrow_mut().pop_front().as_deref(), Some(frame.bytes()));
        self.states.borrow_mut().push_back(frame.bytes().to_vec());
    }

    fn on_frame<O: Output>(&mut self, frame: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        assert_eq!(self.states.borrow_mut().pop_front().as_deref(), Some(frame.bytes()));
        Verdict::Forward(PortId(1))
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

#[test]
fn prefetch_methods_are_called_before_each_frame() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (capture("rc_write_loss.pcap"), dir.path().join("out.pcap"));
    let ports = vec![
        port("in", play(&input, None)),
        port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }),
    ];
    let mut runtime = Runtime::start(config(ports, 1)).unwrap();
    runtime.run(vec![PrefetchOrder::default()], &mut UntilIdle::new(NoControl), &Stop::new());
    drop(runtime);
    assert_eq!(frames(&output), frames(&input));
}
