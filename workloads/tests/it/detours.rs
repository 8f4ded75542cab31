//! 1Pipe representatives that are not next to their switches (1Pipe, section 6.2.3): beacons take a detour
//! over the link whose barrier they carry.

use representative::Refusal;
use rocev2::ethernet::Ethernet;
use rocev2::{Opcode, Packet};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use switch::{Nanos, Probability};
use workloads::onepipe::{Network, Triangle};

/// Builds and runs a triangle of switches. The seed selects the loss and the delay of the link between the
/// switches.
fn lossy(detours: bool, seed: u64) -> Network {
    let mut triangle = Triangle::new(detours);
    triangle.between.delay = Nanos(500 + seed % 16 * 1_000);
    triangle.between.jitter = Nanos(seed % 4 * 300);
    for link in [&mut triangle.between, &mut triangle.link] {
        link.loss = Probability::percent(seed % 5);
        link.rate_bps = [10_000_000_000, 100_000_000_000][seed as usize % 2];
    }
    triangle.skew_ns = 300;
    let mut made = triangle.build(seed);
    made.world.run_until(triangle.lasts + Nanos::from_micros(150));
    made
}

#[test]
fn barriers_are_never_too_high_wherever_representatives_are() {
    for seed in 0..32 {
        let made = lossy(true, seed);
        assert_eq!(made.check(None), Ok(()), "seed {seed}");
        for host in made.each_host() {
            assert!(
                host.delivered.len() > 30,
                "seed {seed}: only {} messages delivered",
                host.delivered.len()
            );
        }
        assert!(made.check_fates().is_ok(), "seed {seed}: {:?}", made.check_fates());
        for why in Refusal::ALL {
            assert_eq!(made.refused(why), 0, "seed {seed}: {why:?}");
        }
    }
}

/// Without detours, the hazard that the paper warns of occurs: a beacon on another route overtakes the
/// messages that its barrier covers.
#[test]
fn without_detours_barriers_are_too_high() {
    let too_high = (0..32).filter(|&seed| lossy(false, seed).check(None).is_err()).count();
    assert!(too_high > 16, "barriers are too high in only {too_high} of 32 seeds");
}

/// A capture in memory
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A captured frame: its time in nanoseconds, and its bytes
type CapturedFrame = (u64, Vec<u8>);

impl Shared {
    fn frames(&self) -> Vec<CapturedFrame> {
        let bytes = self.0.lock().unwrap();
        let mut rest = &bytes[24..];
        let mut frames = Vec::new();
        while let Some((head, after)) = rest.split_first_chunk::<16>() {
            let [seconds, nanos, len, _] =
                [0, 4, 8, 12].map(|at| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
            let (frame, after) = after.split_at(len as usize);
            frames.push((u64::from(seconds) * 1_000_000_000 + u64::from(nanos), frame.to_vec()));
            rest = after;
        }
        frames
    }
}

/// Returns the number of IP headers of a frame, the addresses of its innermost packet and its PSN, or `None`
/// if it is not a beacon sent as a WRITE.
fn beacon(frame: &[u8]) -> Option<(usize, [u8; 4], [u8; 4], u32)> {
    let mut at = Ethernet::LEN;
    let mut headers = 1;
    while frame[at + 9] == rocev2::ipv4::PROTOCOL {
        at += 20;
        headers += 1;
    }
    let plain = [&frame[..Ethernet::LEN], &frame[at..]].concat();
    let packet = Packet::parse(&plain)?;
    let ip = packet.ipv4()?;
    let write = packet.layout().opcode() == Opcode::UC_WRITE_ONLY;
    write.then(|| (headers, ip.src, ip.dst, packet.bth().psn().get()))
}

/// Returns the route of the first beacon from one representative to another: the links that it passed, each
/// as the names of its two ends, and its number of IP headers on each.
fn route(detours: bool, from: u8, to: u8) -> Vec<(String, usize)> {
    let mut triangle = Triangle::new(detours);
    triangle.lasts = Nanos(1);
    let mut made = triangle.build(1);
    let links: Vec<_> = made.world.links().map(|link| (link, Shared::default())).collect();
    for (link, file) in &links {
        made.world.capture(*link, file.clone());
    }
    made.world.run_until(Nanos::from_micros(100));
    made.world.finish_captures().unwrap();
    let mut route = Vec::new();
    for (link, file) in links {
        let [a, b] = made.world.ends(link).map(|end| made.world.name(end).to_owned());
        for (at, frame) in file.frames() {
            if let Some((headers, src, dst, 0)) = beacon(&frame)
                && (src, dst) == ([10, 1, 0, from], [10, 1, 0, to])
            {
                route.push((at, format!("{a} - {b}"), headers));
            }
        }
    }
    // Both representatives have accepted beacons.
    for keeper in 0..2 {
        let counters = made.counters(keeper);
        assert!(counters.writes.get() > 10, "only {} beacons accepted", counters.writes.get());
    }
    assert!(Refusal::ALL.iter().all(|&why| made.refused(why) == 0));
    route.sort_unstable();
    route.into_iter().map(|(_, link, headers)| (link, headers)).collect()
}

#[test]
fn a_beacon_passes_the_link_that_it_covers() {
    for (from, to) in [(0, 1), (1, 0)] {
        let expected = vec![
            (format!("switch 2 - representative {from}"), 3),
            (format!("switch 2 - switch {from}"), 3),
            ("switch 0 - switch 1".to_owned(), 2),
            (format!("switch 2 - switch {to}"), 1),
            (format!("switch 2 - representative {to}"), 1),
        ];
        assert_eq!(route(true, from, to), expected);
        let without_detour = vec![
            (format!("switch 2 - representative {from}"), 1),
            (format!("switch 2 - representative {to}"), 1),
        ];
        assert_eq!(route(false, from, to), without_detour);
    }
}
