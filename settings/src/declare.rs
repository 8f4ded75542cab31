//! Declarations of tables and their keys. What a key takes is said once, by [`table!`](crate::table): its
//! type, range, unit, default and help. Reading a file, the summary of `check`, the example files and the
//! reference page all follow from it.

pub use crate::spec::{Absent, Declared, Kind, Spec, TableSpec};

use crate::address;
use crate::value::Value;
use core::marker::PhantomData;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use rocev2::ethernet::MacAddr;
use switch::Nanos;

/// Reads a value of the file into a `T`.
enum Reader<T: 'static> {
    By(fn(&Value<'_>) -> Option<T>),
    /// Finds the word, and copies what belongs to it
    Words(&'static [(&'static str, T)], fn(&T) -> T),
}

/// Type of a key: the values that it takes, and how one is read into a `T`.
pub struct Type<T: 'static> {
    kind: Kind,
    unit: &'static str,
    reader: Reader<T>,
}

impl<T> Type<T> {
    /// Returns the type of these values, each read by `read`.
    pub const fn new(kind: Kind, read: fn(&Value<'_>) -> Option<T>) -> Self {
        Self { kind, unit: "", reader: Reader::By(read) }
    }

    /// Sets the unit.
    #[must_use]
    pub const fn unit(self, unit: &'static str) -> Self {
        Self { kind: self.kind, unit, reader: self.reader }
    }
}

/// Values that `read` reads, which the words `what` describe.
pub const fn other<T>(what: &'static str, read: fn(&Value<'_>) -> Option<T>) -> Type<T> {
    Type::new(Kind::Other(what), read)
}

/// Values that the words `what` describe, and that the reader of the table reads itself.
pub const fn special(what: &'static str) -> Type<()> {
    other(what, |_| Some(()))
}

/// A table in braces.
pub const fn inline(table: &'static TableSpec) -> Type<()> {
    Type::new(Kind::Table(table, ""), |_| Some(()))
}

/// What the words `what` say, or a table in braces.
pub const fn or_inline<T>(
    what: &'static str,
    table: &'static TableSpec,
    read: fn(&Value<'_>) -> Option<T>,
) -> Type<T> {
    Type::new(Kind::Table(table, what), read)
}

/// A list of tables in braces.
pub const fn list(table: &'static TableSpec) -> Type<()> {
    Type::new(Kind::List(table), |_| Some(()))
}

/// Tables of the file, each with its header.
pub const fn tables(table: &'static TableSpec) -> Type<()> {
    Type::new(Kind::Tables(table), |_| Some(()))
}

/// One whole number, or a list of them.
pub const fn wholes(range: RangeInclusive<u64>) -> Type<()> {
    Type::new(Kind::Wholes(*range.start(), *range.end()), |_| Some(()))
}

/// Integer types that keys are read into.
pub trait Whole: Copy {
    /// Largest value
    const MAX: u64;

    /// Converts a number, which is at most `MAX`.
    fn from_u64(number: u64) -> Self;
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Whole for $type {
            const MAX: u64 = <$type>::MAX as u64;

            fn from_u64(number: u64) -> Self {
                number as Self
            }
        }
    )*};
}
whole!(u8, u16, u32, u64, usize, i64);

/// Whole numbers in a range.
pub const fn whole<T: Whole>(range: RangeInclusive<u64>) -> Type<T> {
    assert!(*range.end() <= T::MAX, "the range exceeds the type");
    Type::new(Kind::Whole(*range.start(), *range.end()), |value| Some(T::from_u64(value.whole()?)))
}

/// Powers of two in a range.
pub const fn power_of_two<T: Whole>(range: RangeInclusive<u64>) -> Type<T> {
    assert!(*range.end() <= T::MAX, "the range exceeds the type");
    Type::new(Kind::PowerOfTwo(*range.start(), *range.end()), |value| {
        Some(T::from_u64(value.power_of_two()?))
    })
}

