//! Verbs of the workload.

/// A verb, and the memory that it is used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `CmpSwap` of a shared word
    CompareSwap,
    /// `FetchAdd` of a shared word
    FetchAdd,
    /// RDMA WRITE of a shared word
    WriteWord,
    /// RDMA READ of a shared word
    ReadWord,
    /// RDMA WRITE of several shared words
    WriteWords,
    /// RDMA READ of several shared words, and locks
    ReadWords,
    /// RDMA WRITE to memory of the connection's own
    Write,
    /// RDMA READ of memory of the connection's own
    Read,
    /// SEND, with and without immediate data, and RDMA WRITE with immediate data
    Send,
}

impl Verb {
    /// All verbs, in the order of [`Config::mix`](super::Config::mix).
    pub const ALL: [Self; 9] = [
        Self::CompareSwap,
        Self::FetchAdd,
        Self::WriteWord,
        Self::ReadWord,
        Self::WriteWords,
        Self::ReadWords,
        Self::Write,
        Self::Read,
        Self::Send,
    ];

    /// Returns the verb's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompareSwap => "compare_swap",
            Self::FetchAdd => "fetch_add",
            Self::WriteWord => "write_word",
            Self::ReadWord => "read_word",
            Self::WriteWords => "write_words",
            Self::ReadWords => "read_words",
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}
