//! Start errors have a message and a remedy.

use crate::common::{capture, config, play, port};
use dataplane::config::{Device, Memory};
use dataplane::{Error, Runtime};
use understudy_tests::alone;

fn fails(config: dataplane::Config) -> Error {
    Runtime::start(config).expect_err("the start fails")
}

#[test]
fn missing_interface_is_reported() {
    alone!();
    let error = fails(config(vec![port("wire", Device::AfPacket { interface: "no-such-if".into() })], 1));
    assert_eq!(error.what, "port `wire`: there is no interface `no-such-if`");
    assert!(error.remedy.contains("ip link"));
    assert!(error.log.contains("net_af_packet"), "{}", error.log);
}

#[test]
fn cpu_on_which_the_process_may_not_run_is_reported() {
    alone!();
    let mut config = config(vec![port("in", play(&capture("rc_send_64.pcap"), None))], 1);
    config.workers.cpus = vec![Some(1023)];
    let error = fails(config);
    assert!(error.what.contains("may not run on CPU 1023"), "{error}");
}

#[test]
fn too_little_memory_is_reported() {
    alone!();
    let mut config = config(vec![port("in", play(&capture("rc_send_64.pcap"), None))], 1);
    config.eal.memory = Memory::Ordinary { mb: 16 };
    config.ports[0].buffers = 65_535;
    let error = fails(config);
    assert!(error.what.contains("no memory for 65535 packet buffers"), "{error}");
    assert!(error.remedy.contains("memory_mb"), "{}", error.remedy);
}

#[test]
fn path_that_dpdk_does_not_accept_is_reported() {
    alone!();
    let error = fails(config(vec![port("in", play("/tmp/a,b.pcap".as_ref(), None))], 1));
    assert!(error.what.contains("a,b.pcap") && error.remedy.contains("commas"), "{error}: {}", error.remedy);
}

#[test]
fn file_that_is_no_capture_is_reported() {
    alone!();
    let error = fails(config(vec![port("in", play(&capture("README.md"), None))], 1));
    assert!(error.what.contains("capture file"), "{error}");
}

#[test]
fn second_start_is_refused() {
    alone!();
    let config = config(vec![port("in", play(&capture("rc_send_64.pcap"), None))], 1);
    let first = Runtime::start(config.clone()).unwrap();
    assert_eq!(first.ports().count(), 1);
    assert!(fails(config).what.contains("already started"));
}

#[test]
fn runtime_folder_is_removed_at_the_end() {
    alone!();
    // The EAL of this prefix creates files in this folder.
    let prefix = format!("understudy-test-{}", std::process::id());
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let base = if root {
        "/var/run".into()
    } else {
        std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/tmp".into())
    };
    let folder = std::path::Path::new(&base).join("dpdk").join(&prefix);
    let mut config = config(vec![port("in", play(&capture("rc_send_64.pcap"), None))], 1);
    config.eal.file_prefix = Some(prefix);
    let runtime = Runtime::start(config).unwrap();
    assert!(folder.join("config").exists(), "{}", folder.display());
    drop(runtime);
    assert!(!folder.exists(), "{} was not removed", folder.display());
}
