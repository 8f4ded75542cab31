//! Reasons why the numbers of a run are not valid: what went wrong on this side of the link.

use dataplane::config::{Device, Port};
use dataplane::{DeviceCounters, Outcome};
use pktgen::{Counters, Pktgen, Profile, RateHistory, Unit};
use std::time::{Duration, Instant};
use switch::counters::FrameCounter;
use switch::metrics::Metrics as _;
use switch::{DropReason, Function as _, PortId};

/// Largest relative deviation of the actual rate from the requested one
const RATE_TOLERANCE: f64 = 0.005;
/// Interval at which the links of ports are checked
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason why the numbers of a run are not valid.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct InvalidReason {
    /// The reason as one word
    pub(crate) reason: &'static str,
    /// Description in a sentence
    pub(crate) what: String,
}

/// Returns the reason that a port lost its peer or its link (`what`) after `time`.
pub(super) fn port_down(name: &str, what: &str, time: Duration) -> InvalidReason {
    InvalidReason {
        reason: "port_down",
        what: format!("port {name} lost its {what} after {:.3} s", time.as_secs_f64()),
    }
}

/// Returns the reason that a memif port had no peer within `seconds`, so that nothing was sent.
pub(super) fn no_peer(port: &Port, seconds: f64) -> InvalidReason {
    let missing = match &port.device {
        Device::Memif { socket, server: true, .. } => format!("no process connected to {}", socket.display()),
        Device::Memif { socket, .. } => format!("no process listened on {}", socket.display()),
        _ => "the port had no peer".into(),
    };
    InvalidReason {
        reason: "no_peer",
        what: format!(
            "nothing was sent, because port {} had no peer: {missing} within {seconds:.1} s; start the process at the \
             other end first, or compare its socket, `id` and role",
            port.name
        ),
    }
}

/// Links of ports whose drivers send no events, which are therefore polled.
pub(crate) struct Links {
    /// Number, name and link state of each port
    ports: Vec<(usize, String, bool)>,
    next: Option<Instant>,
}

impl Links {
    /// Creates the state of these ports, given by number and name.
    pub(crate) fn new(ports: impl Iterator<Item = (usize, String)>) -> Self {
        let mut ports: Vec<_> = ports.map(|(index, name)| (index, name, false)).collect();
        // One port may both send and receive.
        ports.dedup_by_key(|port| port.0);
        Self { ports, next: None }
    }

    /// Checks the links, if the interval has passed. Returns the losses, once the run has begun.
    pub(crate) fn poll(
        &mut self,
        links: impl FnOnce() -> Vec<bool>,
        now: Instant,
        began: bool,
        time: Duration,
    ) -> Vec<InvalidReason> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + LINK_POLL_INTERVAL);
        let links = links();
        let mut lost = Vec::new();
        for (index, name, up) in &mut self.ports {
            let was = core::mem::replace(up, links[*index]);
            if was && !*up && began {
                lost.push(port_down(name, "link", time));
            }
        }
        lost
    }

    pub(super) fn all_up(&self) -> bool {
        self.ports.iter().all(|port| port.2)
    }

    /// Returns the ports whose links never came up.
    pub(super) fn down_at_the_start(&self) -> impl Iterator<Item = InvalidReason> {
        self.ports.iter().filter(|port| !port.2).map(|(_, name, _)| InvalidReason {
            reason: "port_down",
            what: format!("port {name} had no link when sending began"),
        })
    }
}

/// Message for requests without any response
pub(super) const NO_RESPONSE: &str =
    "no response was received; set `respond = true`, or check the host at the other end";

/// Returns a stream's name for a sentence. A default name such as `stream 1` is used as it is.
pub(super) fn stream_title(name: &str) -> String {
    if name.starts_with("stream ") { name.into() } else { format!("stream {name}") }
}

