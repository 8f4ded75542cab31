//! `[swordbox]`.

use super::{PORTS, folder, read, read_in, wrong};
use crate::config::{FunctionConfig, SwordboxConfig};
use rnic::Interface;
use rocev2::ethernet::MacAddr;
use switch::Nanos;
use switch::drop::FaultSet;
use switch::forward::config::{MacTable, Topology};
use swordbox::clients::clover::Layout;
use swordbox::steering::{ListsConfig, LocksConfig, Structure};
use swordbox::{Config, Connect, FailedCas, Layers, Server, Table};

const SERVER: &str = "[[swordbox.server]]\nhost = \"10.0.0.9\"\n";
const BRIDGE: &str = "mac_table = {}\n";

/// A file with these lines in `[swordbox]`
fn swordbox(lines: &str) -> String {
    [PORTS, "[swordbox]\n", BRIDGE, lines, "\n", SERVER].concat()
}

/// A file with these lines in the table of a server
fn server(lines: &str) -> String {
    swordbox("") + lines + "\n"
}

fn switch(text: &str) -> SwordboxConfig {
    switch_of(read(text).function)
}

fn switch_of(function: FunctionConfig) -> SwordboxConfig {
    match function {
        FunctionConfig::Swordbox(config) => config,
        other => panic!("{other:?}"),
    }
}

fn forward() -> switch::forward::Config {
    switch::forward::Config {
        ports: 2,
        topology: Topology::Mac(MacTable {
            capacity: 4096,
            ageing: Nanos::from_secs(300),
            fixed: Vec::new(),
        }),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 1024,
    }
}

#[test]
fn what_is_not_said() {
    let servers = vec![Server::new([10, 0, 0, 9].into())];
    let expected = Config { servers, ..Config::new(forward()) };
    assert_eq!(switch(&swordbox("")), SwordboxConfig { switch: expected, journal: None, mac_of_port: false });
}

