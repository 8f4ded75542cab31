//! A workload on words of remote memory that clients contend for, and what must hold of it.

pub mod linear;