/// Returns the streams that missed their rates or could not respond.
pub(super) fn by_streams(
    profile: &Profile,
    counters: &Counters,
    histories: &[RateHistory],
) -> Vec<InvalidReason> {
    let mut invalid_reasons = Vec::new();
    for ((stream, counters), history) in profile.streams.iter().zip(&counters.streams).zip(histories) {
        let title = stream_title(&stream.name);
        let off = |part: &f64| (part - 1.0).abs() > RATE_TOLERANCE;
        if let Some(part) = history.part(counters).filter(off) {
            let given_up = counters.forfeited.get();
            let unit = if history.rate().unit() == Some(Unit::Bits) { "bits" } else { "packets" };
            let waited = counters.waited.get();
            let advice = if waited > 0 && counters.answered.get() == 0 {
                NO_RESPONSE.into()
            } else if waited > 0 {
                format!(
                    "its requests waited for responses {waited} times: raise `outstanding` or `qps`, lower the rate, or give it a \
                     CPU of its own"
                )
            } else {
                "lower the rate, or give it a faster port or a CPU of its own".into()
            };
            invalid_reasons.push(InvalidReason {
                reason: "rate_not_reached",
                what: format!(
                    "{title} sent {:.2} % of what its rate required, and gave up {given_up} {unit} that were too \
                     late; {advice}",
                    part * 100.0
                ),
            });
        }
        let unable = counters.unable.get();
        if unable > 0 {
            invalid_reasons.push(InvalidReason {
                reason: "unable_to_answer",
                what: format!(
                    "{title}: {unable} responses could not be sent: the port had no room, no packet buffer was free, or a \
                     request was for memory that does not exist"
                ),
            });
        }
    }
    invalid_reasons
}

/// Returns the frames that were dropped before they reached a port.
pub(super) fn by_drops(outcome: &Outcome) -> impl Iterator<Item = InvalidReason> {
    DropReason::all().filter_map(|reason| {
        let frames: u64 = outcome.workers.iter().map(|worker| worker.drops[reason.index()].get()).sum();
        (frames > 0).then(|| InvalidReason {
            reason: reason.name(),
            what: format!("{frames} frames were dropped on this side: {}", reason.explanation()),
        })
    })
}

/// Returns which ports the generator receives from. Frames lost at other ports do not matter.
pub(crate) fn receiving(ports: &[Port], function: &Pktgen) -> Vec<bool> {
    (0..ports.len() as u16).map(|port| function.receives_from(PortId(port))).collect()
}

/// Returns losses that the devices counted, and disagreements between their counters and the worker's.
/// Reception is only checked for ports in `receiving`.
pub(crate) fn by_devices(
    ports: &[Port],
    receiving: &[bool],
    outcome: &Outcome,
    others: &[InvalidReason],
) -> Vec<InvalidReason> {
    let mut invalid_reasons = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let (mut before, mut after) = (outcome.devices_before[index], outcome.devices[index]);
        if !receiving[index] {
            (before, after) = (before.sending(), after.sending());
        }
        for (metric, count) in DeviceCounters::GROUP.metrics().zip(after.values()) {
            if let (Some(reason), 1..) = (metric.reported, count) {
                let what = format!("port {}: {}: {count}", port.name, metric.help);
                invalid_reasons.push(InvalidReason { reason, what });
            }
        }
        let sum = |of: fn(&dataplane::counters::PortCounters) -> &FrameCounter| {
            outcome.workers.iter().map(|worker| of(&worker.ports[index]).frames.get()).sum()
        };
        // A memif port's counters restart with a new peer.
        let peer_lost = others.iter().any(|invalid| invalid.reason == "port_down");
        if !peer_lost {
            invalid_reasons.extend(disagreement(
                port,
                outcome.workers.len(),
                (before, after),
                (sum(|port| &port.rx), sum(|port| &port.tx)),
            ));
        }
    }
    invalid_reasons
}

