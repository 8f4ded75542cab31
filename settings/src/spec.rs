//! What a declaration says about a table and its keys, without the types that the keys are read into.

/// A table of a file, or a table in braces.
#[derive(Clone, Copy)]
pub struct TableSpec {
    /// Line that begins the table, such as `[p4ce]`; for a table in braces its key, such as `` `mac_table` ``
    pub header: &'static str,
    /// Purpose of the table
    pub help: &'static str,
    /// Keys, without those of `base`
    pub keys: &'static [&'static dyn Declared],
    /// Table whose keys this table has, too
    pub base: Option<&'static Self>,
}

impl TableSpec {
    /// Returns the key of the table: the last part of its header.
    pub const fn key(&self) -> &'static str {
        let bytes = self.header.as_bytes();
        let (mut first, mut last) = (0, bytes.len());
        while matches!(bytes[last - 1], b']' | b'`') {
            last -= 1;
        }
        let mut at = 0;
        while at < last {
            if matches!(bytes[at], b'[' | b'`' | b'.') {
                first = at + 1;
            }
            at += 1;
        }
        self.header.split_at(last).0.split_at(first).1
    }

    /// Returns the names of all keys.
    pub fn names(&self) -> Vec<&'static str> {
        self.all_keys().map(|key| key.spec().name).collect()
    }

    /// Returns all keys, those of `base` first.
    pub fn all_keys(&self) -> impl Iterator<Item = &'static dyn Declared> {
        let mut tables: Vec<_> = core::iter::successors(Some(self), |table| table.base).collect();
        tables.reverse();
        tables.into_iter().flat_map(|table| table.keys).copied()
    }

    /// Returns the keys that the table has in its own section of the reference page, and the table whose section has
    /// the others: `base`, unless that is a part of tables with the same header, whose required keys come first.
    pub(crate) fn documented_keys(&self) -> (Vec<&'static dyn Declared>, Option<&'static Self>) {
        match self.base {
            Some(base) if base.header == self.header => {
                let mut keys: Vec<_> = self.all_keys().collect();
                keys.sort_by_key(|key| key.spec().absent != Absent::Required);
                (keys, None)
            }
            base => (self.keys.to_vec(), base),
        }
    }
}

/// A key without its type.
#[derive(Clone, Copy)]
pub struct Spec {
    /// Name in the file
    pub name: &'static str,
    /// Values that the key takes
    pub kind: Kind,
    /// Unit of its value; empty if it has none
    pub unit: &'static str,
    /// Meaning of a missing key
    pub absent: Absent,
    /// Valid value, as written in a file
    pub example: &'static str,
    /// Purpose of the key
    pub help: &'static str,
}

/// Values that a key takes.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Whole numbers from the first to the last
    Whole(u64, u64),
    /// Powers of two from the first to the last
    PowerOfTwo(u64, u64),
    /// Numbers, with or without a fraction, from the first to the last
    Number(f64, f64),
    /// A number, or two between which a seed draws one
    Drawn(f64, f64),
    /// One whole number, or a list of them, from the first to the last
    Wholes(u64, u64),
    /// `true` or `false`
    Boolean,
    /// One of some words
    Word,
    /// What the words say
    Other(&'static str),
    /// A table in braces, or what the words say
    Table(&'static TableSpec, &'static str),
    /// A list of tables in braces
    List(&'static TableSpec),
    /// Tables of a file, each with its header
    Tables(&'static TableSpec),
}

/// Meaning of a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// This value, as written in a file
    Default(&'static str),
    /// What the words say
    Optional(&'static str),
    /// The file is invalid
    Required,
}

/// What all keys have, whatever they are read into.
pub trait Declared {
    /// Returns the key's declaration.
    fn spec(&self) -> &Spec;

    /// Returns the words that the key takes; empty for any other kind.
    fn words(&self) -> Vec<&'static str>;
}
