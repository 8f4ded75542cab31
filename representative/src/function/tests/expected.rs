//! The fast path of an expected beacon has the same effects as the full checks.

use super::*;
use onepipe::control;
use proptest::prelude::*;

/// Parameters of one frame, and whether the timer runs after it
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is drawn independently")]
struct Step {
    link: u8,
    /// Port that the frame arrives on and station that it is from; usually the link's own
    port: u16,
    from: u8,
    v6: bool,
    write: bool,
    /// Nanoseconds from the beginning
    barrier: Option<u64>,
    commit: Option<u64>,
    opcode: u8,
    nothing_follows: bool,
    psns: [u32; 2],
    id: u16,
    ttl: u8,
    udp_checksum: bool,
    damage: Option<(usize, u8)>,
    /// Whether the ICRC is recomputed after the damage
    icrc_fixed: bool,
    timer: bool,
    /// Whether the sender is of the incarnation that the controller has named
    named: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let rarely = |one_in: u32| prop::bool::weighted(1.0 / f64::from(one_in));
    let source = (0u8..4, prop::option::weighted(0.05, 0u16..5), prop::option::weighted(0.05, 0u8..5));
    let times = (prop::option::weighted(0.95, 0u64..3000), prop::option::weighted(0.3, 0u64..3000));
    let kind = (rarely(20), rarely(3), prop::option::weighted(0.05, 0u8..4), rarely(30));
    let counts = (any::<[u32; 2]>(), any::<u16>(), prop::option::weighted(0.05, 1u8..));
    let bad =
        (rarely(20), prop::option::weighted(0.1, (0usize..110, 1u8..)), any::<bool>(), rarely(4), rarely(5));
    (source, times, kind, counts, bad).prop_map(|(source, times, kind, counts, bad)| Step {
        link: source.0,
        port: source.1.unwrap_or(source.0.into()),
        from: source.2.unwrap_or(source.0),
        barrier: times.0,
        commit: times.1,
        v6: kind.0,
        write: kind.1,
        opcode: kind.2.unwrap_or(OnePipeOpcode::BEACON.0),
        nothing_follows: kind.3,
        psns: counts.0,
        id: counts.1,
        ttl: counts.2.unwrap_or(64),
        udp_checksum: bad.0,
        damage: bad.1,
        icrc_fixed: bad.2,
        timer: bad.3,
        named: !bad.4,
    })
}

impl Step {
    fn frame(&self, past: u64) -> Vec<u8> {
        let time = |ns: Option<u64>| ns.map(|ns| at(past + ns));
        let mut header = OnePipe::new(
            OnePipeOpcode(self.opcode),
            time(self.barrier).unwrap_or_default(),
            Psn::new(self.psns[0] & 0xff_ffff),
        );
        header.set_barrier(time(self.barrier));
        header.set_commit(time(self.commit));
        header.set_nothing_follows(self.nothing_follows);
        let qpn = Qpn::new(FIRST_QP.get() + u32::from(self.link));
        let opcode = if self.write { Opcode::UC_WRITE_ONLY } else { Opcode::UD_SEND_ONLY };
        let change = |repr: &mut Repr<'_>| {
            let va = (VA + u64::from(self.link) * Registers::SIZE).into();
            repr.extended.reth = Reth { va, rkey: RKEY.into(), len: 24.into() };
            repr.bth.set_psn(Psn::new(self.psns[1] & 0xff_ffff));
            if !self.named {
                repr.extended.deth = Deth::new(OnePipe::QKEY, Qpn::new(0x43));
            }
            match &mut repr.ip {
                Ip::V4(ip, _) => (ip.id, ip.ttl) = (self.id.into(), self.ttl),
                Ip::V6(ip, _) => ip.hop_limit = self.ttl,
            }
            repr.udp.checksum = u16::from(self.udp_checksum).into();
        };
        let mut frame = packet((self.v6, self.from, OWN), opcode, qpn, header.as_bytes(), change);
        if let Some((offset, by)) = self.damage {
            let offset = offset % frame.len();
            frame[offset] ^= by;
        }
        if let (true, rocev2::Class::Roce(layout)) = (self.icrc_fixed, rocev2::classify(&frame)) {
            let icrc = rocev2::icrc::compute(&frame, &layout);
            frame[layout.icrc()..layout.end()].copy_from_slice(&icrc.to_le_bytes());
        }
        frame
    }
}

