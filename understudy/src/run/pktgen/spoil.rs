//! Why a run's numbers are not to be believed: what went wrong on this side of the wire.

use dataplane::config::{Device, Port};
use dataplane::{DeviceCounters, Outcome};
use pktgen::{Counters, Pktgen, Profile, Unit};
use std::time::{Duration, Instant};
use switch::counters::FrameCounter;
use switch::{DropReason, Function as _, PortId};

/// Part of what was asked for that a rate may be off
const RATE_TOLERANCE: f64 = 0.005;
/// How often ports are asked whether they have a link
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why a run's numbers are not to be believed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Spoil {
    /// A word for it
    pub(crate) reason: &'static str,
    /// What happened, in a sentence
    pub(crate) what: String,
}

/// A port lost its peer, or its link.
pub(super) fn port_down(name: &str, what: &str, time: Duration) -> Spoil {
    Spoil {
        reason: "port_down",
        what: format!("port {name} lost its {what} after {:.3} s", time.as_secs_f64()),
    }
}

/// The links of ports whose drivers tell of nothing, looked at now and then.
pub(crate) struct Links {
    /// By port: its number, its name, and whether it has one
    ports: Vec<(usize, String, bool)>,
    next: Option<Instant>,
}

impl Links {
    /// Of these ports, by number and name.
    pub(crate) fn new(ports: impl Iterator<Item = (usize, String)>) -> Self {
        let mut ports: Vec<_> = ports.map(|(index, name)| (index, name, false)).collect();
        // One port may both send and receive.
        ports.dedup_by_key(|port| port.0);
        Self { ports, next: None }
    }

    /// Looks, if it is time: which were lost, once the run has begun.
    pub(crate) fn look(
        &mut self,
        links: impl FnOnce() -> Vec<bool>,
        now: Instant,
        began: bool,
        time: Duration,
    ) -> Vec<Spoil> {
        if self.next.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + LOOK_EVERY);
        let links = links();
        let mut lost = Vec::new();
        for (index, name, up) in &mut self.ports {
            let was = core::mem::replace(up, links[*index]);
            if was && !*up && began {
                eprintln!("Port {name} has lost its link.");
                lost.push(port_down(name, "link", time));
            }
        }
        lost
    }

    pub(super) fn all_up(&self) -> bool {
        self.ports.iter().all(|port| port.2)
    }

    /// Those that never came up.
    pub(super) fn down_at_the_start(&self) -> impl Iterator<Item = Spoil> {
        self.ports.iter().filter(|port| !port.2).map(|(_, name, _)| Spoil {
            reason: "port_down",
            what: format!("port {name} had no link when it began"),
        })
    }
}

/// What is wrong where nothing is answered
pub(super) const NO_ANSWER: &str =
    "no answer came: is there a responder (`respond = true`), or a host at the other end?";

/// A stream in a sentence: who is called `stream 1` is that already.
pub(super) fn called(name: &str) -> String {
    if name.starts_with("stream ") { name.into() } else { format!("stream {name}") }
}

/// Streams that did not keep their rates, or did not answer.
pub(super) fn by_streams(profile: &Profile, counters: &Counters) -> Vec<Spoil> {
    let mut spoils = Vec::new();
    for (stream, counters) in profile.streams.iter().zip(&counters.streams) {
        let who = called(&stream.name);
        let off = |part: &f64| (part - 1.0).abs() > RATE_TOLERANCE;
        if let Some(part) = counters.part_of_rate(stream).filter(off) {
            let given_up = counters.forfeited.get();
            let unit = if stream.rate.unit() == Some(Unit::Bits) { "bits" } else { "packets" };
            let waited = counters.waited.get();
            let advice = if waited > 0 && counters.answered.get() == 0 {
                NO_ANSWER.into()
            } else if waited > 0 {
                format!(
                    "{waited} times its requests waited for answers: allow more `outstanding` or `qps`, ask for less, or give it a \
                     CPU of its own"
                )
            } else {
                "ask for less, or give it a faster port or a CPU of its own".into()
            };
            spoils.push(Spoil {
                reason: "rate_not_reached",
                what: format!(
                    "{who} sent {:.2} % of what its rate was due while it sent, and gave up {given_up} {unit} that came too \
                     late; {advice}",
                    part * 100.0
                ),
            });
        }
        let unable = counters.unable.get();
        if unable > 0 {
            spoils.push(Spoil {
                reason: "unable_to_answer",
                what: format!(
                    "{who}: {unable} answers could not be given here: the port had no room, no packet buffer was free, or a \
                     request named memory that is not there"
                ),
            });
        }
    }
    spoils
}

/// Frames that were dropped before they reached a port.
pub(super) fn by_drops(outcome: &Outcome) -> impl Iterator<Item = Spoil> {
    DropReason::all().filter_map(|reason| {
        let frames: u64 = outcome.workers.iter().map(|worker| worker.drops[reason.index()].get()).sum();
        (frames > 0).then(|| Spoil {
            reason: reason.name(),
            what: format!("{frames} frames were dropped here: {}", reason.explanation()),
        })
    })
}

/// Which ports the generator fetches frames from. What comes to the others, and is lost there, is nobody's.
pub(crate) fn fetched(ports: &[Port], function: &Pktgen) -> Vec<bool> {
    (0..ports.len() as u16).map(|port| function.receives_from(PortId(port))).collect()
}

