//! A configuration in etcd: its address, and a thread that reads it.
//!
//! The thread asks for the key every two seconds, which is the only request: a read through a majority of etcd's servers. It
//! has no watch to lose, sees restores and removed keys as any other change, and costs etcd one small read. Requests go over
//! etcd's HTTP interface (`/v3/kv/range`), without TLS and without a password.

mod address;
mod client;
mod reader;

pub(crate) use address::Address;
pub(crate) use client::{Client, Version};
pub(crate) use reader::Reader;
