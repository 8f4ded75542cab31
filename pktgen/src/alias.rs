//! Which of many: in turn, evenly by chance, or by Zipf's law, at the cost of one random number and one look into a table.

use crate::profile::Choice;
use switch::Rng;

/// A choice among a fixed number.
#[derive(Clone, Debug)]
pub(crate) enum Chooser {
    Turn { next: u32, of: u32 },
    Uniform { of: u32 },
    Zipf(Alias),
}

impl Chooser {
    pub(crate) fn new(choice: Choice, of: u32) -> Self {
        match choice {
            Choice::Turn => Self::Turn { next: 0, of },
            Choice::Uniform => Self::Uniform { of },
            Choice::Zipf { thousandths } => Self::Zipf(Alias::zipf(of, f64::from(thousandths) / 1000.0)),
        }
    }

    #[expect(clippy::inline_always, reason = "a call for each packet would cost more than most choices do")]
    #[inline(always)]
    pub(crate) fn choose(&mut self, chance: &mut Rng) -> u32 {
        match self {
            Self::Turn { next, of } => turn(next, *of),
            Self::Uniform { of } => ((u64::from(chance.bits() as u32) * u64::from(*of)) >> 32) as u32,
            Self::Zipf(alias) => alias.choose(chance),
        }
    }
}

/// One of so many after the other.
#[inline]
pub(crate) const fn turn(next: &mut u32, of: u32) -> u32 {
    let chosen = *next;
    *next = if chosen + 1 >= of { 0 } else { chosen + 1 };
    chosen
}

/// A distribution as Walker's alias table: each column has a share of its own, and one other that takes the rest.
#[derive(Clone, Debug)]
pub(crate) struct Alias(Box<[Column]>);

#[derive(Clone, Copy, Debug)]
struct Column {
    /// Of 2^32
    own: u32,
    other: u32,
}

impl Alias {
    /// The k-th of `of` is chosen with a chance proportional to 1 / k^`exponent`.
    pub(crate) fn zipf(of: u32, exponent: f64) -> Self {
        let weights: Vec<f64> = (1..=of.max(1)).map(|k| f64::from(k).powf(-exponent)).collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let mut columns: Vec<_> = (0..of.max(1)).map(|n| Column { own: u32::MAX, other: n }).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(|&n| left[n] < 1.0);
        while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
            small.pop();
            columns[poor] = Column { own: (left[poor] * 4_294_967_296.0) as u32, other: rich as u32 };
            left[rich] -= 1.0 - left[poor];
            if left[rich] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        Self(columns.into())
    }

    #[inline]
    pub(crate) fn choose(&self, chance: &mut Rng) -> u32 {
        let bits = chance.bits();
        let column = ((u64::from(bits as u32) * self.0.len() as u64) >> 32) as u32;
        let Column { own, other } = self.0[column as usize];
        if (bits >> 32) as u32 <= own { column } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_is_as_frequent_as_its_law_says() {
        let mut chance = Rng::new(3);
        for exponent in [0.0, 0.99, 1.5] {
            let (of, draws) = (1000, 400_000);
            let alias = Alias::zipf(of, exponent);
            let mut counts = vec![0u32; of as usize];
            for _ in 0..draws {
                counts[alias.choose(&mut chance) as usize] += 1;
            }
            let total: f64 = (1..=of).map(|k| f64::from(k).powf(-exponent)).sum();
            // Five standard deviations of a binomial, for the first ranks and for the tail together
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
            let tail: f64 = (501..=of).map(|k| f64::from(k).powf(-exponent)).sum();
            check(counts[500..].iter().sum(), tail / total, "the tail");
        }
    }

    #[test]
    fn all_choices_stay_in_range_and_reach_all() {
        let mut chance = Rng::new(1);
        for choice in [Choice::Turn, Choice::Uniform, Choice::Zipf { thousandths: 990 }] {
            for of in [1, 2, 7] {
                let mut chooser = Chooser::new(choice, of);
                let mut seen = vec![false; of as usize];
                for _ in 0..1000 {
                    seen[chooser.choose(&mut chance) as usize] = true;
                }
                assert!(seen.iter().all(|seen| *seen), "{choice:?} of {of}");
            }
        }
        let mut turn = Chooser::new(Choice::Turn, 3);
        assert_eq!([0; 5].map(|_| turn.choose(&mut chance)), [0, 1, 2, 0, 1]);
    }
}
