//! What a member says that it is ready for, in the word that it writes to those who send to it.
//!
//! The upper 40 bits count the receives that it has posted for that sender since the group began. The lower 24 bits are 0 if
//! the last of them takes any block. If it takes only the first block of one message, they say of which: its number modulo
//! 2^24 - 1, and one more. So where the first block of a message may come from two members, neither sends that of a later
//! message while the other one still owes that of an earlier one.

const MESSAGE_BITS: u32 = 24;
const MESSAGE: u64 = (1 << MESSAGE_BITS) - 1;

/// A message in the lower bits
fn tag(message: u64) -> u64 {
    message % MESSAGE + 1
}

/// The word of a member that has posted so many receives, the last of them, if that is said, for the first block of this
/// message only
pub(super) fn word(posted: u64, only_first_of: Option<u64>) -> u64 {
    posted << MESSAGE_BITS | only_first_of.map_or(0, tag)
}

/// What a block needs to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Which one it is of those that this member sends to that one, counted from 1 since the group began
    pub(crate) block: u64,
    /// If it is the first one of a message that the receiver gets: that message
    pub(crate) first_of: Option<u64>,
}

impl Need {
    /// Whether a word says that the receiver is ready for it.
    pub(crate) fn is_met(self, word: u64) -> bool {
        let (posted, only) = (word >> MESSAGE_BITS, word & MESSAGE);
        posted > self.block || posted == self.block && (only == 0 || self.first_of.map(tag) == Some(only))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_which_block_may_come() {
        let first = |message| Need { block: 7, first_of: Some(message) };
        let any = Need { block: 7, first_of: None };
        for need in [any, first(3)] {
            assert!(!need.is_met(word(6, None)) && need.is_met(word(7, None)));
            assert!(need.is_met(word(8, Some(9))), "only the last one is for a first block");
        }
        assert!(!any.is_met(word(7, Some(3))));
        assert!(first(3).is_met(word(7, Some(3))));
        assert!(!first(3).is_met(word(7, Some(2))) && !first(3).is_met(word(7, Some(4))));
        let far = (1 << 40) - 1;
        assert!(first(far).is_met(word(7, Some(far))) && !first(far).is_met(word(7, Some(far - 1))));
        assert!(first(0).is_met(word(7, Some(0))) && !any.is_met(word(7, Some(0))));
    }
}
