//! Tests of `[forward]`.

use crate::config::tests::{PORTS, fails, forward};

#[test]
fn a_file_needs_a_function() {
    fails(
        &[PORTS].concat(),
        "no table defines what happens to frames",
        "add a function, such as\n\n[forward]\npairs = [[\"a\", \"b\"]]\n\nit can be `[forward]`, \
         `[impair]`, `[nic]`, `[p4ce]`, `[swordbox]`, `[onepipe]`, `[process]` or `[pktgen]`; configs/ has \
         an example of each",
    );
}

#[test]
fn forward_needs_exactly_one_mode() {
    fails(
        &[PORTS, "[forward] #!\n"].concat(),
        "[forward] does not define where frames go",
        r#"add `pairs = [["a", "b"]]` to join ports two by two, `mac_table = {}` for a learning bridge, or `routes` for a router"#,
    );
    fails(
        &[PORTS, "[forward]\npairs = [[\"a\", \"b\"]]\nmac_table = {} #!\n"].concat(),
        "[forward] has both `pairs` and `mac_table`",
        "keep `pairs` to join ports two by two, `mac_table` for a learning bridge, or `routes` for a router",
    );
}

#[test]
fn pairs_name_two_ports_each() {
    fails(&forward(r#"pairs = [["a", "bb"]] #!"#), "there is no port `bb`", "the ports are `a` and `b`");
    fails(
        &forward(r#"pairs = ["a", "b"] #!"#),
        "`pairs` has to be a list of pairs",
        r#"put brackets around each pair: `pairs = [["a", "b"]]`"#,
    );
    fails(
        &forward(r#"pairs = "a-b" #!"#),
        "`pairs` has to be a list, and is a string",
        r#"write a list in brackets, such as `pairs = [["host-a", "host-b"]]`"#,
    );
    fails(
        &forward(r#"pairs = [["a", "b", "c"]] #!"#),
        "an element of `pairs` has to be a pair of ports",
        r#"write two names in brackets, and brackets around all pairs: `pairs = [["a", "b"]]`"#,
    );
    fails(
        &forward(r#"pairs = [["a", "b"], ["b", "b"]] #!"#),
        "port `b` is in two pairs",
        "remove it from one of them; to join more than two ports use `mac_table = {}` in place of `pairs`",
    );
    fails(
        &forward(r#"pairs = [["a", 5]] #!"#),
        "an element of `pairs` has to be a string in quotes, and is a whole number",
        r#"put it in quotes: `"5"`"#,
    );
}

#[test]
fn a_port_in_no_pair_is_reported() {
    fails(
        "\n[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = \"b\" #!\nring = {}\n\n[forward]\npairs = [[\"a\", \"a\"]]\n",
        "port `b` is in no pair",
        r#"add a pair with it to `pairs`, such as `["b", "b"]` to reflect frames, or remove the port"#,
    );
}

#[test]
fn bridges_have_keys_within_range() {
    fails(
        &forward("mac_table = true #!"),
        "`mac_table` has to be a table, and is `true` or `false`",
        "write a table in braces, such as `mac_table = { capacity = 4096 }`",
    );
    fails(
        &forward("mac_table = { capacity = 0 } #!"),
        "`capacity` cannot be 0",
        "write a number from 1 to 1048576, such as `capacity = 4096`",
    );
    fails(
        &forward("mac_table = { ageing_s = 0 } #!"),
        "`ageing_s` cannot be 0",
        "write a number from 1 to 1000000, such as `ageing_s = 300`",
    );
}

#[test]
fn a_bridge_needs_two_ports() {
    fails(
        "[[port]]\nname = \"a\"\nring = {}\n[forward]\nmac_table = {} #!\n",
        "a bridge needs at least two ports",
        r#"add a [[port]], or reflect frames with `pairs = [["a", "a"]]`"#,
    );
}

#[test]
fn fixed_stations_have_a_port_and_a_unicast_address() {
    fails(
        &forward(r#"mac_table = { fixed = [{ mac = "52:54:00:00:00:01" }] } #!"#),
        "`fixed` has no `port`",
        r#"add `port = "host-a"`"#,
    );
    fails(
        &forward(r#"mac_table = { fixed = [{ port = "a" }] } #!"#),
        "`fixed` has no `mac`",
        r#"add `mac = "52:54:00:00:00:01"`"#,
    );
    fails(
        &forward(r#"mac_table = { fixed = [{ mac = "52:54", port = "a" }] } #!"#),
        "`52:54` is not a MAC address",
        r#"write six bytes in hexadecimal with colons, such as `"52:54:00:00:00:01"`"#,
    );
    fails(
        &forward(r#"mac_table = { fixed = [{ mac = "01:00:5e:00:00:01", port = "a" }] } #!"#),
        "01:00:5e:00:00:01 is a group address, which belongs to no single station",
        "give the address of one station: the first byte of such an address is even, as in `52:54:00:00:00:01`",
    );
    fails(
        &forward(r#"mac_table = { fixed = [{ mac = "52:54:00:00:00:01", port = "A" }] } #!"#),
        "there is no port `A`",
        "did you mean `a`? the ports are `a` and `b`",
    );
    fails(
        &forward(r#"mac_table = { fixed = ["52:54:00:00:00:01"] } #!"#),
        "an element of `fixed` has to be a table, and is a string",
        r#"write a table in braces, such as `{ mac = "52:54:00:00:00:01", port = "host-a" }`"#,
    );
}

#[test]
fn faults_are_verified_before_they_are_dropped() {
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndrop = [\"trunc\"] #!"),
        "an element of `drop` cannot be `trunc`",
        "did you mean `truncated`? it can be `truncated`, `ip_header`, `ip_length`, `ip_checksum`, `fragment`, `udp_length`, `udp_checksum`, `transport_version`, `unknown_opcode`, `opcode_length`, `unaligned`, `oversized` or `icrc`",
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndrop = [\"crc\", \"oversized\"] #!"),
        "an element of `drop` cannot be `crc`",
        "did you mean `icrc`? it can be `truncated`, `ip_header`, `ip_length`, `ip_checksum`, `fragment`, `udp_length`, `udp_checksum`, `transport_version`, `unknown_opcode`, `opcode_length`, `unaligned`, `oversized` or `icrc`",
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndrop = \"everything\" #!"),
        r#"`drop` takes a list, `"all"` or `"none"`"#,
        r#"write a list in brackets, such as `drop = ["icrc"]`"#,
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndrop = true #!"),
        "`drop` has to be a list, and is `true` or `false`",
        r#"write a list in brackets, such as `drop = ["icrc"]`"#,
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ndrop = [\"icrc\"] #!"),
        "frames with a wrong `icrc` are never dropped, because nothing verifies it",
        r#"add `"icrc"` to `verify`, such as `verify = ["icrc"]`, or remove it here"#,
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\nverify = [\"icrc\"]\ndrop = [\"icrc\", \"udp_checksum\"] #!"),
        "frames with a wrong `udp_checksum` are never dropped, because nothing verifies it",
        r#"add `"udp_checksum"` to `verify`, such as `verify = ["udp_checksum"]`, or remove it here"#,
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\nverify = [\"udp-checksum\"] #!"),
        "`udp-checksum` cannot be verified",
        "did you mean `udp_checksum`? `verify` takes `icrc` and `udp_checksum`, which cost time; the \
         headers are always verified",
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\nverify = [\"ip_checksum\"] #!"),
        "`ip_checksum` is always verified",
        "remove it: `verify` takes `icrc` and `udp_checksum`, which cost time; the headers are always \
         verified",
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\nverify = [\"payload\"] #!"),
        "`payload` cannot be verified",
        "`verify` takes `icrc` and `udp_checksum`, which cost time; the headers are always verified",
    );
    fails(
        &forward("pairs = [[\"a\", \"b\"]]\ncounted_qps = -1 #!"),
        "`counted_qps` cannot be -1",
        "write a number from 0 to 1048576, such as `counted_qps = 1024`",
    );
}
