//! A load like that of paper 5.2.2 (figure 9): a generator writes objects to three of 15 hosts each, of sizes like those of
//! Microsoft's Cosmos: from hundreds of bytes to hundreds of megabytes, median 12 MB, mean 29 MB. The trace itself is not public.

use crate::model::{Network, Object, run};
use crate::{Algorithm, Schedule};
use switch::Rng;

const MB: f64 = 1e6;
/// Bytes of a block
pub const BLOCK: u64 = 1 << 20;
/// Bits a second of each host's port
pub const RATE_BPS: f64 = 100e9;

/// The sizes of so many objects, in bytes. A log-normal distribution has both moments: the logarithm's mean is that of the
/// median, and its variance is twice the logarithm of mean to median.
pub fn sizes(count: usize, seed: u64) -> Vec<u64> {
    let mut chance = Rng::new(seed);
    let mut unit = || chance.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    let sigma = (2.0 * (29.0_f64 / 12.0).ln()).sqrt();
    let mut normal = || (-2.0 * (1.0 - unit()).ln()).sqrt() * (core::f64::consts::TAU * unit()).cos();
    (0..count).map(|_| (12.0 * MB * (sigma * normal()).exp()).clamp(300.0, 900.0 * MB) as u64).collect()
}

/// All groups of three of 15 hosts; the generator is host 0
pub fn groups() -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    for a in 1..=15 {
        for b in a + 1..=15 {
            all.extend((b + 1..=15).map(|c| [a, b, c]));
        }
    }
    all
}

/// How long each object takes when the generator sends one after the other (seconds)
pub fn latencies(algorithm: &Algorithm, sizes: &[u64], groups: &[[usize; 3]]) -> Vec<f64> {
    let network = Network::new(16, RATE_BPS, 1.5e-6);
    let mut chance = Rng::new(3);
    let one = |bytes: &u64| {
        let [a, b, c] = *chance.pick(groups);
        let schedule = Schedule::new(algorithm.clone(), 4, bytes.div_ceil(BLOCK) as u32);
        let object = Object {
            schedule: schedule.expect("four nodes and some blocks"),
            members: vec![0, a, b, c],
            bytes: *bytes,
            block: BLOCK,
            at: 0.0,
        };
        run(&network, &[object])[0].last()
    };
    sizes.iter().map(one).collect()
}
