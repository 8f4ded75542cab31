//! Tests that span crates.

mod mutants;
mod packets;
mod processes;
mod replay;
