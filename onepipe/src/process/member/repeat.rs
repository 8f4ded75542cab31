//! Repetition of what is not answered, after times that double.

use switch::Nanos;

/// When something is sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeat {
    first: Nanos,
    most: Nanos,
    delay: Nanos,
    at: Nanos,
}

impl Repeat {
    /// Returns a repetition that is due at once; later after `first`, twice `first` and so on up to `most`.
    pub(super) const fn new((first, most): (Nanos, Nanos)) -> Self {
        Self { first, most, delay: first, at: Nanos::ZERO }
    }

    /// Makes it due now, and starts with the first delay again.
    pub(super) const fn restart(&mut self, now: Nanos) {
        (self.delay, self.at) = (self.first, now);
    }

    /// Makes it due after the first delay.
    pub(super) fn soon(&mut self, now: Nanos) {
        (self.delay, self.at) = (self.first, now + self.first);
    }

    /// Returns whether it is due, and schedules the next time.
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        let is_due = self.at <= now;
        if is_due {
            self.at = now + self.delay;
            self.delay = Nanos(2 * self.delay.0).min(self.most);
        }
        is_due
    }

    /// Returns the time at which it is due.
    pub(super) const fn at(&self) -> Nanos {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound() {
        let mut repeat = Repeat::new((Nanos(10), Nanos(35)));
        let due =
            |repeat: &mut Repeat, upto| (0..upto).filter(|&now| repeat.take(Nanos(now))).collect::<Vec<_>>();
        assert_eq!(due(&mut repeat, 150), [0, 10, 30, 65, 100, 135]);
        repeat.restart(Nanos(5));
        assert_eq!(due(&mut repeat, 40), [5, 15, 35]);
        repeat.soon(Nanos(1));
        assert_eq!(due(&mut repeat, 30), [11, 21]);
    }
}
