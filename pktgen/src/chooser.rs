//! Choice among a fixed number of items: round robin, uniform, or by Zipf's law, at the cost of one random
//! number and one table lookup.

use crate::profile::Choice;
use switch::Rng;

/// Chooses among a fixed number of items.
#[derive(Clone, Debug)]
pub(crate) enum Chooser {
    RoundRobin { next: u32, count: u32 },
    Uniform { count: u32 },
    Zipf(AliasTable),
}

impl Chooser {
    pub(crate) fn new(choice: Choice, count: u32) -> Self {
        match choice {
            Choice::RoundRobin => Self::RoundRobin { next: 0, count },
            Choice::Uniform => Self::Uniform { count },
            Choice::Zipf { thousandths } => {
                Self::Zipf(AliasTable::zipf(count, f64::from(thousandths) / 1000.0))
            }
        }
    }

    #[expect(clippy::inline_always, reason = "a call for each packet would cost more than most choices do")]
    #[inline(always)]
    pub(crate) fn choose(&mut self, rng: &mut Rng) -> u32 {
        match self {
            Self::RoundRobin { next, count } => round_robin(next, *count),
            Self::Uniform { count } => ((u64::from(rng.bits() as u32) * u64::from(*count)) >> 32) as u32,
            Self::Zipf(alias) => alias.choose(rng),
        }
    }
}

/// Returns the next of `count` items in round-robin order.
#[inline]
pub(crate) const fn round_robin(next: &mut u32, count: u32) -> u32 {
    let chosen = *next;
    *next = if chosen + 1 >= count { 0 } else { chosen + 1 };
    chosen
}

/// A distribution as Walker's alias table: each column has its own share, and one other item that takes the
/// rest.
#[derive(Clone, Debug)]
pub(crate) struct AliasTable(Box<[Column]>);

#[derive(Clone, Copy, Debug)]
struct Column {
    /// Probability of the own item, in units of 2^-32
    own: u32,
    other: u32,
}

impl AliasTable {
    /// Creates a table in which the k-th of `count` items is chosen with a probability proportional to 1 /
    /// k^`exponent`.
    pub(crate) fn zipf(count: u32, exponent: f64) -> Self {
        let weights: Vec<f64> = (1..=count.max(1)).map(|k| f64::from(k).powf(-exponent)).collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut scaled: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let mut columns: Vec<_> = (0..count.max(1)).map(|n| Column { own: u32::MAX, other: n }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..scaled.len()).partition(|&n| scaled[n] < 1.0);
        while let (Some(&light), Some(&heavy)) = (small.last(), large.last()) {
            small.pop();
            columns[light] = Column { own: (scaled[light] * 4_294_967_296.0) as u32, other: heavy as u32 };
            scaled[heavy] -= 1.0 - scaled[light];
            if scaled[heavy] < 1.0 {
                large.pop();
                small.push(heavy);
            }
        }
        Self(columns.into())
    }

    #[inline]
    pub(crate) fn choose(&self, rng: &mut Rng) -> u32 {
        let bits = rng.bits();
        let column = ((u64::from(bits as u32) * self.0.len() as u64) >> 32) as u32;
        let Column { own, other } = self.0[column as usize];
        if (bits >> 32) as u32 <= own { column } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_follow_the_law() {
        let mut rng = Rng::new(3);
        for exponent in [0.0, 0.99, 1.5] {
            let (count, draws) = (1000, 400_000);
            let alias = AliasTable::zipf(count, exponent);
            let mut counts = vec![0u32; count as usize];
            for _ in 0..draws {
                counts[alias.choose(&mut rng) as usize] += 1;
            }
            let total: f64 = (1..=count).map(|k| f64::from(k).powf(-exponent)).sum();
            // Within five standard deviations of a binomial, for the first ranks and for the tail together
            let check = |count: u32, share: f64, what: &str| {
                let (mean, deviation) =
                    (f64::from(draws) * share, (f64::from(draws) * share * (1.0 - share)).sqrt());
                let off = (f64::from(count) - mean).abs();
                assert!(off < 5.0 * deviation + 1.0, "{what} of {exponent}: {count}, not {mean}");
            };
            for rank in [1, 2, 3, 10] {
                let share = f64::from(rank).powf(-exponent) / total;
                check(counts[rank as usize - 1], share, "rank");
            }
            let tail: f64 = (501..=count).map(|k| f64::from(k).powf(-exponent)).sum();
            check(counts[500..].iter().sum(), tail / total, "the tail");
        }
    }

    #[test]
    fn every_choice_reaches_all_items_of_its_range() {
        let mut rng = Rng::new(1);
        for choice in [Choice::RoundRobin, Choice::Uniform, Choice::Zipf { thousandths: 990 }] {
            for count in [1, 2, 7] {
                let mut chooser = Chooser::new(choice, count);
                let mut seen = vec![false; count as usize];
                for _ in 0..1000 {
                    seen[chooser.choose(&mut rng) as usize] = true;
                }
                assert!(seen.iter().all(|seen| *seen), "{choice:?} of {count}");
            }
        }
        let mut chooser = Chooser::new(Choice::RoundRobin, 3);
        assert_eq!([0; 5].map(|_| chooser.choose(&mut rng)), [0, 1, 2, 0, 1]);
    }
}
