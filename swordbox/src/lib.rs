//! Swordbox (paper: Grant et al., "Swordbox: Accelerated Sharing of Disaggregated Memory"): a switch that sees every
//! request to a memory server in one order, and uses it.

#![forbid(unsafe_code)]

pub mod clients;
