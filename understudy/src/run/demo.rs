//! The built-in demonstration: `configs/demo.toml` and the captures that it plays.

use crate::config::{self, Config};
use miette::{IntoDiagnostic as _, Report, WrapErr as _};
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

const CONFIG: &str = include_str!("../../../configs/demo.toml");

macro_rules! captures {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../../../tests/captures/", $name)))),*]
    };
}

const CAPTURES: &[(&str, &[u8])] = &captures![
    "rc_write_4qp.pcap" "rc_write_loss.pcap" "rc_compare_swap.pcap" "cm_rping.pcap" "rc_read_4096.pcap"
    "uc_write_4096.pcap" "ipv6_ud_send_512.pcap" "vlan_rc_write_4096.pcap" "damaged.pcap"
];

/// Loads the demonstration. Its captures are in a folder that is removed when the second value is dropped,
/// because DPDK reads them from files.
pub(super) fn load() -> Result<(Config, TempDir), Report> {
    let dir = tempfile::tempdir()
        .into_diagnostic()
        .wrap_err("cannot create a temporary folder for the demonstration's captures")?;
    let captures = dir.path().join("tests/captures");
    fs::create_dir_all(&captures).into_diagnostic()?;
    for (name, bytes) in CAPTURES {
        fs::write(captures.join(name), bytes).into_diagnostic()?;
    }
    let configs = dir.path().join("configs");
    fs::create_dir(&configs).into_diagnostic()?;
    let config = config::parse(CONFIG, "configs/demo.toml", &configs)?;
    Ok((config, dir))
}

/// Returns the result of the demonstration in a line, from its report as JSON.
pub(super) fn headline(report: &Value) -> String {
    let rows = |key: &str| report[key].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |key: &str, count: &str| rows(key).iter().filter_map(|row| row[count].as_u64()).sum::<u64>();
    let cycles = rows("workers").first().and_then(|worker| worker["cycles_per_frame"].as_f64());
    format!(
        "RDMA traffic of two hosts through one worker: {} RoCEv2 frames with {} opcodes to {} queue pairs counted, and \
         {} frames dropped for {} reasons{}",
        sum("ports", "roce_frames"),
        rows("opcodes").len(),
        rows("qps").len(),
        sum("drops", "frames"),
        rows("drops").len(),
        cycles.map_or_else(String::new, |cycles| format!(", in {cycles:.0} cycles per frame")),
    )
}
