//! A workload like that of RDMC, section 5.2.2 (figure 9): a generator writes each object to three of 15
//! hosts. Object sizes are distributed like those of Microsoft's Cosmos: from hundreds of bytes to hundreds
//! of megabytes, with median 12 MB and mean 29 MB. The trace itself is not public.

use crate::model::{Network, Object, run};
use crate::{Algorithm, Schedule};
use switch::Rng;

const MB: f64 = 1e6;
/// Bytes of a block.
pub const BLOCK: u64 = 1 << 20;
/// Rate of each host's port, in bits per second.
pub const RATE_BPS: f64 = 100e9;

/// Returns the sizes of `count` objects in bytes, from a log-normal distribution with the median and mean of
/// Cosmos: the mean of the logarithm is that of the median, and its variance is twice the logarithm of mean
/// over median. Sizes are clamped to 300 bytes to 900 MB.
pub fn sizes(count: usize, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut uniform = || rng.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    let sigma = (2.0 * (29.0_f64 / 12.0).ln()).sqrt();
    let mut normal = || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (core::f64::consts::TAU * uniform()).cos();
    (0..count).map(|_| (12.0 * MB * (sigma * normal()).exp()).clamp(300.0, 900.0 * MB) as u64).collect()
}

/// Returns all groups of three of the hosts 1 to 15; the generator is host 0.
pub fn groups() -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    for a in 1..=15 {
        for b in a + 1..=15 {
            all.extend((b + 1..=15).map(|c| [a, b, c]));
        }
    }
    all
}

/// Returns the duration of each object's transfer in seconds, where the generator sends one object after
/// another.
///
/// # Panics
/// If `groups` is empty, or names a host above 15.
pub fn latencies(algorithm: &Algorithm, sizes: &[u64], groups: &[[usize; 3]]) -> Vec<f64> {
    let network = Network::new(16, RATE_BPS, 1.5e-6);
    let mut rng = Rng::new(3);
    let latency = |bytes: &u64| {
        let [a, b, c] = *rng.pick(groups);
        let schedule = Schedule::new(algorithm.clone(), 4, bytes.div_ceil(BLOCK) as u32);
        let object = Object {
            schedule: schedule.expect("four nodes and at least one block"),
            members: vec![0, a, b, c],
            bytes: *bytes,
            block: BLOCK,
            at: 0.0,
        };
        run(&network, &[object])[0].last()
    };
    sizes.iter().map(latency).collect()
}
