//! Declarations of metrics: name, kind, unit and help are stated once, beside the counter. Reports, snapshots,
//! exporters and the reference page are generated from them.
//!
//! ```
//! use switch::counters::{Counter, FrameCounter};
//! use switch::metrics::Metrics;
//!
//! switch::metrics! {
//!     /// Counters of one door.
//!     #[derive(Debug, Default)]
//!     pub struct DoorCounters of door by [name] {
//!         /// Times that the door was opened
//!         pub opened: Counter [times],
//!         /// Frames that passed
//!         pub passed: FrameCounter { frames: [frames as passed], bytes: [bytes as passed_bytes] },
//!         /// Frames that were refused
//!         pub refused: Counter [frames as refused / refused_frames],
//!         /// Not exported, because it has no unit
//!         pub checks: Counter,
//!     }
//!     also {
//!         /// Frames that arrived
//!         Counter arrived [frames] = |door: &Self| door.passed.frames.get() + door.refused.get(),
//!     }
//! }
//!
//! let door = DoorCounters::default();
//! door.passed.count(64);
//! let all: Vec<_> = door.reported().collect();
//! assert_eq!(all, [("opened", 0), ("passed", 1), ("passed_bytes", 64), ("refused", 0), ("arrived", 1)]);
//! assert_eq!(DoorCounters::GROUP.metrics().nth(3).unwrap().observed, Some("refused_frames"));
//! ```

use crate::counters::{Counter, Gauge, Maximum};

/// Whether a value may fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows
    Counter,
    /// A value that may fall
    Gauge,
    /// The largest value since the start, which is no sum: that of several workers is the largest of theirs
    Maximum,
}

/// A metric, declared by [`metrics!`](crate::metrics!).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name in the closing report, behind the names of its sections and dots; `None` if the report does not
    /// have it
    pub reported: Option<&'static str>,
    /// Name in snapshots and exporters, without the prefix of its [`Group`]; `None` if these do not have it
    pub observed: Option<&'static str>,
    /// Whether the value may fall
    pub kind: Kind,
    /// Unit, in the plural
    pub unit: &'static str,
    /// Description, as a noun
    pub help: &'static str,
}

impl Metric {
    /// Returns a metric that reports and exporters know by this name.
    pub const fn new(kind: Kind, name: &'static str, unit: &'static str, help: &'static str) -> Self {
        Self { reported: Some(name), observed: Some(name), kind, unit, help: help.trim_ascii() }
    }

    /// Returns this metric, without a place in the closing report.
    #[must_use]
    pub const fn observed_only(self) -> Self {
        Self { reported: None, ..self }
    }
}

/// The metrics of one struct, which belong to one item, such as a port, or to a whole function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of an item in the names of metrics; empty for metrics of the whole function
    pub item: &'static str,
    /// Names of the labels that identify an item
    pub keys: &'static [&'static str],
    /// Names of an item's other properties
    pub properties: &'static [&'static str],
    /// The metrics of each field
    pub fields: &'static [&'static [Metric]],
}

impl Group {
    /// Returns the group of a whole function's metrics.
    pub const fn of_function(fields: &'static [&'static [Metric]]) -> Self {
        Self { item: "", keys: &[], properties: &[], fields }
    }

    /// Returns the metrics, in the order of [`Metrics::values`].
    pub fn metrics(&self) -> impl Iterator<Item = &'static Metric> + use<> {
        self.fields.iter().copied().flatten()
    }
}

