//! Generates bindings for the libdpdk that pkg-config finds, and compiles its static inline functions into a
//! small library that Rust can call.

use std::env;
use std::path::{Path, PathBuf};

/// Functions that `dataplane` uses; bindgen adds the types that they need. Those of device events are experimental in
/// DPDK 22.11; `process` is for a test.
const FUNCTIONS: &str = "understudy_.*|rte_(dev_event_callback_(register|process)|\
    eal_init|eal_cleanup|eal_get_runtime_dir|eal_alarm_set|\
    strerror|version|openlog_stream|log_set_global_level|\
    socket_id|thread_register|thread_unregister|get_tsc_hz|get_tsc_cycles|mempool_(free|avail_count|get_bulk)|\
    pktmbuf_(pool_create|alloc|alloc_bulk|attach|free|free_bulk|copy|linearize)|\
    eth_(dev_count_avail|dev_get_port_by_name|dev_info_get|dev_configure|dev_adjust_nb_rx_tx_desc|dev_set_mtu|\
    dev_start|dev_stop|dev_close|dev_socket_id|rx_queue_setup|tx_queue_setup|promiscuous_enable|macaddr_get|\
    link_get_nowait|stats_get|rx_burst|tx_burst|tx_buffer_.*))";
const VARIABLES: &str = "rte_eth_fp_ops|UNDERSTUDY_.*|RTE_(ETH_MQ_RX_RSS|ETH_MQ_RX_NONE|PKTMBUF_HEADROOM|MAX_ETHPORTS|\
    MBUF_DEFAULT_MEMPOOL_OPS|ETH_LINK_UP|LOG_.*)";
const TYPES: &str = "rte_mbuf|rte_mempool|rte_eth_.*";

fn main() {
    println!("cargo::rerun-if-changed=src/wrapper.h");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    let is_static = env::var_os("CARGO_FEATURE_STATIC").is_some();
    if let Err(error) =
        pkg_config::Config::new().cargo_metadata(false).atleast_version("21.11").probe("libdpdk")
    {
        panic!("DPDK 21.11 or later is needed to build. On Debian: apt install libdpdk-dev. {error}");
    }
    let mut cflags = pkg_config(&["--cflags"]);
    // Debian's flags select the oldest CPU that DPDK supports, and the last -march takes effect. The code for
    // a specific machine is selected by Rust's target CPU, not here, so only the minimum is kept.
    let march = cflags.iter().position(|flag| flag.starts_with("-march=")).map(|at| cflags.remove(at));
    cflags.insert(0, march.unwrap_or_else(|| "-march=native".into()));

    let wrappers = out.join("static_inline.c");
    bindgen::Builder::default()
        .header("src/wrapper.h")
        .clang_args(&cflags)
        .allowlist_function(FUNCTIONS)
        .allowlist_var(VARIABLES)
        .allowlist_type(TYPES)
        // These types are both packed and aligned, which Rust cannot express; only their size matters here.
        .opaque_type("rte_arp_.*|rte_l2tpv2_.*|rte_gtp_.*")
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .derive_default(true)
        .generate_comments(false)
        .generate()
        .expect("bindgen generates bindings for libdpdk")
        .write_to_file(out.join("bindings.rs"))
        .expect("OUT_DIR is writable");

    let mut build = cc::Build::new();
    build.file(&wrappers).include(Path::new(env!("CARGO_MANIFEST_DIR"))).opt_level(3).warnings(false);
    for flag in &cflags {
        build.flag(flag);
    }
    build.compile("understudy_dpdk_static_inline");

    link(is_static);
}

/// Returns the words that `pkg-config ARGUMENTS libdpdk` prints.
fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = std::process::Command::new(program)
        .args(arguments)
        .arg("libdpdk")
        .output()
        .expect("pkg-config ran before, when it found libdpdk");
    let text = String::from_utf8(output.stdout).expect("pkg-config prints UTF-8");
    text.split_whitespace().map(str::to_owned).collect()
}

fn link(is_static: bool) {
    if !is_static {
        // The EAL loads the driver libraries from its plug-in folder.
        for word in pkg_config(&["--libs"]) {
            if let Some(dir) = word.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={dir}");
            }
        }
        for library in
            ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_log", "rte_bus_vdev"]
        {
            // Newer releases have the log in a library of its own.
            if library != "rte_log" || has_library("rte_log") {
                println!("cargo::rustc-link-lib=dylib={library}");
            }
        }
        return;
    }
    // Drivers register themselves in constructors, so every object has to be linked although nothing refers
    // to it.
    for word in pkg_config(&["--libs", "--static"]) {
        if let Some(dir) = word.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={dir}");
        } else if let Some(archive) = word.strip_prefix("-l:lib") {
            let name = archive.strip_suffix(".a").unwrap_or(archive);
            println!("cargo::rustc-link-lib=static:+whole-archive,-bundle={name}");
        } else if let Some(library) = word.strip_prefix("-l")
            // These two are dependencies of libpcap, which is linked dynamically and loads them itself.
            && !library.starts_with("rte_")
            && !matches!(library, "systemd" | "dbus-1")
        {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
}

fn has_library(name: &str) -> bool {
    pkg_config(&["--libs"]).iter().any(|word| word.strip_prefix("-l") == Some(name))
}
