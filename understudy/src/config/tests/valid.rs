//! Tests of valid files, and of the configurations that they make.

use super::{FORWARD, PORTS, captures, device, forward, read, read_in, runtime};
use crate::functions::FunctionConfig;
use core::time::Duration;
use dataplane::config::{Device, Eal, Idle, Memory, OnLinkLoss, Port, Workers};
use rocev2::Fault;
use rocev2::ethernet::MacAddr;
use std::path::Path;
use switch::drop::FaultSet;
use switch::forward::Config as Forward;
use switch::forward::config::{ForwardingMode, MacTable};
use switch::{Nanos, PortId};

fn function(text: &str) -> Forward {
    match read(text).function {
        FunctionConfig::Forward(function) => function,
        other => panic!("{other:?}"),
    }
}

/// Returns the device that these lines of a port make.
fn device_of(lines: &str) -> Device {
    let folder = captures();
    let text = format!("[runtime]\nhugepages = true\n{}", device(lines));
    let mut config = read_in(folder.path(), &text).unwrap_or_else(|report| panic!("{}", report.render()));
    config.runtime.ports.remove(0).device
}

#[test]
fn absent_keys_have_defaults() {
    let config = read(&[PORTS, FORWARD].concat());
    let port = |name: &str| Port {
        name: name.into(),
        device: Device::Ring,
        mtu: 1500,
        rx_queues: 0,
        descriptors: 512,
        buffers: 8192,
        share_from: None,
    };
    let memory = Memory::Ordinary { mb: 80 };
    assert_eq!(config.runtime.eal, Eal { memory, file_prefix: None, telemetry: false, extra: Vec::new() });
    assert_eq!(config.runtime.ports, [port("a"), port("b")]);
    assert_eq!(
        config.runtime.workers,
        Workers { cpus: vec![None], idle: Idle::Spin, handoff_ring: 1024, control_queue: 1024 }
    );
    assert_eq!((config.stop_when_idle, config.runtime.on_link_loss), (None, OnLinkLoss::Wait));
    assert_eq!(
        config.function,
        FunctionConfig::Forward(Forward {
            ports: 2,
            mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 1024,
            health: true,
        })
    );
}

#[test]
fn every_key_of_runtime_is_read() {
    let config = read(&runtime(
        r#"workers = [1, "any", 3, "any"]
           memory_mb = 700
           hugepages = true
           idle = "sleep"
           file_prefix = "us-1"
           telemetry = true
           handoff_ring = 256
           control_queue = 33
           on_link_loss = "exit"
           stop_when_idle_ms = 300"#,
    ));
    let memory = Memory::HugePages { mb: 700 };
    assert_eq!(
        config.runtime.eal,
        Eal { memory, file_prefix: Some("us-1".into()), telemetry: true, extra: Vec::new() }
    );
    let cpus = vec![Some(1), None, Some(3), None];
    assert_eq!(
        config.runtime.workers,
        Workers { cpus, idle: Idle::Sleep, handoff_ring: 256, control_queue: 33 }
    );
    assert_eq!(config.stop_when_idle, Some(Duration::from_millis(300)));
    assert_eq!(config.runtime.on_link_loss, OnLinkLoss::Exit);
}

#[test]
fn every_key_of_a_port_is_read() {
    let config = read(&device("ring = {}\nmtu = 9000\nrx_queues = 2\ndescriptors = 1024\nbuffers = 20000"));
    let port = &config.runtime.ports[0];
    assert_eq!((port.mtu, port.rx_queues, port.descriptors, port.buffers), (9000, 2, 1024, 20000));
}