const fn time(
    range: &RangeInclusive<u64>,
    unit: &'static str,
    read: fn(&Value<'_>) -> Option<Nanos>,
) -> Type<Nanos> {
    Type::new(Kind::Whole(*range.start(), *range.end()), read).unit(unit)
}

/// Times in whole nanoseconds.
pub const fn nanos(range: RangeInclusive<u64>) -> Type<Nanos> {
    time(&range, "ns", |value| value.whole().map(Nanos))
}

/// Times in whole microseconds.
pub const fn micros(range: RangeInclusive<u64>) -> Type<Nanos> {
    time(&range, "us", |value| value.whole().map(Nanos::from_micros))
}

/// Times in whole milliseconds.
pub const fn millis(range: RangeInclusive<u64>) -> Type<Nanos> {
    time(&range, "ms", |value| value.whole().map(Nanos::from_millis))
}

/// Times in whole seconds.
pub const fn secs(range: RangeInclusive<u64>) -> Type<Nanos> {
    time(&range, "s", |value| value.whole().map(Nanos::from_secs))
}

/// Numbers in a range, with or without a fraction.
#[expect(clippy::redundant_closure_for_method_calls, reason = "a method is not a reader of every lifetime")]
pub const fn number(range: RangeInclusive<f64>) -> Type<f64> {
    Type::new(Kind::Number(*range.start(), *range.end()), |value| value.fraction())
}

/// A number in a range, or two between which a seed draws one; `read` reads either.
pub const fn drawn<T>(range: RangeInclusive<f64>, read: fn(&Value<'_>) -> Option<T>) -> Type<T> {
    Type::new(Kind::Drawn(*range.start(), *range.end()), read)
}

/// `true` or `false`.
#[expect(clippy::redundant_closure_for_method_calls, reason = "a method is not a reader of every lifetime")]
pub const fn boolean() -> Type<bool> {
    Type::new(Kind::Boolean, |value| value.boolean())
}

/// One of some words, and what each means.
pub const fn words<T: Copy>(words: &'static [(&'static str, T)]) -> Type<T> {
    Type { kind: Kind::Word, unit: "", reader: Reader::Words(words, |meaning| *meaning) }
}

/// A string that is not empty; the words `what` describe it.
pub const fn text(what: &'static str) -> Type<String> {
    other(what, |value| value.text().map(str::to_owned))
}

/// The MAC address of a single station.
pub const fn mac() -> Type<MacAddr> {
    other("MAC address", address::station)
}

/// An IP address.
pub const fn ip() -> Type<IpAddr> {
    other("IP address", address::ip)
}

/// A list of IP addresses.
pub const fn ips() -> Type<Vec<IpAddr>> {
    other("list of IP addresses", |value| value.list_of(address::ip))
}

/// An IP address with the length of its subnet's prefix.
pub const fn subnet_address() -> Type<(IpAddr, u8)> {
    other("IP address with a prefix length", address::address)
}

/// A key that has a default.
pub enum Given {}
/// A key that may be missing.
pub enum Optional {}
/// A key without which the file is invalid.
pub enum Required {}

/// Whether a key may be missing, as a type.
pub trait Presence {
    /// Result of reading a key: the value, or nothing for a missing or invalid one without a default
    type Output<T>;

    /// Returns the result for a value that was read, if it is there and valid.
    fn output<T>(read: Option<T>, default: impl FnOnce() -> T) -> Self::Output<T>;
}

impl Presence for Given {
    type Output<T> = T;

    fn output<T>(read: Option<T>, default: impl FnOnce() -> T) -> T {
        read.unwrap_or_else(default)
    }
}

impl Presence for Optional {
    type Output<T> = Option<T>;

    fn output<T>(read: Option<T>, _default: impl FnOnce() -> T) -> Option<T> {
        read
    }
}

impl Presence for Required {
    type Output<T> = Option<T>;

    fn output<T>(read: Option<T>, _default: impl FnOnce() -> T) -> Option<T> {
        read
    }
}

/// A key that is read into a `T`.
pub struct Key<T: 'static, P> {
    pub(crate) spec: Spec,
    reader: Reader<T>,
    presence: PhantomData<P>,
}

impl<T> Clone for Type<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Type<T> {}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Reader<T> {}

impl<T, P> Clone for Key<T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for Key<T, P> {}

impl<T, P> Key<T, P> {
    /// Returns a key. An empty `example` means the default.
    pub const fn new(
        name: &'static str,
        help: &'static str,
        of: Type<T>,
        absent: Absent,
        example: &'static str,
    ) -> Self {
        let example = match absent {
            Absent::Default(default) if example.is_empty() => default,
            _ => example,
        };
        // A keyword of Rust, such as `match`, is written as a raw identifier.
        let name = match name.as_bytes() {
            [b'r', b'#', ..] => name.split_at(2).1,
            _ => name,
        };
        let spec = Spec { name, kind: of.kind, unit: of.unit, absent, example, help };
        Self { spec, reader: of.reader, presence: PhantomData }
    }

