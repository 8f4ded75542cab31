//! Tests of `[swordbox]`.

use crate::config::tests::{PORTS, fails, folder, read, read_in};
use crate::functions::FunctionConfig;
use crate::functions::swordbox::{SwordboxConfig, summary};
use rnic::Interface;
use rocev2::ethernet::MacAddr;
use switch::Nanos;
use switch::drop::FaultSet;
use switch::forward::config::{ForwardingMode, MacTable};
use swordbox::steering::{ListsConfig, LocksConfig, Structure};
use swordbox::{Config, FailedCas, Layers, Server, SwitchOwnedQps, WordTable};

const SERVER: &str = "[[swordbox.server]]\nhost = \"10.0.0.9\"\n";
const BRIDGE: &str = "mac_table = {}\n";

/// Returns a file with these lines in `[swordbox]`.
fn swordbox(lines: &str) -> String {
    [PORTS, "[swordbox]\n", BRIDGE, lines, "\n", SERVER].concat()
}

/// Returns a file with these lines in the table of a server.
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
        mode: ForwardingMode::Mac(MacTable {
            capacity: 4096,
            ageing: Nanos::from_secs(300),
            fixed: Vec::new(),
        }),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 1024,
        health: true,
    }
}

#[test]
fn absent_keys_have_defaults() {
    let servers = vec![Server::new([10, 0, 0, 9].into())];
    let expected = Config { servers, ..Config::new(forward()) };
    assert_eq!(
        switch(&swordbox("")),
        SwordboxConfig { switch: expected, journal: None, uses_port_mac: false, workers: 1 }
    );
}

#[test]
fn every_key_is_read() {
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
        first_nodes: 0,
        cached_nodes: 20,
        tracked_keys: 21,
        hot: 22,
        ..ListsConfig::new(19, 64, 0x2_0000..0x3_0000)
    };
    let structures = vec![
        Structure::Lists(ListsConfig::new(18, 128, 0x1_0000..0x2_0000)),
        Structure::Lists(second_store),
        Structure::Locks(LocksConfig { range: 0x2000..0x2040, rkey: Some(17), stride: 16 }),
    ];
    let tables = vec![
        WordTable { rkey: Some(0x1234), range: 0..u64::MAX, stride: 8, writable: true },
        WordTable { rkey: None, range: 0x7fff_0000_0000..0x7fff_0000_1000, stride: 64, writable: false },
    ];
    let never_cached = vec![0xffff..0x1_0000, 0..8];
    let host = [0xfd00, 0, 0, 0, 0, 0, 0, 9].into();
    let service = rnic::cm::service_id_of(rnic::cm::PortSpace::Tcp, 7471);
    let connect = Some(SwitchOwnedQps { service, private_data: b"lane".to_vec(), qps: 3 });
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
                never_cached,
                detect_after: 12,
                client_owned_qps: 13,
                path_mtu: 1024,
                rd_atomic: 14,
                share: false,
                connect,
            },
        ],
        layers: Layers { remap: true, cas_to_write: true, steer_writes: true, steer_reads: true },
        failed_cas: FailedCas::Respond,
        interface: Some(interface),
        ..Config::new(forward())
    };
    let text = swordbox(&all.join("\n")) + &second.join("\n");
    let folder = folder();
    std::fs::create_dir(folder.path().join("j")).unwrap();
    let found = read_in(folder.path(), &text).unwrap_or_else(|report| panic!("{}", report.render()));
    // The path is relative to the folder of the file.
    let journal = Some(folder.path().join("j/x"));
    let expected = SwordboxConfig { switch: expected, journal, uses_port_mac: false, workers: 1 };
    assert_eq!(switch_of(found.function), expected);
}

#[test]
fn layers_need_a_journal_and_each_other() {
    let journal = "add `journal = \"swordbox.journal\"`, a file that records connections before their two sides differ: \
     after a restart without it, a server could take one of their packets for another";
    fails(&swordbox("layers = [\"remap\"] #!"), "the layer `remap` needs a `journal`", journal);
    fails(
        &swordbox("journal = \"j\"\nlayers = [\"cas_to_write\"] #!"),
        "the layer `cas_to_write` needs the layer `remap`",
        "write `layers = [\"remap\", \"cas_to_write\"]`: the value of a word is known only if all \
         operations on it use one connection",
    );
    fails(
        &swordbox("layers = [\"remaps\"] #!"),
        "an element of `layers` cannot be `remaps`",
        "did you mean `remap`? it can be `remap`, `cas_to_write`, `steer_writes` or `steer_reads`",
    );
    fails(&swordbox("layers = [\"steer_reads\"] #!"), "the layer `steer_reads` needs a `journal`", journal);
    fails(
        &swordbox("journal = \"j\"\nlayers = [\"steer_reads\"] #!"),
        "the layer `steer_reads` needs a [[swordbox.server.lists]]",
        "declare the store of lists of a server, or remove the layer: only requests to lists are steered",
    );
    // A configuration without layers needs no journal.
    assert_eq!(switch(&swordbox("layers = []")).switch.layers, Layers::PASS);
}

