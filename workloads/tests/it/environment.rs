//! Selection of the seeds that a test runs, and faults that several suites draw from a seed.

use rocev2::Psn;
use sim::{Fault, Link, LinkId, NodeId, World};
use switch::{Nanos, Rng};

/// Seeds that have failed, one per line with its suite. `make soak` appends to them.
const FAILED: &str = include_str!("../seeds.txt");
/// Seeds that find planted bugs, one per line with its suite and the bug
#[cfg(debug_assertions)]
const PLANTED: &str = include_str!("../planted.txt");

fn read(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("invalid environment variable {name}={value:?}: write a number")),
    )
}

/// Returns the seeds of a test: those with which a test of this suite has failed before, then `count` seeds
/// from 1 on. The environment variable `FROM` sets another first seed and leaves out those that have failed;
/// `SEEDS` sets another count (`FROM=1000000 SEEDS=50000`).
///
/// Panics if one of these variables is not a number.
pub(crate) fn seeds(suite: &'static str, count: u64) -> impl Iterator<Item = u64> {
    let from = read("FROM");
    let range = from.unwrap_or(1)..from.unwrap_or(1) + read("SEEDS").unwrap_or(count);
    let of_suite = move |line: &str| line.strip_prefix(suite)?.strip_prefix(' ')?.parse().ok();
    let failed = FAILED.lines().filter_map(of_suite).filter(move |_| from.is_none());
    failed.chain(range)
}

/// Returns the first seed found that finds a planted bug, and what it finds, see [`understudy_tests::planted`].
#[cfg(debug_assertions)]
pub(crate) fn find_bug<T>(
    suite: &str,
    bug: &dyn core::fmt::Debug,
    all: core::ops::Range<u64>,
    run: impl FnMut(u64) -> Option<T>,
) -> Option<(u64, T)> {
    understudy_tests::planted::find(PLANTED, suite, bug, all, run)
}

/// Draws a fault of a link at time `at`, and the fault that ends it. The fault is a cut in both directions or
/// in one of them, an MTU that is too small for long packets, or a swap with another link of the same switch.
pub(crate) fn cut(world: &World, link: LinkId, at: Nanos) -> (Fault, Fault) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(at.0, 0x6375_7473);
    let links = vec![link];
    match rng.below(6) {
        0 => {
            let mtu = *rng.pick(&[128, 300, 700, 1100]);
            return (Fault::Mtu(link, mtu), Fault::Mtu(link, world.mtu(link)));
        }
        1 => {
            let links_of_switch: Vec<_> = world
                .links()
                .filter(|other| *other != link && world.ends(*other)[1] == world.ends(link)[1])
                .collect();
            if !links_of_switch.is_empty() {
                let other = *rng.pick(&links_of_switch);
                return (Fault::Swap(link, other), Fault::Swap(link, other));
            }
        }
        _ => {}
    }
    match world.ends(link).get(rng.below(4) as usize) {
        Some(end) => (Fault::Mute(*end, links.clone()), Fault::Unmute(*end, links)),
        None => (Fault::Cut(links.clone()), Fault::Heal(links)),
    }
}

/// Draws clock drift in a third of the seeds. Two thirds of the nodes then run too fast or too slow by up to
/// 200 ppm, or by up to 1 % in an eighth of cases; the rate changes once before `until`. Returns whether
/// clocks drift. These clocks stand for CLOCK_MONOTONIC or a CPU's cycle counter, which are never stepped.
pub(crate) fn drift(world: &mut World, nodes: &[NodeId], seed: u64, until: Nanos) -> bool {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x6472_6966);
    if rng.below(3) > 0 {
        return false;
    }
    for node in nodes {
        let max = if rng.below(8) == 0 { 10_000_000 } else { 200_000 };
        let mut ppb = || rng.below(2 * max + 1) as i64 - max as i64;
        let [first, then] = [ppb(), ppb()];
        let at = Nanos(rng.between(1, until.0));
        if rng.below(3) > 0 {
            world.schedule(Nanos::ZERO, Fault::ClockDrift(*node, first));
            world.schedule(at, Fault::ClockDrift(*node, then));
        }
    }
    true
}

/// Changes the UDP source ports of some hosts one to four times before `until`, in a third of the seeds.
pub(crate) fn rehash(world: &mut World, hosts: &[NodeId], seed: u64, until: Nanos) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7265_6861);
    if rng.below(3) > 0 {
        return;
    }
    for _ in 0..rng.between(1, 4) {
        let (host, salt) = (*rng.pick(hosts), rng.bits() as u16);
        world.schedule(Nanos(rng.between(1, until.0)), Fault::Rehash(host, salt));
    }
}

/// In a quarter of the seeds, delays reordered frames and duplicates of a link by 1 ms up to `max`. Returns
/// whether it does. `max` has to be at least 1 ms.
pub(crate) fn late(link: &mut Link, seed: u64, max: Nanos) -> bool {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x6c61_7465);
    let is_late = rng.below(4) == 0;
    if is_late {
        link.reorder_by = Nanos(rng.between(1_000_000, max.0));
    }
    is_late
}

/// Gives a link, and thereby the switch ports at its ends, a short queue (6,000 to 60,000 bytes) in a quarter
/// of the seeds.
pub(crate) fn short_queue(link: &mut Link, seed: u64) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7175_6575);
    if rng.below(4) == 0 {
        link.queue = rng.between(6_000, 60_000) as usize;
    }
}

/// Draws the first PSN of a switch's connections in a third of the seeds: 1 to 64 before the PSN wraps.
pub(crate) fn psns_near_the_wrap(seed: u64) -> Option<Psn> {
    let mut rng = Rng::stream(seed, 0x7772_6170);
    (rng.below(3) == 0).then(|| Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32)))
}

/// Draws whether the NICs of a seed assign the same R_keys after a restart, as they assign the same queue
/// pair numbers: in a third of the seeds.
pub(crate) fn same_keys_after_restart(seed: u64) -> bool {
    Rng::stream(seed, 0x6b65_7973).below(3) == 0
}

/// Returns whether a test runs its own seeds only. If so, it also asserts how often the events occur that it
/// is meant to cover.
pub(crate) fn selects_default_seeds() -> bool {
    read("FROM").is_none() && read("SEEDS").is_none()
}
