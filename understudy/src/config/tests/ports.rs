//! Tests of `[[port]]`.

use super::{FORWARD, PORTS, fails, port};

#[test]
fn a_file_needs_a_port() {
    fails(
        "[forward]\npairs = []\n",
        "there is no port",
        "add one for each device, such as\n\n[[port]]\nname = \"host-a\"\naf_packet = { interface = \"eth1\" }",
    );
}

#[test]
fn ports_need_valid_names_of_their_own() {
    fails(
        "\n[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = \"a\" #!\nring = {}\n\n[forward]\npairs = [[\"a\", \"a\"]]\n",
        "two ports are called `a`",
        "give each port a name of its own",
    );
    fails(
        "\n[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = \"b c\" #!\nring = {}\n\n[forward]\npairs = [[\"a\", \"b c\"]]\n",
        "not a valid name of a port",
        r#"write up to 32 letters, digits, `-`, `_` and `.`, such as `name = "host-a"`"#,
    );
    fails(
        &["[[port]] #!\nring = {}\n", PORTS, FORWARD].concat(),
        "[[port]] has no `name`",
        r#"add `name = "host-a"`"#,
    );
    fails(
        &["\n[[port]]\nname = \"a\"\nring = {}\n[[port]]\nname = 5 #!\nring = {}\n", FORWARD].concat(),
        "`name` has to be a string in quotes, and is a whole number",
        r#"put it in quotes: `name = "5"`"#,
    );
}

#[test]
fn numbers_outside_of_their_range_are_reported() {
    fails(&port("mtu = 67 #!"), "`mtu` cannot be 67", "write a number from 68 to 9600, such as `mtu = 1500`");
    fails(
        &port("mtu = 9601 #!"),
        "`mtu` cannot be 9601",
        "write a number from 68 to 9600, such as `mtu = 1500`",
    );
    fails(
        &port("rx_queues = 129 #!"),
        "`rx_queues` cannot be 129",
        "write a number from 0 to 128, such as `rx_queues = 1`",
    );
    fails(
        &port("descriptors = 500 #!"),
        "`descriptors` has to be a power of two, but is 500",
        "the nearest are `256` and `512`",
    );
    fails(
        &port("descriptors = 16 #!"),
        "`descriptors` cannot be 16",
        "write a number from 32 to 32768, such as `descriptors = 512`",
    );
    fails(
        &port("descriptors = 65536 #!"),
        "`descriptors` cannot be 65536",
        "write a number from 32 to 32768, such as `descriptors = 512`",
    );
    fails(
        &port("buffers = 1000 #!"),
        "port `a` needs 1536 buffers or more",
        "write `buffers = 8192` (512 descriptors in each of 2 queues, 512 for each worker), or reduce `descriptors`",
    );
    fails(
        &port("buffers = 10 #!"),
        "`buffers` cannot be 10",
        "write a number from 64 to 67108864, such as `buffers = 8192`",
    );
}

#[test]
fn two_ports_cannot_share_a_device() {
    fails(
        &["[[port]]\nname = \"a\"\ntap = { interface = \"us0\" }\n[[port]]\nname = \"b\"\ntap = { interface = \"us0\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the interface `us0`",
        "give each port a device of its own",
    );
    fails(
        &["[[port]]\nname = \"a\"\ntap = { interface = \"us0\" }\n[[port]]\nname = \"b\"\naf_packet = { interface = \"us0\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the interface `us0`",
        "give each port a device of its own",
    );
    fails(
        &["[[port]]\nname = \"a\"\naf_xdp = { interface = \"us0\" }\n[[port]]\nname = \"b\"\naf_xdp = { interface = \"us0\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the interface `us0`",
        "give each port a device of its own",
    );
    fails(
        &["[runtime]\nhugepages = true\n[[port]]\nname = \"a\"\npci = \"0000:3b:00.0\"\n[[port]]\nname = \"b\"\nmlx5 = \"0000:3B:00.0\" #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the PCI device 0000:3b:00.0",
        "give each port a device of its own",
    );
    fails(
        &["[[port]]\nname = \"a\"\nmemif = { socket = \"s\", role = \"server\" }\n[[port]]\nname = \"b\"\nmemif = { socket = \"./s\", role = \"server\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the interface 0 of the socket s",
        "give each port a device of its own",
    );
    fails(
        &["[[port]]\nname = \"a\"\nmemif = { socket = \"s\", role = \"server\" }\n[[port]]\nname = \"b\"\nvhost = { socket = \"s\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the socket s",
        "give each port a device of its own",
    );
    fails(
        &["[[port]]\nname = \"a\"\npcap = { tx = \"o.pcap\" }\n[[port]]\nname = \"b\"\npcap = { tx = \"./o.pcap\" } #!\n", FORWARD].concat(),
        "port `a` and port `b` both use the file `o.pcap`, to which one of them records",
        "give each port a device of its own",
    );
}