/// Compares a device's counts of received and sent frames with the worker's.
fn disagreement(
    port: &Port,
    workers: usize,
    (before, after): (DeviceCounters, DeviceCounters),
    (rx, tx): (u64, u64),
) -> Option<InvalidReason> {
    // A NIC counts frames before a worker receives them, so frames in its queues at the beginning and at the end account
    // for a difference. It has a queue for each worker, or as many as the port states.
    let queues = if port.rx_queues == 0 { workers as u64 } else { u64::from(port.rx_queues) };
    let is_nic = matches!(port.device, Device::Pci { .. });
    let held = if is_nic { queues * u64::from(port.descriptors) } else { 0 };
    let (device_rx, device_tx) =
        (after.rx_frames.wrapping_sub(before.rx_frames), after.tx_frames.wrapping_sub(before.tx_frames));
    let wrong = device_tx != tx || device_rx.abs_diff(rx) > held;
    wrong.then(|| InvalidReason {
        reason: "port_disagrees",
        what: format!(
            "port {} counted {device_rx} frames received and {device_tx} sent, but the workers {rx} and {tx}",
            port.name
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_loss_of_a_link_is_reported_once() {
        let names = [(2, "b".to_owned()), (2, "b".to_owned()), (0, "a".to_owned())];
        let mut links = Links::new(names.into_iter());
        let (mut now, began) = (crate::system::now(), Duration::from_millis(1_500));
        let mut poll = |links: &mut Links, up: [bool; 3], running| {
            now += LINK_POLL_INTERVAL;
            let lost = links.poll(|| up.to_vec(), now, running, began);
            assert!(
                links.poll(|| unreachable!("the interval has not passed"), now, running, began).is_empty()
            );
            lost.into_iter().map(|invalid| invalid.what).collect::<Vec<_>>()
        };
        assert!(!links.all_up());
        assert!(
            poll(&mut links, [true, false, false], false).is_empty(),
            "a link may still come up before the start"
        );
        assert_eq!(
            links.down_at_the_start().map(|invalid| invalid.what).collect::<Vec<_>>(),
            ["port b had no link when sending began"]
        );
        assert!(poll(&mut links, [true, false, true], false).is_empty() && links.all_up());
        assert!(poll(&mut links, [true, false, true], true).is_empty(), "the other port is not used");
        assert_eq!(poll(&mut links, [true, false, false], true), ["port b lost its link after 1.500 s"]);
        assert!(poll(&mut links, [true, false, false], true).is_empty());
        assert!(poll(&mut links, [true, true, true], true).is_empty());
        assert_eq!(poll(&mut links, [false, true, true], true), ["port a lost its link after 1.500 s"]);
    }

    #[test]
    fn a_stream_without_responses_is_reported() {
        let profile = crate::functions::pktgen::run::tests::profile(
            "[[pktgen.stream]]\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\noutstanding = 4\n\
             rate = { packets_per_s = 1_000 }\n",
        );
        let counters = Pktgen::new(&profile).unwrap().counters();
        let c = &counters.streams[0];
        c.sent.count_many(10, 1_000);
        c.sending_ns.add(1_000_000_000);
        c.waited.add(7);
        let texts = || {
            let histories: Vec<_> =
                profile.streams.iter().map(|stream| RateHistory::new(stream, 1)).collect();
            by_streams(&profile, &counters, &histories)
                .into_iter()
                .map(|invalid| invalid.what)
                .collect::<String>()
        };
        assert!(texts().starts_with("stream 1 sent 1.00 %") && texts().ends_with(NO_RESPONSE), "{}", texts());
        c.answered.add(1);
        assert!(texts().contains("its requests waited for responses 7 times: raise"), "{}", texts());
        assert_eq!(stream_title("reads"), "stream reads");
    }

    #[test]
    fn a_device_with_different_counts_is_reported() {
        let port = |device| Port {
            name: "x".into(),
            device,
            mtu: 1500,
            rx_queues: 1,
            descriptors: 1024,
            buffers: 4096,
            share_from: None,
        };
        let counters =
            |rx_frames, tx_frames| DeviceCounters { rx_frames, tx_frames, ..DeviceCounters::default() };
        let file = || Device::Pcap { rx: Vec::new(), tx: Some(PathBuf::from("x")), infinite: false };
        let check = |device, after, ours| {
            disagreement(&port(device), 1, (counters(5, 7), after), ours).map(|invalid| invalid.what)
        };
        assert_eq!(check(file(), counters(15, 27), (10, 20)), None);
        let text = check(file(), counters(15, 26), (10, 20)).unwrap();
        assert!(text.contains("counted 10 frames received and 19 sent, but the workers 10 and 20"), "{text}");
        assert!(check(file(), counters(16, 27), (10, 20)).is_some());
        let nic = || Device::Pci { address: "0000:01:00.0".into(), devargs: Vec::new() };
        assert_eq!(check(nic(), counters(16, 27), (10, 20)), None, "one frame waits in the NIC's queue");
        assert!(
            check(nic(), counters(15, 28), (10, 20)).is_some(),
            "a count of sent frames has no tolerance"
        );
    }
}
