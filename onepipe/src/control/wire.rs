//! Encoding of values: fixed-size big-endian fields, lists with a count in front.

use crate::header::Timestamp;
use crate::process::ProcessId;
use rocev2::Qpn;

/// Bytes that are not a value of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field
    #[error("the bytes end inside a field")]
    Truncated,
    /// Bytes are left behind the last field
    #[error("{0} bytes are left behind the last field")]
    TooLong(usize),
    /// A field has a value that its type does not have
    #[error("{value} is not a value of the field {field}")]
    Value {
        /// Name of the field's type
        field: &'static str,
        /// The value
        value: u64,
    },
}

/// Value with an encoding.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, to: &mut Vec<u8>);

    /// Removes the value from the front of `from`.
    fn take(from: &mut &[u8]) -> Result<Self, WireError>;

    /// Returns the encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// Returns the value of an encoding.
    ///
    /// # Errors
    /// [`WireError`] if `bytes` is not exactly one value.
    fn parse(mut bytes: &[u8]) -> Result<Self, WireError> {
        let value = Self::take(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(WireError::TooLong(bytes.len())) }
    }
}

fn split<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (first, rest) = from.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
    *from = rest;
    Ok(*first)
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Wire for $type {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend(self.to_be_bytes());
            }
            fn take(from: &mut &[u8]) -> Result<Self, WireError> {
                split(from).map(Self::from_be_bytes)
            }
        }
    )*};
}
integers! { u8 u16 u32 u64 }

impl Wire for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push((*self).into());
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { field: "bool", value: other.into() }),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        split(from)
    }
}

impl Wire for ProcessId {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        u32::take(from).map(Self)
    }
}

impl Wire for Qpn {
    fn put(&self, to: &mut Vec<u8>) {
        self.get().put(to);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        let value = u32::take(from)?;
        if value < 1 << 24 {
            Ok(Self::new(value))
        } else {
            Err(WireError::Value { field: "qpn", value: value.into() })
        }
    }
}

impl Wire for Timestamp {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(&self.nanos().to_be_bytes()[2..]);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f] = split(from)?;
        Ok(Self::new(u64::from_be_bytes([0, 0, a, b, c, d, e, f])))
    }
}

/// None is 0; a real 0 is the nanosecond before, as in the header of a packet.
impl Wire for Option<Timestamp> {
    fn put(&self, to: &mut Vec<u8>) {
        let value = match *self {
            None => Timestamp::default(),
            Some(time) if time.nanos() == 0 => Timestamp::new(u64::MAX),
            Some(time) => time,
        };
        value.put(to);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        Timestamp::take(from).map(|time| Some(time).filter(|time| time.nanos() != 0))
    }
}

/// A list of at most 65,535 values; the caller keeps to that.
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        let count = u16::try_from(self.len()).expect("a list has at most 65,535 values");
        count.put(to);
        for value in self {
            value.put(to);
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        let count = u16::take(from)?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl Wire for String {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_bytes().to_vec().put(to);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        let bytes = Vec::<u8>::take(from)?;
        let bad = |_| WireError::Value { field: "text", value: 0 };
        Self::from_utf8(bytes).map_err(bad)
    }
}

/// Declares structs whose encoding is that of their fields, in order.
#[macro_export]
macro_rules! wire_structs {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        impl $crate::control::Wire for $name {
            fn put(&self, to: &mut Vec<u8>) {
                let _ = &to;
                $($crate::control::Wire::put(&self.$field, to);)*
            }
            fn take(from: &mut &[u8]) -> Result<Self, $crate::control::WireError> {
                let _ = &from;
                Ok(Self { $($field: $crate::control::Wire::take(from)?,)* })
            }
        }
    )*};
}

/// Declares an enum without fields whose encoding is one byte.
#[macro_export]
macro_rules! wire_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// All values, in the order of their encodings.
            $vis const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        impl $crate::control::Wire for $name {
            fn put(&self, to: &mut Vec<u8>) {
                to.push(*self as u8);
            }
            fn take(from: &mut &[u8]) -> Result<Self, $crate::control::WireError> {
                match u8::take(from)? {
                    $($value => Ok(Self::$variant),)*
                    value => Err($crate::control::WireError::Value { field: stringify!($name), value: value.into() }),
                }
            }
        }
    };
}