    /// Reads a value. Reports an invalid one.
    pub fn parse(&self, value: &Value<'_>) -> Option<T> {
        match self.reader {
            Reader::By(read) => read(value),
            Reader::Words(words, copy) => {
                let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                let word = value.word(&names)?;
                words.iter().find(|(known, _)| *known == word).map(|(_, meaning)| copy(meaning))
            }
        }
    }

    /// Reads the default, which is written as in a file.
    pub(crate) fn default_value(&self) -> T {
        let default = Value::of_default(&self.spec, |value| self.parse(value));
        default.unwrap_or_else(|| panic!("the default of `{}` has to be valid", self.spec.name))
    }
}

impl<T, P> Declared for Key<T, P> {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn words(&self) -> Vec<&'static str> {
        match self.reader {
            Reader::By(_) => Vec::new(),
            Reader::Words(words, _) => words.iter().map(|(word, _)| *word).collect(),
        }
    }
}

/// Declares a table: a type with a constant for each key, named like it, and `TABLE`, the whole. The doc
/// comments are the help. Each key has a type, and one of `default(VALUE)`, `optional("meaning of its
/// absence")` and `required()`, then an example, unless the default is one. Values are written as in a file.
///
/// ```
/// use settings::declare::{mac, millis};
/// use switch::Nanos;
///
/// settings::table! {
///     /// A switch
///     enum Keys "[switch]";
///     /// MAC address of the switch
///     mac: rocev2::ethernet::MacAddr = mac() => optional("that of the first port") example("02:00:00:00:00:fe");
///     /// Time after which a silent neighbour is excluded; 0 means never
///     silent_after_ms: Nanos = millis(0..=60_000) => default(200);
/// }
/// # fn main() {
/// # let problems = settings::tree::Problems::default();
/// # let table = settings::tree::Table::absent(&Keys::TABLE, &problems);
/// assert_eq!(table.read(Keys::mac), None);
/// assert_eq!(table.read(Keys::silent_after_ms), Nanos(200_000_000));
/// # table.finish();
/// # }
/// ```
///
/// A key that is declared and never read is unused code, of which the compiler warns.
#[macro_export]
macro_rules! table {
    (
        $(#[doc = $help:literal])+
        $vis:vis enum $keys:ident $header:literal $(with $base:ty)?;
        $(
            $(#[doc = $key_help:literal])+
            $key:ident: $type:ty = $of:expr => $presence:ident($($absent:tt)*) $(example($($example:tt)+))?;
        )*
    ) => {
        $(#[doc = $help])+
        $vis enum $keys {}

        #[allow(non_upper_case_globals, reason = "keys have their names in the file")]
        impl $keys {
            $(
                $(#[doc = $key_help])+
                pub(crate) const $key: $crate::declare::Key<$type, $crate::table!(@presence $presence)> =
                    $crate::table!(@key $key, concat!($($key_help, "\n"),+), $of, $presence($($absent)*), $($($example)+)?);
            )*
            /// The table with all of its keys
            $vis const TABLE: $crate::declare::TableSpec = $crate::declare::TableSpec {
                header: $header,
                help: concat!($($help, "\n"),+),
                keys: &[$({
                    const KEY: $crate::declare::Key<$type, $crate::table!(@presence $presence)> =
                        $crate::table!(@key $key, concat!($($key_help, "\n"),+), $of, $presence($($absent)*), $($($example)+)?);
                    &KEY
                }),*],
                base: $crate::table!(@base $($base)?),
            };
        }
    };
    (@base) => { None };
    (@base $base:ty) => { Some(&<$base>::TABLE) };
    (@presence default) => { $crate::declare::Given };
    (@presence optional) => { $crate::declare::Optional };
    (@presence required) => { $crate::declare::Required };
    (@absent default($($value:tt)+)) => { $crate::declare::Absent::Default(stringify!($($value)+)) };
    (@absent optional($meaning:literal)) => { $crate::declare::Absent::Optional($meaning) };
    (@absent required()) => { $crate::declare::Absent::Required };
    (@key $key:ident, $help:expr, $of:expr, $presence:ident($($absent:tt)*), $($example:tt)*) => {
        $crate::declare::Key::new(
            stringify!($key),
            $help,
            $of,
            $crate::table!(@absent $presence($($absent)*)),
            stringify!($($example)*),
        )
    };
}