#[test]
fn what_is_said() {
    let all = [
        "layers = [\"remap\", \"cas_to_write\", \"steer_writes\", \"steer_reads\"]\njournal = \"j/x\"",
        "failed_cas = \"answer\"\nconnections = 3\nin_flight = 4\nrd_atomic = 5\nlines = 6\nheld = 7\nageing_s = 8\nproof_s = 23\nconnections_per_host = 24",
        "settle_us = 9\nreplay_after_us = 10\ndead_after_ms = 11\ncounted_qps = 0\nverify = [\"icrc\"]\nappends = 15\nwithheld = 16",
        "mac = \"02:00:00:00:00:fe\"\naddresses = [\"10.0.0.254/24\"]\ngateways = [\"10.0.0.1\"]\nvlan = 10",
    ];
    let second = [
        "[[swordbox.server]]\nhost = \"fd00::9\"\ndetect = 12\nlanes = 13\nrd_atomic = 14\nshare = false\npath_mtu = 1024\nconnect = { port = 7471, lanes = 3, private_data = \"lane\" }",
        "never = [{ va = 0xffff, bytes = 1 }, { va = 0, bytes = 8 }]",
        "[[swordbox.server.table]]\nrkey = 0x1234\nwritable = true",
        "[[swordbox.server.table]]\nva = 0x7fff00000000\nbytes = 0x1000\nstride = 64",
        "[[swordbox.server.locks]]\nrkey = 17\nva = 0x2000\nbytes = 64\nstride = 16",
        "[[swordbox.server.lists]]\nva = 0x10000\nbytes = 0x10000\nkeys = 18\nnode_bytes = 128",
        "[[swordbox.server.lists]]\nva = 0x20000\nbytes = 0x10000\nkeys = 19\nnode_bytes = 64",
        "firsts = 0\nremembered = 20\ntracked = 21\nhot = 22\n",
    ];
    let second_store = ListsConfig {
        firsts: 0,
        remembered: 20,
        tracked: 21,
        hot: 22,
        ..ListsConfig::new(Layout { keys: 19, node_len: 64 }, 0x2_0000..0x3_0000)
    };
    let structures = vec![
        Structure::Lists(ListsConfig::new(Layout { keys: 18, node_len: 128 }, 0x1_0000..0x2_0000)),
        Structure::Lists(second_store),
        Structure::Locks(LocksConfig { range: 0x2000..0x2040, rkey: Some(17), stride: 16 }),
    ];
    let tables = vec![
        Table { rkey: Some(0x1234), range: 0..u64::MAX, stride: 8, writable: true },
        Table { rkey: None, range: 0x7fff_0000_0000..0x7fff_0000_1000, stride: 64, writable: false },
    ];
    let never = vec![0xffff..0x1_0000, 0..8];
    let host = [0xfd00, 0, 0, 0, 0, 0, 0, 9].into();
    let service = rnic::cm::service_id_of(rnic::cm::PortSpace::Tcp, 7471);
    let connect = Some(Connect { service, private_data: b"lane".to_vec(), lanes: 3 });
    let interface = Interface {
        gateways: vec![[10, 0, 0, 1].into()],
        vlan: Some(10),
        ..Interface::new(MacAddr([2, 0, 0, 0, 0, 0xfe]), [10, 0, 0, 254].into(), 24)
    };
    let expected = Config {
        forward: switch::forward::Config { verify_icrc: true, counted_qps: 0, ..forward() },
        connections: 3,
        per_host: 24,
        in_flight: 4,
        rd_atomic: 5,
        lines: 6,
        held: 7,
        appends: 15,
        withheld: 16,
        ageing: Nanos::from_secs(8),
        proof: Nanos::from_secs(23),
        settle: Nanos::from_micros(9),
        replay_after: Nanos::from_micros(10),
        dead_after: Nanos::from_millis(11),
        servers: vec![
            Server::new([10, 0, 0, 9].into()),
            Server {
                host,
                tables,
                structures,
                never,
                detect: 12,
                lanes: 13,
                path_mtu: 1024,
                rd_atomic: 14,
                share: false,
                connect,
            },
        ],
        layers: Layers { remap: true, cas_to_write: true, steer_writes: true, steer_reads: true },
        failed_cas: FailedCas::Answer,
        interface: Some(interface),
        ..Config::new(forward())
    };
    let text = swordbox(&all.join("\n")) + &second.join("\n");
    let folder = folder();
    let found = read_in(folder.path(), &text).unwrap_or_else(|report| panic!("{}", report.render()));
    // It lies where the file does.
    let journal = Some(folder.path().join("j/x"));
    assert_eq!(switch_of(found.function), SwordboxConfig { switch: expected, journal, mac_of_port: false });
}

#[test]
fn layers_that_need_something() {
    let journal = "add `journal = \"swordbox.journal\"`, a file in which connections are noted before their two sides \
                   differ: after a restart without it, a server could take a packet of theirs for another";
    wrong(&swordbox("layers = [\"remap\"] #!"), "the layer `remap` needs a `journal`", journal);
    wrong(
        &swordbox("journal = \"j\"\nlayers = [\"cas_to_write\"] #!"),
        "the layer `cas_to_write` needs the layer `remap`",
        "write `layers = [\"remap\", \"cas_to_write\"]`: what a word holds is known only if everything goes to it on one \
         connection",
    );
    wrong(
        &swordbox("layers = [\"remaps\"] #!"),
        "an element of `layers` cannot be `remaps`",
        "did you mean `remap`? it can be `remap`, `cas_to_write`, `steer_writes` or `steer_reads`",
    );
    wrong(&swordbox("layers = [\"steer_reads\"] #!"), "the layer `steer_reads` needs a `journal`", journal);
    // Packets may pass without one.
    assert_eq!(switch(&swordbox("layers = []")).switch.layers, Layers::PASS);
}

