//! Tests of the program, as its users run it.

mod broken_configs;
mod commands;
mod common;
mod controller;
mod demo;
mod demo_swordbox;
mod diagnose;
mod examples;
mod hangup;
mod impair;
mod live;
mod observe;
mod onepipe;
mod pktgen;
mod planted_bugs;
mod process;
mod program;
mod rate;
mod rdmc;
mod reliable;
mod rfc2544;
mod service;
mod sim;
mod standby;
mod swordbox;
mod tunnel;
