//! The ready word: what a member is ready to receive, written by RDMA WRITE to each member that sends blocks
//! to it. It takes the place of the paper's `ready_for_block` message (RDMC, section 4.2).
//!
//! The upper 40 bits count the receives that the member has posted for that sender since the group was
//! created. The lower 24 bits are 0 if the last of these receives takes any block. If it takes only the first
//! block of one message, they identify that message: its number modulo 2^24 - 1, plus one. So, where two
//! members may send the first block of a message, neither of them sends the first block of a later message
//! while the other one has not sent that of an earlier message.

const MESSAGE_BITS: u32 = 24;
const MESSAGE: u64 = (1 << MESSAGE_BITS) - 1;

/// Returns the lower bits for a message.
fn tag(message: u64) -> u64 {
    message % MESSAGE + 1
}

/// Returns the word of a member that has posted `posted` receives, the last of which is reserved for the
/// first block of message `reserved_for`, if that is given.
pub(super) fn ready_word(posted: u64, reserved_for: Option<u64>) -> u64 {
    posted << MESSAGE_BITS | reserved_for.map_or(0, tag)
}

/// Condition on a ready word under which a block may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadyCondition {
    /// Number of this block among those that the sender sends to the receiver, from 1 since the group was
    /// created.
    pub(crate) block: u64,
    /// Message of which this block is the first one that the receiver gets, if it is.
    pub(crate) first_of_message: Option<u64>,
}

impl ReadyCondition {
    /// Returns whether a ready word permits the block.
    pub(crate) fn is_met(self, ready_word: u64) -> bool {
        let (posted, only) = (ready_word >> MESSAGE_BITS, ready_word & MESSAGE);
        posted > self.block
            || posted == self.block && (only == 0 || self.first_of_message.map(tag) == Some(only))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_word_permits_the_right_blocks() {
        let first = |message| ReadyCondition { block: 7, first_of_message: Some(message) };
        let any = ReadyCondition { block: 7, first_of_message: None };
        for condition in [any, first(3)] {
            assert!(!condition.is_met(ready_word(6, None)) && condition.is_met(ready_word(7, None)));
            assert!(condition.is_met(ready_word(8, Some(9))), "only the last one is for a first block");
        }
        assert!(!any.is_met(ready_word(7, Some(3))));
        assert!(first(3).is_met(ready_word(7, Some(3))));
        assert!(!first(3).is_met(ready_word(7, Some(2))) && !first(3).is_met(ready_word(7, Some(4))));
        let far = (1 << 40) - 1;
        assert!(
            first(far).is_met(ready_word(7, Some(far))) && !first(far).is_met(ready_word(7, Some(far - 1)))
        );
        assert!(first(0).is_met(ready_word(7, Some(0))) && !any.is_met(ready_word(7, Some(0))));
    }
}