#[test]
fn every_device_is_read() {
    let interface = || "eth1".to_owned();
    let pci = |devargs: &[&str]| Device::Pci {
        address: "0000:3b:00.1".into(),
        devargs: devargs.iter().map(|&arg| arg.to_owned()).collect(),
    };
    assert_eq!(device_of(r#"pci = "0000:3B:00.1""#), pci(&[]));
    assert_eq!(device_of("mlx5 = \"0000:3b:00.1\"\ndevargs = [\"mprq_en=1\"]"), pci(&["mprq_en=1"]));
    assert_eq!(
        device_of(r#"af_packet = { interface = "eth1" }"#),
        Device::AfPacket { interface: interface() }
    );
    assert_eq!(
        device_of(r#"af_xdp = { interface = "eth1", start_queue = 4 }"#),
        Device::AfXdp { interface: interface(), start_queue: 4 }
    );
    assert_eq!(device_of(r#"tap = { interface = "eth1" }"#), Device::Tap { interface: interface() });
    assert_eq!(
        device_of(r#"memif = { socket = "/s", id = 7, role = "client" }"#),
        Device::Memif { socket: "/s".into(), id: 7, server: false, peer_uid: None }
    );
    assert_eq!(
        device_of(r#"vhost = { socket = "/s", client = true }"#),
        Device::Vhost { socket: "/s".into(), client: true }
    );
    assert_eq!(device_of("ring = {}"), Device::Ring);
    assert_eq!(device_of("null = {}"), Device::Null { size: 64, copy: false });
    assert_eq!(device_of("null = { size = 1514, copy = true }"), Device::Null { size: 1514, copy: true });
}

#[test]
fn sockets_have_absolute_paths() {
    let text = device(r#"memif = { socket = "m.sock", role = "server" }"#);
    let config = read_in(Path::new(""), &text).unwrap_or_else(|report| panic!("{}", report.render()));
    let Device::Memif { socket, .. } = &config.runtime.ports[0].device else { panic!("{config:?}") };
    assert!(socket.is_absolute() && socket.ends_with("m.sock"), "{}", socket.display());
}

#[test]
fn captures_lie_beside_the_file() {
    let folder = captures();
    let beside = |name: &str| folder.path().join(name);
    let device = |lines: &str| {
        let config =
            read_in(folder.path(), &device(lines)).unwrap_or_else(|report| panic!("{}", report.render()));
        config.runtime.ports[0].clone()
    };
    assert_eq!(
        device(r#"pcap = { rx = ["in.pcap", "long.pcap"], tx = "out.pcap" }"#).device,
        Device::Pcap {
            rx: vec![beside("in.pcap"), beside("long.pcap")],
            tx: Some(beside("out.pcap")),
            infinite: false
        }
    );
    // A capture that is repeated stays in the port's buffers: 16,000 frames and 1,536 buffers need 32,768.
    let files = ["\"many.pcap\""; 5].join(", ");
    let endless = device(&format!("pcap = {{ rx = [{files}], infinite = true }}"));
    assert_eq!((endless.buffers, endless.rx_queues), (32768, 0));
}

#[test]
fn one_interface_can_have_ports_on_different_queues() {
    let port = |queue| format!("af_xdp = {{ interface = \"eth1\", start_queue = {queue} }}");
    let text = PORTS.replacen("ring = {}", &port(0), 1).replacen("ring = {}", &port(1), 1);
    read(&(text + FORWARD));
}

#[test]
fn both_ends_of_a_memif_can_be_ports() {
    let port = |role| format!("memif = {{ socket = \"/s\", role = \"{role}\" }}");
    let text = PORTS.replacen("ring = {}", &port("server"), 1).replacen("ring = {}", &port("client"), 1);
    read(&(text + FORWARD));
}

#[test]
fn memory_grows_with_the_buffers() {
    let mb = |lines: &str| match read(&device(lines)).runtime.eal.memory {
        Memory::Ordinary { mb } => mb,
        Memory::HugePages { .. } => panic!("huge pages are not configured"),
    };
    // A buffer of 2,368 bytes fits once into a page of 4 KB; a longer buffer takes two or three pages.
    assert_eq!(mb("ring = {}\nbuffers = 65536"), 304);
    assert!(mb("ring = {}\nbuffers = 65536\nmtu = 9000") >= 3 * 256);
    // Each worker of a hardware port has a receive queue and a send queue.
    let text = runtime("workers = [0, 1, 2, 3]\nhugepages = true");
    let config = read(&text.replacen("ring = {}", "pci = \"0000:3b:00.0\"\ndescriptors = 4096", 1));
    assert_eq!(config.runtime.ports[0].buffers, 65536);
    assert_eq!(config.runtime.eal.memory, Memory::HugePages { mb: 512 });
}

#[test]
fn faults_are_read_by_name_or_as_all_or_none() {
    let with = |lines: &str| function(&forward(&format!("pairs = [[\"a\", \"b\"]]\n{lines}")));
    assert_eq!(with("drop = \"all\"").drop, FaultSet::ALL);
    assert_eq!(with("drop = \"none\"").drop, FaultSet::NONE);
    assert_eq!(with("drop = []").drop, FaultSet::NONE);
    let some = with("verify = [\"icrc\"]\ndrop = [\"icrc\", \"truncated\"]");
    assert_eq!(some.drop, FaultSet::NONE.with(Fault::Icrc).with(Fault::Truncated));
    assert_eq!((some.verify_icrc, some.verify_udp_checksum), (true, false));
    let all = with("verify = \"all\"\ndrop = [\"udp_checksum\"]\ncounted_qps = 0");
    assert_eq!((all.verify_icrc, all.verify_udp_checksum, all.counted_qps), (true, true, 0));
    for fault in Fault::ALL {
        let name = fault.name();
        assert_eq!(with(&format!("verify = \"all\"\ndrop = [\"{name}\"]")).drop, FaultSet::NONE.with(fault));
    }
}

#[test]
fn a_port_can_be_paired_with_itself() {
    let pairs = function(&forward(r#"pairs = [["b", "b"], ["a", "a"]]"#)).mode;
    assert_eq!(pairs, ForwardingMode::Pairs(vec![(PortId(1), PortId(1)), (PortId(0), PortId(0))]));
}

#[test]
fn a_bridge_is_read() {
    let fixed = r#"{ mac = "52:54:00:00:00:01", port = "b" }"#;
    let table = |capacity, seconds, fixed: &[(MacAddr, PortId)]| {
        ForwardingMode::Mac(MacTable { capacity, ageing: Nanos::from_secs(seconds), fixed: fixed.to_vec() })
    };
    assert_eq!(function(&forward("mac_table = {}")).mode, table(4096, 300, &[]));
    let full = format!("mac_table = {{ capacity = 9, ageing_s = 60, fixed = [{fixed}] }}");
    let station = (MacAddr([0x52, 0x54, 0, 0, 0, 1]), PortId(1));
    assert_eq!(function(&forward(&full)).mode, table(9, 60, &[station]));
}

#[test]
fn an_empty_runtime_equals_an_absent_one() {
    assert_eq!(read(&runtime("")).runtime, read(&[PORTS, FORWARD].concat()).runtime);
}