#[test]
fn bridge_and_workers() {
    wrong(
        &swordbox("").replace(BRIDGE, "").replace("[swordbox]", "[swordbox] #!"),
        "[swordbox] does not say where frames go",
        r#"add `pairs = [["a", "b"]]` to join ports two by two, `mac_table = {}` for a bridge that learns who is where, or `routes` for a router"#,
    );
    wrong(
        &["[runtime]\nworkers = [0, 1] #!\n", &swordbox("")].concat(),
        "[swordbox] has one worker: operations on a word are put into one order by one owner",
        "write `workers = [1]`, or leave the key out",
    );
}

#[test]
fn servers() {
    wrong(
        &swordbox("").replace(SERVER, "").replace("[swordbox]", "[swordbox] #!"),
        "[swordbox] has no server",
        "add one for each memory server, such as\n\n[[swordbox.server]]\nhost = \"10.0.0.9\"",
    );
    wrong(
        &server("[[swordbox.server]]\nhost = \"10.0.0.9\" #!"),
        "two servers have the address 10.0.0.9",
        "write what is said of it into one table",
    );
    wrong(
        &server("connect = { port = 7471 } #!"),
        "lanes of the switch's own need an address",
        "add `addresses = [\"10.0.0.254/24\"]` to [swordbox], an address of the server's network that no host has",
    );
    wrong(
        &server("[[swordbox.server]] #!\nlanes = 1"),
        "[[swordbox.server]] has no `host`",
        "add `host = \"10.0.0.9\"`",
    );
    wrong(
        &swordbox("in_flight = 1000 #!"),
        "`in_flight` has to be a power of two, but is 1000",
        "the nearest are `512` and `1024`",
    );
    let many: Vec<_> = (0..255).map(|n| format!("[[swordbox.server]]\nhost = \"10.0.1.{n}\"\n")).collect();
    let text = swordbox("").replace(SERVER, "") + &many.concat();
    let text = text.replace(
        "[[swordbox.server]]\nhost = \"10.0.1.254\"",
        "[[swordbox.server]] #!\nhost = \"10.0.1.254\"",
    );
    wrong(&text, "there are 255 servers", "remove some: 254 is the most");
}

#[test]
fn tables() {
    let table = |lines: &str| server(&["[[swordbox.server.table]]\n", lines].concat());
    wrong(
        &table("stride = 8").replace(".table]]", ".table]] #!"),
        "[[swordbox.server.table]] does not say where the words lie",
        "add `va = 0x10000` and `bytes = 4096`, or `rkey = 0x1234` for all that a key leads to",
    );
    wrong(&table("rkey = 1\nbytes = 4096 #!"), "`bytes` needs a `va` to count from", "add `va = 0x10000`");
    let aligned = "atomics are done on aligned words of 8 bytes: write 0x10000";
    wrong(&table("va = 0x10004 #!\nbytes = 8"), "`va` has to be a multiple of 8", aligned);
    let aligned = "atomics are done on aligned words of 8 bytes: write 0x8";
    wrong(&table("rkey = 1\nstride = 12 #!"), "`stride` has to be a multiple of 8", aligned);
    wrong(
        &table("va = 0xfffffffffffffff8\nbytes = 16 #!"),
        "16 bytes from 0xfffffffffffffff8 on reach beyond all addresses",
        "write the length of the region",
    );
    wrong(&server("never = [{ va = 16 }] #!"), "`never` has no `bytes`", "add `bytes = 4096`");
}

#[test]
fn structures() {
    let lists = |lines: &str| server(&["[[swordbox.server.lists]]\n", lines].concat());
    wrong(
        &lists("va = 0x10000\nbytes = 4096\nkeys = 1\nnode_bytes = 100 #!"),
        "`node_bytes` has to be a multiple of 8",
        "atomics are done on aligned words of 8 bytes: write 0x60",
    );
    wrong(
        &lists("va = 0\nbytes = 0x4000000000\nkeys = 1\nnode_bytes = 32 #!"),
        "there are more nodes than 32 bits can count",
        "declare parts of the region, each as a store of its own",
    );
    wrong(
        &server("[[swordbox.server.locks]] #!"),
        "[[swordbox.server.locks]] has no `va`",
        "add `va = 0x10000`",
    );
}
