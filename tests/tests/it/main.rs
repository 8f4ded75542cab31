//! What crosses crates.

mod mutants;
mod packets;
mod processes;
mod replay;
