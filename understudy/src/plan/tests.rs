mod ids;
mod standby;

use super::*;
use crate::config::System;
use crate::functions::FunctionConfig;
use core::net::IpAddr;
use dataplane::config::Idle;
use onepipe_host::file::controller::Controllers;
use representative::Config;
use representative::plan::{Topology, plan};
use rocev2::ethernet::MacAddr;
use std::collections::BTreeSet;
use switch::Nanos;

/// Returns the network of the shipped example.
fn testbed() -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe/testbed.toml");
    config::load_plan(&path).unwrap_or_else(|report| panic!("{}", report.render()))
}

/// Returns the example with values that differ from the defaults, where nothing else depends on them.
fn changed() -> Network {
    let mut network = testbed();
    let settings = &mut network.topology.settings;
    (settings.beacon_interval, settings.dead_after_intervals) = (Nanos(7_000), 77);
    (settings.traffic_class, settings.ahead_max, settings.timeout) =
        (0x68, Nanos::from_micros(70), Nanos::from_micros(700));
    (settings.clock_error, settings.clock_source) = (Nanos::from_micros(60), onepipe::ClockSource::Beacons);
    network.idle = Some("sleep");
    network
}

/// `understudy run` reads from each file what the plan contains.
#[test]
fn files_of_representatives_have_the_values_of_the_plan() {
    let network = changed();
    let files = files::all(&network);
    let folder = tempfile::tempdir().unwrap();
    let mut detours = 0;
    for (number, switch) in network.topology.switches.iter().enumerate() {
        let planned = network.plan.config(&network.topology, number);
        let file = &files[number];
        assert_eq!(file.name, format!("{}.representative.toml", switch.name));
        let path = folder.path().join(&file.name);
        std::fs::write(&path, &file.content).unwrap();
        let read = config::load(&path).unwrap_or_else(|report| panic!("{}", report.render()));
        assert_eq!(read.runtime.workers.idle, Idle::Sleep);
        let FunctionConfig::OnePipe(read) = read.function else { panic!("{}", file.content) };
        assert_eq!(read.mac, Some(planned.mac));
        assert_eq!(read.names.len(), planned.links.len());
        detours += planned.links.iter().filter(|link| !link.detour.is_empty()).count();
        // The plan does not define the bridge beside it.
        assert_eq!(read.switch, Config { forward: read.switch.forward.clone(), ..planned });
    }
    assert!(detours > 0);
}

/// `understudy process` and the library read from each file what the plan contains, for every host.
#[test]
fn files_of_processes_have_the_values_of_the_plan() {
    let network = changed();
    let files = files::all(&network);
    let folder = tempfile::tempdir().unwrap();
    let mut detours = 0;
    for (number, host) in network.topology.hosts.iter().enumerate() {
        let name = format!("{}.process.toml", host.name);
        let file = files.iter().find(|file| file.name == name);
        let Some((switch, planned)) = network.plan.process(&network.topology, number) else {
            assert!(file.is_none() && !host.messages);
            continue;
        };
        let path = folder.path().join(&name);
        std::fs::write(&path, &file.expect("the file of the process").content).unwrap();
        let read = config::load(&path).unwrap_or_else(|report| panic!("{}", report.render()));
        let by_library = onepipe_host::load(&path).unwrap_or_else(|report| panic!("{}", report.render()));
        assert_eq!(read.runtime, by_library.runtime);
        assert_eq!(read.runtime.workers.idle, Idle::Sleep);
        let interface = network.interfaces[number].clone();
        assert_eq!(read.runtime.ports[0].device, dataplane::config::Device::AfPacket { interface });
        let FunctionConfig::Process(read) = read.function else { panic!("{path:?}") };
        assert_eq!(read, by_library.process);
        detours += planned.tor.detour.len();
        assert_eq!(planned.peers.len(), 31);
        let expected = onepipe_host::Settings {
            process: planned,
            mac: Some(host.mac),
            prefix: host.prefix,
            switch: network.topology.switches[switch].name.clone(),
            clock: onepipe_host::Clock::Realtime,
            settled_events: false,
            controller: None,
        };
        assert_eq!(read, expected);
        assert!(onepipe::Process::new(read.process).is_ok());
    }
    // Hosts that represent their own switch have a detour.
    assert!(detours > 0);
}

