//! Numbers of a scenario, fixed or drawn.

use switch::Rng;

/// A number, or a range from which the seed draws one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRange {
    /// Lower bound, inclusive
    pub low: i64,
    /// Upper bound, inclusive
    pub high: i64,
}

impl NumberRange {
    /// Returns a fixed number.
    pub const fn fixed(value: i64) -> Self {
        Self { low: value, high: value }
    }

    /// Returns the number, once it is drawn.
    pub const fn value(self) -> i64 {
        self.low
    }

    /// Returns a drawn flag: true unless 0.
    pub const fn is_true(self) -> bool {
        self.low != 0
    }

    pub(super) fn draw(&mut self, rng: &mut Rng) {
        let span = self.high.abs_diff(self.low);
        *self = Self::fixed(self.low.saturating_add_unsigned(rng.between(0, span)));
    }
}