/// Counters of the function and of its bridge, the barriers of both sides, and events
type Observed = (String, String, [(Option<Timestamp>, Option<Timestamp>); 2], Vec<Event>);

/// Returns everything that can be observed of a function.
fn observe(function: &mut Representative) -> Observed {
    let counters = format!("{:?}", function.counters());
    let forward = format!("{:?}", function.forward_counters());
    let events = core::iter::from_fn(|| function.poll_event()).collect();
    (counters, forward, [Side::Above, Side::Below].map(|side| function.barriers(side)), events)
}

#[test]
fn fast_path_has_the_effects_of_the_full_checks() {
    let incarnation =
        prop::sample::select(vec![Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host]);
    let drawn = (incarnation, any::<bool>(), prop::collection::vec(step(), 1..100));
    let fast_count = core::cell::Cell::new(0);
    let run = proptest::test_runner::TestRunner::default().run(&drawn, |(incarnation, verify, steps)| {
        fast_count.set(fast_count.get() + compare(incarnation, verify, &steps)?);
        Ok(())
    });
    run.unwrap();
    assert!(fast_count.get() > 1000, "the fast path was taken {} times", fast_count.get());
}

/// Gives each frame to two functions, the second of which forgets the expected beacons before each frame, and
/// compares them. Returns the number of frames for which the first one took the fast path.
fn compare(incarnation: Incarnation, verify: bool, steps: &[Step]) -> Result<u32, TestCaseError> {
    let mut config = commit::controlled(incarnation);
    config.forward.verify_icrc = verify;
    config.forward.verify_udp_checksum = verify;
    config.forward.counted_qps = if verify { 4 } else { 0 };
    // Neighbours have addresses of both versions, only one of which is configured.
    let mut fast = Representative::new(config.clone()).unwrap();
    let mut full = Representative::new(config).unwrap();
    for function in [&mut fast, &mut full] {
        commit::configure(function, 1, [0, 1, 2, 3, control::LOOPBACK].map(commit::counted));
    }
    let mut fast_count = 0;
    for (past, step) in (0..).step_by(500).zip(steps) {
        let frame = step.frame(past);
        for (n, expected) in (0..).zip(&mut full.expected) {
            *expected = Expected::new(PortId(n));
        }
        let template = fast.expected[usize::from(step.link)].template(PortId(step.link.into()));
        fast_count += u32::from(template.is_some_and(|template| template.read(&frame).is_some()));
        let [a, b] = [&mut fast, &mut full].map(|function| {
            let frames = run_frame(function, &frame, PortId(step.port), Nanos(past + 1000));
            let beacons = step.timer.then(|| timer(function, past + 1000));
            (frames, beacons)
        });
        prop_assert_eq!(a, b, "{:?}", step);
        prop_assert_eq!(observe(&mut fast), observe(&mut full), "{:?}", step);
    }
    Ok(fast_count)
}

#[test]
fn expected_beacon_is_relearned_when_a_sender_changes_its_beacons() {
    let mut function = representative(Incarnation::Host);
    let from = |ttl: u8, ns: u64| {
        let header = header(OnePipeOpcode::BEACON, at(ns), Some(at(ns)));
        packet((false, 1, OWN), Opcode::UD_SEND_ONLY, Qpn::new(0x201), header.as_bytes(), |repr| {
            if let Ip::V4(ip, _) = &mut repr.ip {
                ip.ttl = ttl;
            }
        })
    };
    let mut times = (1..).map(|n| 10 * n);
    let mut beacon = |function: &mut Representative, ttl| {
        let frame = from(ttl, times.next().unwrap());
        let is_expected =
            function.expected[1].template(PortId(1)).is_some_and(|template| template.read(&frame).is_some());
        assert_eq!(verdict(function, &frame, 1, 100), Verdict::Consume);
        is_expected
    };
    assert_eq!([64, 64, 63, 64].map(|ttl| beacon(&mut function, ttl)), [false, true, false, true]);
    let relearned = (0..32).position(|_| beacon(&mut function, 60));
    assert_eq!(relearned, Some(15), "one in sixteen of those that differ becomes the expected one");
    assert!(beacon(&mut function, 60) && refused(&function).is_empty());
}
