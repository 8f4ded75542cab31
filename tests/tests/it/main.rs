//! Tests that span crates.

mod health;
mod health_oracle;
mod mutants;
mod packets;
mod processes;
mod replay;
