//! Which seeds a test runs, and faults that several suites draw.

use sim::{Fault, LinkId, World};
use switch::{Chance, Nanos};

/// Seeds that have failed: a test binary and a seed a line, which `make soak` adds
const FAILED: &str = include_str!("../seeds.txt");

fn read(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} has to be a number, not {value:?}")))
}

/// Returns the seeds of a test: those with which a test of this binary has failed, and `count` from 1 on. Or those that the
/// environment names: `FROM=1000000 SEEDS=50000`.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let from = read("FROM");
    let range = from.unwrap_or(1)..from.unwrap_or(1) + read("SEEDS").unwrap_or(count);
    let of_this = |line: &str| line.strip_prefix(env!("CARGO_CRATE_NAME"))?.strip_prefix(' ')?.parse().ok();
    let failed = FAILED.lines().filter_map(of_this).filter(move |_| from.is_none());
    failed.chain(range)
}

/// Draws how a link fails at a time, and what ends that: in both directions, in one of them, for long packets only, or in that
/// it changes places with another link of its switch.
#[allow(dead_code, reason = "not every test binary cuts links")]
pub(crate) fn cut(world: &World, link: LinkId, at: Nanos) -> (Fault, Fault) {
    // A stream of its own, so that what else is drawn stays what it was.
    let mut chance = Chance::stream(at.0, 0x6375_7473);
    let links = vec![link];
    match chance.below(6) {
        0 => {
            let mtu = *chance.pick(&[128, 300, 700, 1100]);
            return (Fault::Mtu(link, mtu), Fault::Mtu(link, world.mtu(link)));
        }
        1 => {
            let beside: Vec<_> = world
                .links()
                .filter(|other| *other != link && world.ends(*other)[1] == world.ends(link)[1])
                .collect();
            if !beside.is_empty() {
                let other = *chance.pick(&beside);
                return (Fault::Swap(link, other), Fault::Swap(link, other));
            }
        }
        _ => {}
    }
    match world.ends(link).get(chance.below(4) as usize) {
        Some(end) => (Fault::Mute(*end, links.clone()), Fault::Unmute(*end, links)),
        None => (Fault::Cut(links.clone()), Fault::Heal(links)),
    }
}

/// Returns whether a test runs all of its own seeds: then it asserts how often each thing that it is for has happened.
#[allow(dead_code, reason = "not every test binary counts")]
pub(crate) fn are_default() -> bool {
    read("FROM").is_none() && read("SEEDS").is_none()
}