#[test]
fn a_topology_is_required() {
    fails(
        &swordbox("").replace(BRIDGE, "").replace("[swordbox]", "[swordbox] #!"),
        "[swordbox] does not define where frames go",
        r#"add `pairs = [["a", "b"]]` to join ports two by two, `mac_table = {}` for a learning bridge, or `routes` for a router"#,
    );
}

#[test]
fn each_server_belongs_to_a_worker() {
    let workers = "[runtime]\nworkers = [\"any\", \"any\", \"any\"]\n";
    let found = switch(&[workers, &swordbox("[[swordbox.server]]\nhost = \"10.0.0.8\"")].concat());
    assert_eq!(found.workers, 3);
    let servers: Vec<_> =
        summary::lines(&found, &[]).into_iter().filter(|(key, _)| *key == "server").collect();
    assert_eq!(servers.len(), 2);
    for (n, (_, server)) in servers.iter().enumerate() {
        assert!(server.ends_with(&format!(", at worker {n}")), "{server}");
    }
    let notes = summary::notes(&found);
    let note = "each server belongs to one worker: of 3 workers, 1 handle the frames of no server, and only forward others";
    assert!(notes.iter().any(|text| text == note), "{notes:?}");
    assert_eq!(summary::notes(&switch(&swordbox(""))).iter().find(|text| text.contains("belongs")), None);
}

#[test]
fn servers_need_their_own_addresses() {
    fails(
        &swordbox("").replace(SERVER, "").replace("[swordbox]", "[swordbox] #!"),
        "[swordbox] has no server",
        "add one for each memory server, such as\n\n[[swordbox.server]]\nhost = \"10.0.0.9\"",
    );
    fails(
        &server("[[swordbox.server]]\nhost = \"10.0.0.9\" #!"),
        "two servers have the address 10.0.0.9",
        "join the two tables into one",
    );
    fails(
        &server("connect = { port = 7471 } #!"),
        "`connect` needs an address of the switch",
        "add `addresses = [\"10.0.0.254/24\"]` to [swordbox], an unused address of the server's network",
    );
    fails(
        &server("[[swordbox.server]] #!\nlanes = 1"),
        "[[swordbox.server]] has no `host`",
        "add `host = \"10.0.0.9\"`",
    );
    fails(
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
    fails(&text, "[swordbox] has 255 servers", "keep at most 254");
}

#[test]
fn the_folder_of_a_journal_exists() {
    fails(
        &swordbox("journal = \"no/j\" #!"),
        "the folder `no` of the journal does not exist",
        "create it: `mkdir -p no`",
    );
}

#[test]
fn tables_have_aligned_ranges() {
    let table = |lines: &str| server(&["[[swordbox.server.table]]\n", lines].concat());
    fails(
        &table("stride = 8").replace(".table]]", ".table]] #!"),
        "[[swordbox.server.table]] does not define where the words are",
        "add `va = 0x10000` and `bytes = 4096`, or `rkey = 0x1234` for all memory of that key",
    );
    fails(&table("rkey = 1\nbytes = 4096 #!"), "`bytes` needs `va`", "add `va = 0x10000`");
    let aligned = "write 0x10000: atomics need words that are aligned to 8 bytes";
    fails(&table("va = 0x10004 #!\nbytes = 8"), "`va` has to be a multiple of 8", aligned);
    let aligned = "write 0x8: atomics need words that are aligned to 8 bytes";
    fails(&table("va = 0x10000\nbytes = 12 #!"), "`bytes` has to be a multiple of 8", aligned);
    fails(&table("rkey = 1\nstride = 12 #!"), "`stride` has to be a multiple of 8", aligned);
    fails(
        &table("va = 0xfffffffffffffff8\nbytes = 16 #!"),
        "16 bytes from 0xfffffffffffffff8 on exceed the address space",
        "write the length of the region, in bytes",
    );
    fails(&server("never = [{ va = 16 }] #!"), "`never` has no `bytes`", "add `bytes = 4096`");
}

#[test]
fn structures_have_aligned_ranges() {
    let lists = |lines: &str| server(&["[[swordbox.server.lists]]\n", lines].concat());
    fails(
        &lists("va = 0x10000\nbytes = 4096\nkeys = 1\nnode_bytes = 100 #!"),
        "`node_bytes` has to be a multiple of 8",
        "write 0x60: atomics need words that are aligned to 8 bytes",
    );
    fails(
        &lists("va = 0\nbytes = 0x4000000000\nkeys = 1\nnode_bytes = 32 #!"),
        "the store has more nodes than 32 bits can count",
        "declare parts of the region as separate stores",
    );
    fails(
        &server("[[swordbox.server.locks]] #!"),
        "[[swordbox.server.locks]] has no `va`",
        "add `va = 0x10000`",
    );
}