/// What the devices of ports say, of which some are `fetched` from: what they lost, and whether they counted what we did.
pub(crate) fn by_devices(
    ports: &[Port],
    fetched: &[bool],
    outcome: &Outcome,
    others: &[Spoil],
) -> Vec<Spoil> {
    let mut spoils = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let (mut before, mut after) = (outcome.devices_before[index], outcome.devices[index]);
        if !fetched[index] {
            (before, after) = (before.sending(), after.sending());
        }
        for (count, reason, what) in [
            (after.missed, "missed", "frames were lost before they were fetched"),
            (after.rx_errors, "rx_errors", "frames were received with an error"),
            (
                after.no_buffer,
                "no_buffer",
                "times no packet buffer was free for a frame that came: raise `buffers`",
            ),
            (after.tx_errors, "tx_errors", "frames could not be sent by the device"),
        ] {
            if count > 0 {
                spoils.push(Spoil { reason, what: format!("port {}: {count} {what}", port.name) });
            }
        }
        let sum = |of: fn(&dataplane::counters::PortCounters) -> &FrameCounter| {
            outcome.workers.iter().map(|worker| of(&worker.ports[index]).frames.get()).sum()
        };
        // A memif port counts anew with a new peer.
        let went = others.iter().any(|spoil| spoil.reason == "port_down");
        if !went {
            spoils.extend(disagreement(port, before, after, (sum(|port| &port.rx), sum(|port| &port.tx))));
        }
    }
    spoils
}

/// What a device says that it received and sent, compared with what we did.
fn disagreement(
    port: &Port,
    before: DeviceCounters,
    after: DeviceCounters,
    (rx, tx): (u64, u64),
) -> Option<Spoil> {
    // A NIC counts what comes before somebody fetches it: its queue may have held some at the beginning, and at the end.
    let held = if matches!(port.device, Device::Pci { .. }) { u64::from(port.descriptors) } else { 0 };
    let (says_rx, says_tx) =
        (after.rx_frames.wrapping_sub(before.rx_frames), after.tx_frames.wrapping_sub(before.tx_frames));
    let wrong = says_tx != tx || says_rx.abs_diff(rx) > held;
    wrong.then(|| Spoil {
        reason: "port_disagrees",
        what: format!(
            "port {} says that it received {says_rx} frames and sent {says_tx}; {rx} were fetched, and {tx} taken from us",
            port.name
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_link_that_goes_is_seen_once() {
        let names = [(2, "b".to_owned()), (2, "b".to_owned()), (0, "a".to_owned())];
        let mut links = Links::new(names.into_iter());
        let (mut now, began) = (crate::run::now(), Duration::from_millis(1_500));
        let mut look = |links: &mut Links, up: [bool; 3], running| {
            now += LOOK_EVERY;
            let lost = links.look(|| up.to_vec(), now, running, began);
            assert!(links.look(|| unreachable!("too early"), now, running, began).is_empty());
            lost.into_iter().map(|spoil| spoil.what).collect::<Vec<_>>()
        };
        assert!(!links.all_up());
        assert!(look(&mut links, [true, false, false], false).is_empty(), "it may take its time");
        assert_eq!(
            links.down_at_the_start().map(|spoil| spoil.what).collect::<Vec<_>>(),
            ["port b had no link when it began"]
        );
        assert!(look(&mut links, [true, false, true], false).is_empty() && links.all_up());
        assert!(look(&mut links, [true, false, true], true).is_empty(), "nobody uses the other one");
        assert_eq!(look(&mut links, [true, false, false], true), ["port b lost its link after 1.500 s"]);
        assert!(look(&mut links, [true, false, false], true).is_empty());
        assert!(look(&mut links, [true, true, true], true).is_empty());
        assert_eq!(look(&mut links, [false, true, true], true), ["port a lost its link after 1.500 s"]);
    }

    #[test]
    fn who_gets_no_answer_is_told_so() {
        let profile = super::super::tests::profile(
            "[[pktgen.stream]]\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\noutstanding = 4\n\
             rate = { packets_per_s = 1_000 }\n",
        );
        let counters = Pktgen::new(&profile).unwrap().counters();
        let c = &counters.streams[0];
        c.sent.count_many(10, 1_000);
        c.sending_ns.add(1_000_000_000);
        c.waited.add(7);
        let said = || by_streams(&profile, &counters).into_iter().map(|spoil| spoil.what).collect::<String>();
        assert!(said().starts_with("stream 1 sent 1.00 %") && said().ends_with(NO_ANSWER), "{}", said());
        c.answered.add(1);
        assert!(said().contains("7 times its requests waited for answers: allow more"), "{}", said());
        assert_eq!(called("reads"), "stream reads");
    }

    #[test]
    fn a_device_that_counts_otherwise_is_named() {
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
            disagreement(&port(device), counters(5, 7), after, ours).map(|spoil| spoil.what)
        };
        assert_eq!(check(file(), counters(15, 27), (10, 20)), None);
        let text = check(file(), counters(15, 26), (10, 20)).unwrap();
        assert!(text.contains("received 10 frames and sent 19; 10 were fetched, and 20 taken"), "{text}");
        assert!(check(file(), counters(16, 27), (10, 20)).is_some());
        let nic = || Device::Pci { address: "0000:01:00.0".into(), devargs: Vec::new() };
        assert_eq!(check(nic(), counters(16, 27), (10, 20)), None, "one waits in its queue");
        assert!(check(nic(), counters(15, 28), (10, 20)).is_some(), "what was sent was sent");
    }
}
