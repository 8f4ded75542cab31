//! One libFuzzer program for all targets: the environment variable TARGET selects one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

fuzz_target!(|input: &[u8]| {
    static RUN: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = RUN.get_or_init(|| {
        let name = std::env::var("TARGET").unwrap_or_default();
        let names = || understudy_fuzz::TARGETS.map(|(name, _)| name).join(", ");
        understudy_fuzz::target(&name).unwrap_or_else(|| panic!("TARGET={name}: set it to one of {}", names()))
    });
    run(input);
});
