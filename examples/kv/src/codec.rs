//! Encoding of numbers and byte strings, for log entries and snapshots.

/// Appends a number.
pub(crate) fn put_number(number: u64, out: &mut Vec<u8>) {
    out.extend(number.to_le_bytes());
}

/// Appends bytes, preceded by their length.
pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

/// Returns the number of bytes that [`put_bytes`] appends.
pub(crate) const fn len_of_bytes(bytes: &[u8]) -> usize {
    4 + bytes.len()
}

/// Reads numbers and byte strings in the order in which they were appended.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = u32::from_le_bytes(self.array()?) as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}
