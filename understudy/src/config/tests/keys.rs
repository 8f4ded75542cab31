//! Tests of keys and tables that do not exist, or that have another type.

use super::{FORWARD, PORTS, device, fails, forward, port, runtime};

const RUNTIME_KEYS: &str = "[runtime] takes `workers`, `idle`, `memory_mb`, `hugepages`, `file_prefix`, `telemetry`, `handoff_ring`, `control_queue`, `on_link_loss` and `stop_when_idle_ms`";
const PORT_KEYS: &str = "[[port]] takes `name`, `mtu`, `rx_queues`, `descriptors`, `buffers`, `pci`, `mlx5`, `af_packet`, `af_xdp`, `tap`, `memif`, `vhost`, `ring`, `pcap`, `null` and `devargs`";
const FORWARD_KEYS: &str =
    "[forward] takes `pairs`, `mac_table`, `routes`, `verify`, `drop`, `counted_qps` and `health`";

#[test]
fn unknown_keys_of_runtime_are_reported() {
    fails(
        &runtime("hugepage = true #!"),
        "there is no key `hugepage` in [runtime]",
        &format!("did you mean `hugepages`? {RUNTIME_KEYS}"),
    );
    fails(
        &runtime("memory = 64 #!"),
        "there is no key `memory` in [runtime]",
        &format!("did you mean `memory_mb`? {RUNTIME_KEYS}"),
    );
    fails(&runtime("cores = 4 #!"), "there is no key `cores` in [runtime]", RUNTIME_KEYS);
    fails(
        &runtime("mtu = 1500 #!"),
        "there is no key `mtu` in [runtime]",
        "`mtu` belongs to [[port]]: move it there",
    );
}