/// Returns the fields of two groups, whose counts add up to `N`.
///
/// # Panics
/// If they do not.
pub const fn concat<const N: usize>(
    first: &[&'static [Metric]],
    second: &[&'static [Metric]],
) -> [&'static [Metric]; N] {
    assert!(first.len() + second.len() == N);
    let mut all: [&'static [Metric]; N] = [&[]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}

/// A struct whose metrics were declared by [`metrics!`](crate::metrics!).
pub trait Metrics {
    /// The declared metrics
    const GROUP: Group;

    /// Returns the value of each metric, in the order of [`Group::metrics`].
    fn values(&self) -> Vec<u64>;

    /// Returns the metrics of the closing report by name.
    fn reported(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::GROUP.metrics().zip(self.values()).filter_map(|(metric, value)| Some((metric.reported?, value)))
    }
}

/// A field that is a metric.
pub trait Value {
    /// Kind of the metric
    const KIND: Kind;

    /// Returns the value.
    fn value(&self) -> u64;
}

impl Value for Counter {
    const KIND: Kind = Kind::Counter;

    fn value(&self) -> u64 {
        self.get()
    }
}

impl Value for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn value(&self) -> u64 {
        self.get()
    }
}

impl Value for Maximum {
    const KIND: Kind = Kind::Maximum;

    fn value(&self) -> u64 {
        self.get()
    }
}

/// A counter of a struct that has one owner
impl Value for u64 {
    const KIND: Kind = Kind::Counter;

    fn value(&self) -> u64 {
        *self
    }
}

/// Declares a struct of counters and their metrics. See the [module](mod@crate::metrics) for an example.
///
/// A field with a unit in brackets is a metric: its documentation is the help, its type the kind
/// ([`Value`]). `[unit as NAME]` names it otherwise than the field is named, `[unit as REPORTED / OBSERVED]`
/// gives the closing report and the exporters names of their own; `_` leaves the metric out of one of them, and a
/// string with dots puts it into a section of the report.
/// A field with braces has metrics for fields of its own. `also` declares metrics that are computed. `of ITEM
/// by [LABEL, ...] with [PROPERTY, ...]` after the name makes this the counters of an item.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident
        $(of $item:ident by [$($key:ident),*] $(with [$($property:ident),*])?)?
        {
            $(
                $(#[doc = $help:literal])*
                $field_vis:vis $field:ident: $type:ty $([$($export:tt)*])? $({$($parts:tt)*})?
            ),* $(,)?
        }
        $(also {$(
            $(#[doc = $also_help:literal])*
            $kind:ident $also:ident [$($also_export:tt)*] = $read:expr
        ),* $(,)?})?
    ) => {
        $(#[$about])*
        $vis struct $name {
            $(
                $(#[doc = $help])*
                $field_vis $field: $type,
            )*
        }

        impl $crate::metrics::Metrics for $name {
            const GROUP: $crate::metrics::Group = $crate::metrics::Group {
                item: concat!($(stringify!($item))?),
                keys: &[$($(stringify!($key)),*)?],
                properties: &[$($($(stringify!($property)),*)?)?],
                fields: &[
                    $($crate::metrics!(@field [$($help)*] $field, $type, $([$($export)*])? $({$($parts)*})?),)*
                    $($(&[$crate::metrics!(
                        @metric [$($also_help)*] $also, $crate::metrics::Kind::$kind, $($also_export)*
                    )],)*)?
                ],
            };

            fn values(&self) -> Vec<u64> {
                let fields: &[&[u64]] = &[
                    $($crate::metrics!(@values self.$field, $([$($export)*])? $({$($parts)*})?),)*
                    $($(&[{
                        let read: fn(&Self) -> u64 = $read;
                        read(self)
                    }],)*)?
                ];
                fields.concat()
            }
        }
    };

    // The metrics of a field
    (@field $help:tt $field:ident, $type:ty,) => { &[] };
    (@field $help:tt $field:ident, $type:ty, [$($export:tt)*]) => {
        &[$crate::metrics!(@metric $help $field, <$type as $crate::metrics::Value>::KIND, $($export)*)]
    };
    (@field $help:tt $field:ident, $type:ty, {$($part:ident: [$($export:tt)*]),* $(,)?}) => {
        &[$($crate::metrics!(@part $help $part, $($export)*)),*]
    };
    (@part $help:tt $part:ident, bytes $($rest:tt)*) => {
        $crate::metrics!(@part_of $help ", in bytes"; $part, bytes $($rest)*)
    };
    (@part $help:tt $part:ident, $($export:tt)*) => {
        $crate::metrics!(@metric $help $part, $crate::metrics::Kind::Counter, $($export)*)
    };
    (@part_of [$($help:literal)*] $unit:literal; $part:ident, $($export:tt)*) => {
        $crate::metrics!(@metric [$($help)* $unit] $part, $crate::metrics::Kind::Counter, $($export)*)
    };

    // One metric
    (@metric $help:tt $field:ident, $kind:expr, $unit:ident) => {
        $crate::metrics!(@metric $help $field, $kind, $unit as $field / $field)
    };
    (@metric $help:tt $field:ident, $kind:expr, $unit:ident as $name:ident) => {
        $crate::metrics!(@metric $help $field, $kind, $unit as $name / $name)
    };
    (@metric [$($help:literal)*] $field:ident, $kind:expr, $unit:ident as $reported:tt / $observed:tt) => {
        $crate::metrics::Metric {
            reported: $crate::metrics!(@name $reported),
            observed: $crate::metrics!(@name $observed),
            ..$crate::metrics::Metric::new($kind, "", stringify!($unit), concat!($($help),*))
        }
    };
    (@name _) => { None };
    (@name $path:literal) => { Some($path) };
    (@name $name:ident) => { Some(stringify!($name)) };

    // The values of a field
    (@values $field:expr,) => { &[] };
    (@values $field:expr, [$($export:tt)*]) => { &[$crate::metrics::Value::value(&$field)] };
    (@values $field:expr, {$($part:ident: [$($export:tt)*]),* $(,)?}) => {
        &[$($crate::metrics::Value::value(&$field.$part)),*]
    };
}

/// Declares an enum of reasons that are counted, each with its name in reports. The documentation of a reason
/// is its help. The string after `counted as` precedes the name in exporters; the unit follows it. The report has
/// the counters in a section `refused`.
#[macro_export]
macro_rules! reasons {
    (
        $(#[$about:meta])*
        $vis:vis enum $enum:ident counted as $prefix:literal [$unit:ident] {$(
            $(#[doc = $help:literal])*
            $(#[error($error:literal)])?
            $variant:ident = $name:literal
        ),* $(,)?}
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        $vis enum $enum {$(
            $(#[doc = $help])*
            $(#[error($error)])?
            $variant
        ),*}

        impl $enum {
            /// Every reason.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Returns the name used in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),*
                }
            }

            /// Metrics of all reasons
            pub const GROUP: $crate::metrics::Group = $crate::metrics::Group::of_function(&[$(&[
                $crate::metrics::Metric {
                    reported: Some(concat!("refused.", $name)),
                    ..$crate::metrics::Metric::new(
                        $crate::metrics::Kind::Counter,
                        concat!($prefix, $name),
                        stringify!($unit),
                        concat!($($help),*),
                    )
                }
            ]),*]);

            /// Returns the metric that counts this reason.
            pub const fn metric(self) -> &'static $crate::metrics::Metric {
                &Self::GROUP.fields[self as usize][0]
            }
        }
    };
}