/// Returns the example with a controller.
fn controlled() -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe/testbed.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = format!(
        "{text}\n[controller]\nlisten = \"10.9.0.1:7070\"\nsecret_file = \"s\"\nfail_after_intervals = 33\nrespond_within_ms = 7\n"
    );
    config::parse_plan(&path, &text).unwrap_or_else(|report| panic!("{}", report.render()))
}

#[test]
fn files_name_the_controller_if_the_topology_does() {
    let network = controlled();
    let files = files::all(&network);
    let folder = tempfile::tempdir().unwrap();
    let hash = network.topology.hash();
    let controllers = Controllers {
        addresses: vec!["10.9.0.1:7070".parse().unwrap()],
        secret_file: Some(folder.path().join("s")),
        topology: hash,
    };
    for (number, file) in files[..network.topology.switches.len()].iter().enumerate() {
        let path = folder.path().join(&file.name);
        std::fs::write(&path, &file.content).unwrap();
        let read = config::load(&path).unwrap_or_else(|report| panic!("{}", report.render()));
        let FunctionConfig::OnePipe(read) = read.function else { panic!("{}", file.content) };
        let planned = network.plan.config(&network.topology, number);
        assert_eq!(planned.fail_after_intervals, Some(33));
        assert_eq!(read.switch, Config { forward: read.switch.forward.clone(), ..planned });
        let controller = read.controller.unwrap();
        assert_eq!((usize::from(controller.switch), controller.controllers), (number, controllers.clone()));
    }
    let table = |content: &str| content.parse::<toml::Table>().unwrap()["controller"].clone();
    let process = files.iter().find(|file| file.name == "h8.process.toml").unwrap();
    let expected = format!(
        "addresses = [\"10.9.0.1:7070\"]\nsecret_file = \"s\"\ntopology = \"{hash:016x}\"\nfail_after_intervals = 33\nmax_members = 512"
    );
    assert_eq!(table(&process.content), toml::Value::Table(expected.parse().unwrap()));
    for file in files.iter().filter(|file| file.name.ends_with(".process.toml")) {
        let path = folder.path().join(&file.name);
        std::fs::write(&path, &file.content).unwrap();
        let read = config::load(&path).unwrap_or_else(|report| panic!("{}", report.render()));
        let FunctionConfig::Process(read) = read.function else { panic!("{}", file.content) };
        let controller = read.controller.unwrap();
        assert_eq!((&controller.controllers, controller.fail_after), (&controllers, 33));
        // The switch gets what a member needs to join.
        assert!(read.process.max_members > read.process.peers.len());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe/testbed.toml");
    let controller = files::controller(&network, &path).unwrap();
    let expected = "listen = \"10.9.0.1:7070\"\ntopology = \"topology.toml\"\nsecret_file = \"s\"\nstore = { file = \"controller.redb\" }\nfail_after_intervals = 33\nrespond_within_ms = 7";
    let [controller, topology] = &controller[..] else { panic!("two files") };
    assert_eq!(
        (&*topology.name, &topology.content),
        ("topology.toml", &std::fs::read_to_string(&path).unwrap())
    );
    assert_eq!(table(&controller.content), toml::Value::Table(expected.parse().unwrap()));
    assert!(files::controller(&testbed(), &path).unwrap().is_empty());
    assert!(files::all(&testbed()).iter().all(|file| !file.content.contains("[controller]")));
}

#[test]
fn files_of_processes_have_the_beacons_of_their_link() {
    let network = testbed();
    let files = files::all(&network);
    let root = |name: &str| -> toml::Table {
        files.iter().find(|file| file.name == name).unwrap().content.parse().unwrap()
    };
    let h8 = root("h8.process.toml");
    assert_eq!(
        (h8["process"]["address"].as_str(), h8["process"]["qpn"].as_integer()),
        (Some("10.0.1.8/24"), Some(0x11))
    );
    let beacons = &h8["process"]["beacons"][0];
    assert_eq!((beacons["switch"].as_str(), beacons["qpn"].as_integer()), (Some("tor1"), Some(0x107)));
    assert_eq!((beacons["address"].as_str(), beacons.get("detour")), (Some("10.0.1.1"), None));
    // This host represents its own switch.
    let detour = &root("h1.process.toml")["process"]["beacons"][0]["detour"];
    assert_eq!(detour.as_array().unwrap().len(), 1);
}

/// Returns the rules of the first switch.
fn rules_of(system: System, v6: bool) -> String {
    rules_in(testbed(), system, v6)
}

fn rules_in(mut network: Network, system: System, v6: bool) -> String {
    network.systems[0] = system;
    if v6 {
        network.topology.switches[0].tunnel = Some(IpAddr::from([0xfd; 16]));
        network.plan.switches[0].tunnel_sources = BTreeSet::from([IpAddr::from([0xfe; 16])]);
    }
    rules::all(&network).remove(0).content
}

#[test]
fn rules_for_sonic_are_tunnels_in_config_db() {
    let rules: serde_json::Value = serde_json::from_str(&rules_of(System::Sonic, false)).unwrap();
    let tunnels = rules["TUNNEL"].as_object().unwrap();
    let sources: Vec<_> = tunnels.values().map(|tunnel| tunnel["src_ip"].as_str().unwrap()).collect();
    assert_eq!(sources, ["10.0.1.1", "10.255.0.5", "10.255.0.6"]);
    for (name, tunnel) in tunnels {
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_'), "{name}");
        assert_eq!(
            (tunnel["tunnel_type"].as_str(), tunnel["dst_ip"].as_str()),
            (Some("IPINIP"), Some("10.255.0.1"))
        );
        // The values of SONiC's model, sonic-tunnel.yang
        assert_eq!(
            (tunnel["dscp_mode"].as_str(), tunnel["ttl_mode"].as_str()),
            (Some("uniform"), Some("pipe"))
        );
        assert_eq!(tunnel["ecn_mode"].as_str(), Some("copy_from_outer"));
    }
}

#[test]
fn rules_for_eos_are_a_decap_group() {
    let rules = rules_of(System::Eos, false);
    let lines: Vec<_> = rules.lines().filter(|line| !line.starts_with('!')).collect();
    assert_eq!(lines, ["ip decap-group onepipe", "   tunnel type ipip", "   tunnel decap-ip 10.255.0.1"]);
    assert!(rules.contains("10.0.1.1, 10.255.0.5, 10.255.0.6"), "{rules}");
}

#[test]
fn rules_for_linux_are_a_script() {
    let rules = rules_of(System::Linux, false);
    for line in [
        "ip address replace 10.255.0.1/32 dev lo",
        "ip link add name onepipe0 type ipip local 10.255.0.1 remote 10.0.1.1",
        "sysctl -q -w net.ipv4.conf.onepipe0.rp_filter=0 net.ipv4.conf.onepipe0.accept_local=1",
        "ip link add name onepipe2 type ipip local 10.255.0.1 remote 10.255.0.6",
        "sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.ip_forward=1",
    ] {
        assert!(rules.lines().any(|written| written == line), "{line:?} in\n{rules}");
    }
    let v6_rules = rules_of(System::Linux, true);
    assert!(
        v6_rules.contains("type ip6tnl mode ip6ip6 local fdfd:") && !v6_rules.contains("ipv4"),
        "{v6_rules}"
    );
}

#[test]
fn rules_for_other_systems_are_a_description() {
    let rules = rules_of(System::Other, false);
    assert!(rules.contains("IP packets for 10.255.0.1") && rules.contains("10.0.1.1, 10.255.0.5"), "{rules}");
}

/// This program reads the rules for its own switches, beside the configuration of a router.
#[test]
fn rules_for_understudy_are_read_beside_a_router() {
    let router =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/router.toml"));
    for v6 in [false, true] {
        let mut network = testbed();
        // A router has one MAC address.
        let own = MacAddr([2, 0, 0, 0, 0, 0xfe]);
        network.topology.switches[0].mac = Some(own);
        let rules = rules_in(network, System::Understudy, v6);
        let text = format!("{}\n{rules}", router.as_ref().unwrap());
        let read = config::parse(&text, "my.toml", Path::new(""));
        let read = read.unwrap_or_else(|report| panic!("{}", report.render()));
        let tunnel = read.tunnel.unwrap_or_else(|| panic!("{rules}")).with_port_mac(MacAddr([0; 6]));
        assert_eq!((tunnel.mac, tunnel.inner_forwarding), (own, switch::tunnel::InnerForwarding::Function));
        let expected: (&[&str], &[&str]) = if v6 {
            (&["fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"], &["fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe"])
        } else {
            (&["10.255.0.1"], &["10.0.1.1", "10.255.0.5", "10.255.0.6"])
        };
        let addresses = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!((tunnel.endpoints, tunnel.sources), (addresses(expected.0), addresses(expected.1)));
    }
}

/// If every representative is at its own switch, as in the paper, switches need no rules.
#[test]
fn plans_without_detours_have_no_rules() {
    let mut network = testbed();
    let mut topology: Topology = network.topology.clone();
    for at in 0..topology.switches.len() {
        let mut host = topology.hosts[0].clone();
        let n = at as u8;
        (host.name, host.address, host.mac) =
            (format!("r{n}"), IpAddr::from([10, 9, n, 1]), MacAddr([2, 0, 0, 9, 0, n]));
        (host.switches, host.messages, host.id) = (vec![at], false, None);
        topology.switches[at].mac = Some(MacAddr([2, 0, 0, 8, 0, n]));
        topology.hosts.push(host);
    }
    network.interfaces = vec!["eth0".into(); topology.hosts.len()];
    network.plan = plan(&topology).unwrap();
    network.topology = topology;
    assert!(rules::all(&network).is_empty());
    let text = summary(Path::new("x.toml"), &network);
    assert!(text.contains("64 are as routed. No beacons need a detour."), "{text}");
    assert!(!text.contains("Note:"), "{text}");
    assert!(text.contains("tor1 -> spine1") && !text.contains("IP headers"), "{text}");
}

/// The script runs each planned representative at its host, is valid for a shell, and refuses other hosts.
#[test]
fn the_script_installs_each_representative_at_its_host() {
    let mut network = testbed();
    network.controller = Some(config::Controller {
        listen: "10.9.0.1:7070".parse().unwrap(),
        secret_file: Some("it's".into()),
        respond_within: Nanos(7_000_000),
    });
    let files = units::all(&network);
    let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["install.sh", "understudy-controller.service"]);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("install.sh");
    // What a host would run, without the rest of the script
    let content = files[0]
        .content
        .replace("program=$(command", "echo \"$instances/$process/\"; exit 0\nprogram=$(command");
    std::fs::write(&script, &content).unwrap();
    let run = |argument: &str| {
        let output = understudy_tests::processes::command("sh").arg(&script).arg(argument).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let mut found = 0;
    for (number, host) in network.topology.hosts.iter().enumerate() {
        let represents =
            |(_, planned): &(&representative::plan::Switch, &representative::plan::PlannedSwitch)| {
                planned.representative == number
            };
        let switches = network.topology.switches.iter().zip(&network.plan.switches).filter(represents);
        let instances: Vec<_> =
            switches.map(|(switch, _)| format!("{}.representative", switch.name)).collect();
        found += instances.len();
        let expected = format!("{}/{}.process.toml/\n", instances.join(" "), host.name);
        assert_eq!(run(&host.name), (Some(0), expected));
    }
    assert_eq!(found, network.topology.switches.len());
    assert_eq!(run("--controller"), (Some(0), "//\n".into()));
    assert_eq!(run("other").0, Some(2));
    assert!(files[0].content.contains("secret='it'\\''s'\n"), "{}", files[0].content);
}