#[test]
fn unknown_keys_of_a_port_are_reported() {
    fails(
        &port("mtuu = 1500 #!"),
        "there is no key `mtuu` in [[port]]",
        &format!("did you mean `mtu`? {PORT_KEYS}"),
    );
    fails(
        &port(r#"af-packet = { interface = "eth0" } #!"#),
        "there is no key `af-packet` in [[port]]",
        &format!("did you mean `af_packet`? {PORT_KEYS}"),
    );
    fails(
        &port("hugepages = true #!"),
        "there is no key `hugepages` in [[port]]",
        "`hugepages` belongs to [runtime]: move it there",
    );
    fails(&port("speed = 100 #!"), "there is no key `speed` in [[port]]", PORT_KEYS);
}

#[test]
fn unknown_keys_of_a_device_are_reported() {
    fails(
        &device(r#"tap = { iface = "us0", interface = "us0" } #!"#),
        "there is no key `iface` in `tap`",
        "`tap` takes `interface`",
    );
    fails(&device("ring = { size = 4 } #!"), "there is no key `size` in `ring`", "`ring` takes no keys");
    fails(
        &device("null = { len = 64 } #!"),
        "there is no key `len` in `null`",
        "`null` takes `size` and `copy`",
    );
    fails(
        &device(r#"memif = { socket = "s", role = "server", server = true } #!"#),
        "there is no key `server` in `memif`",
        "`memif` takes `socket`, `id`, `role` and `peer_uid`",
    );
}

#[test]
fn unknown_keys_of_forward_are_reported() {
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndorp = \"all\" #!"),
        "there is no key `dorp` in [forward]",
        &format!("did you mean `drop`? {FORWARD_KEYS}"),
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\nports = 2 #!"),
        "there is no key `ports` in [forward]",
        FORWARD_KEYS,
    );
    fails(
        &forward("mac_table = { size = 5 } #!"),
        "there is no key `size` in `mac_table`",
        "`mac_table` takes `capacity`, `ageing_s` and `fixed`",
    );
    fails(
        &forward(r#"mac_table = { fixed = [{ mac = "52:54:00:00:00:01", port = "a", weight = 4 }] } #!"#),
        "there is no key `weight` in `fixed`",
        "`fixed` takes `mac` and `port`",
    );
}

#[test]
fn unknown_tables_are_reported() {
    fails(
        &[PORTS, "[forwrd] #!\npairs = [[\"a\", \"b\"]]\n"].concat(),
        "there is no table `forwrd`",
        "did you mean `[forward]`? the tables are `[runtime]`, `[[port]]`, `[forward]`, `[impair]`, `[nic]`, `[p4ce]`, `[swordbox]`, `[onepipe]`, `[process]`, `[pktgen]`, `[consensus]`, `[tunnel]` and `[observe]`",
    );
    fails(
        &[PORTS, "[router] #!\n"].concat(),
        "there is no table `router`",
        "the tables are `[runtime]`, `[[port]]`, `[forward]`, `[impair]`, `[nic]`, `[p4ce]`, `[swordbox]`, `[onepipe]`, `[process]`, `[pktgen]`, `[consensus]`, `[tunnel]` and `[observe]`",
    );
    fails(
        "\n[[port]]\nname = \"a\"\nring = {}\n\n[forward]\npairs = [[\"a\", \"a\"]]\n[[prot]] #!\nname = \"b\"\n",
        "there is no table `prot`",
        "did you mean `[[port]]`? the tables are `[runtime]`, `[[port]]`, `[forward]`, `[impair]`, `[nic]`, `[p4ce]`, `[swordbox]`, `[onepipe]`, `[process]`, `[pktgen]`, `[consensus]`, `[tunnel]` and `[observe]`",
    );
}

#[test]
fn keys_outside_of_any_table_are_reported_with_their_table() {
    fails(
        &["mtu = 1500 #!\n", PORTS, FORWARD].concat(),
        "`mtu` stands outside of any table",
        "move it below the line `[[port]]`",
    );
    fails(
        &["drop = \"all\" #!\n", PORTS, FORWARD].concat(),
        "`drop` stands outside of any table",
        "move it below the line `[forward]`",
    );
    fails(
        &["workers = [1] #!\n", PORTS, FORWARD].concat(),
        "`workers` stands outside of any table",
        "move it below the line `[runtime]`",
    );
    fails(
        &["speed = 100 #!\n", PORTS, FORWARD].concat(),
        "`speed` stands outside of any table",
        "move it below the line `[runtime]`, `[[port]]`, `[forward]`, `[impair]`, `[nic]`, `[p4ce]`, `[swordbox]`, `[onepipe]`, `[process]`, `[pktgen]`, `[consensus]`, `[tunnel]` or `[observe]`",
    );
}

#[test]
fn wrong_brackets_are_reported() {
    fails(
        "[port] #!\nname = \"a\"\nring = {}\n[forward]\npairs = [[\"a\", \"a\"]]\n",
        "`port` has to be a list of tables",
        "begin each with the line `[[port]]`, in double brackets, and write its keys below",
    );
    fails(
        "port = 5 #!\n[forward]\npairs = [[\"a\", \"a\"]]\n",
        "`port` has to be a list of tables",
        "begin each with the line `[[port]]`, in double brackets, and write its keys below",
    );
    fails(
        &[PORTS, "[[forward]] #!\npairs = [[\"a\", \"b\"]]\n"].concat(),
        "`forward` has to be a table, and is a list",
        "begin it with the line `[forward]`, in single brackets, and write its keys below",
    );
    fails(
        &["[[runtime]] #!\n", PORTS, FORWARD].concat(),
        "`runtime` has to be a table, and is a list",
        "begin it with the line `[runtime]`, in single brackets, and write its keys below",
    );
}

#[test]
fn wrong_types_are_reported() {
    fails(
        &runtime(r#"memory_mb = "64" #!"#),
        "`memory_mb` has to be a whole number, and is a string",
        "leave out the quotes: `memory_mb = 64`",
    );
    fails(
        &runtime(r#"memory_mb = "much" #!"#),
        "`memory_mb` has to be a whole number, and is a string",
        "write a number such as `memory_mb = 64`",
    );
    fails(
        &runtime("memory_mb = 64.5 #!"),
        "`memory_mb` has to be a whole number, and is a number with a fraction",
        "write a number such as `memory_mb = 64`",
    );
    fails(
        &runtime("memory_mb = -1 #!"),
        "`memory_mb` cannot be -1",
        "write a number from 4 to 1048576, such as `memory_mb = 64`",
    );
    fails(
        &runtime("memory_mb = 3 #!"),
        "`memory_mb` cannot be 3",
        "write a number from 4 to 1048576, such as `memory_mb = 64`",
    );
    fails(
        &runtime("memory_mb = 99999999999999999999 #!"),
        "`memory_mb` cannot be 99999999999999999999",
        "write a number from 4 to 1048576, such as `memory_mb = 64`",
    );
    fails(
        &runtime("hugepages = 1 #!"),
        "`hugepages` has to be `true` or `false`, and is a whole number",
        "write `true` or `false` without quotes: `hugepages = true`",
    );
    fails(
        &runtime(r#"hugepages = "true" #!"#),
        "`hugepages` has to be `true` or `false`, and is a string",
        "write `true` or `false` without quotes: `hugepages = true`",
    );
    fails(
        &runtime("file_prefix = 5 #!"),
        "`file_prefix` has to be a string in quotes, and is a whole number",
        r#"put it in quotes: `file_prefix = "5"`"#,
    );
    fails(
        &runtime(r#"file_prefix = "" #!"#),
        "`file_prefix` is empty",
        r#"write a string in quotes, such as `file_prefix = "understudy"`"#,
    );
    fails(
        &runtime(r#"file_prefix = ["a"] #!"#),
        "`file_prefix` has to be a string in quotes, and is a list",
        r#"write a string in quotes, such as `file_prefix = "understudy"`"#,
    );
}
