//! Where a configuration is.

use crate::etcd::Address;
use clap::builder::{OsStringValueParser, TypedValueParser};
use core::fmt;
use std::ffi::OsString;
use std::path::PathBuf;

/// A file, or a key in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Etcd(Address),
}

impl Source {
    /// Returns the parser of an argument.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|argument: OsString| match argument.to_str() {
            Some(text) if Address::is_meant(text) => text.parse().map(Self::Etcd),
            _ => Ok(Self::File(argument.into())),
        })
    }

    /// Returns what messages call the configuration.
    pub(crate) fn origin(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Etcd(address) => address.to_string().into(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.origin().display().fmt(f)
    }
}
