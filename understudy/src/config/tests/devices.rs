//! Tests of the devices of ports.

use super::{captures, device, fails, fails_in};

#[test]
fn a_port_needs_a_device() {
    fails(
        "[[port]] #!\nname = \"a\"\n[forward]\npairs = [[\"a\", \"a\"]]\n",
        "port `a` has no device",
        r#"add one of `pci`, `mlx5`, `af_packet`, `af_xdp`, `tap`, `memif`, `vhost`, `ring`, `pcap` or `null`, such as `af_packet = { interface = "eth1" }`"#,
    );
}

#[test]
fn a_port_has_one_device() {
    fails(
        &device("tap = { interface = \"us0\" }\nring = {} #!"),
        "port `a` has 2 devices",
        "keep one, and write a [[port]] for each of the others",
    );
}

#[test]
fn devices_are_tables() {
    fails(
        &device(r#"af_packet = "eth0" #!"#),
        "`af_packet` has to be a table in braces",
        r#"write `af_packet = { interface = "eth0" }`"#,
    );
    fails(
        &device(r#"af_xdp = "eth0" #!"#),
        "`af_xdp` has to be a table in braces",
        r#"write `af_xdp = { interface = "eth0" }`"#,
    );
    fails(
        &device(r#"tap = "us0" #!"#),
        "`tap` has to be a table in braces",
        r#"write `tap = { interface = "us0" }`"#,
    );
    fails(
        &device(r#"pcap = "in.pcap" #!"#),
        "`pcap` has to be a table in braces",
        r#"write `pcap = { rx = "in.pcap" }`"#,
    );
    fails(
        &device(r#"memif = "s" #!"#),
        "`memif` has to be a table in braces",
        r#"write `memif = { socket = "s" }`"#,
    );
    fails(
        &device(r#"vhost = "s" #!"#),
        "`vhost` has to be a table in braces",
        r#"write `vhost = { socket = "s" }`"#,
    );
    fails(
        &device("ring = true #!"),
        "`ring` has to be a table, and is `true` or `false`",
        "write a table in braces, such as `ring = {}`",
    );
    fails(
        &device("null = true #!"),
        "`null` has to be a table, and is `true` or `false`",
        "write a table in braces, such as `null = { size = 64 }`",
    );
    fails(
        &device("pci = {} #!"),
        "`pci` has to be a string in quotes, and is a table",
        r#"write a string in quotes, such as `pci = "0000:3b:00.0"`"#,
    );
}

#[test]
fn pci_addresses_are_complete_and_need_huge_pages() {
    fails(
        &device(r#"pci = "3b:00.0" #!"#),
        "`3b:00.0` is not a PCI address",
        r#"add the domain: `"0000:3b:00.0"`"#,
    );
    fails(
        &device(r#"pci = "0000:3b:00" #!"#),
        "`0000:3b:00` is not a PCI address",
        r#"write domain, bus, device and function as `lspci -D` shows them, such as `"0000:3b:00.0"`; `understudy doctor` lists the network cards"#,
    );
    fails(
        &device(r#"pci = "eth0" #!"#),
        "`eth0` is not a PCI address",
        r#"write domain, bus, device and function as `lspci -D` shows them, such as `"0000:3b:00.0"`; `understudy doctor` lists the network cards"#,
    );
    fails(
        &device(r#"pci = "0000:3b:20.0" #!"#),
        "`0000:3b:20.0` is not a PCI address",
        r#"write domain, bus, device and function as `lspci -D` shows them, such as `"0000:3b:00.0"`; `understudy doctor` lists the network cards"#,
    );
    fails(
        &device(r#"mlx5 = "0000:3b:00.8" #!"#),
        "`0000:3b:00.8` is not a PCI address",
        r#"write domain, bus, device and function as `lspci -D` shows them, such as `"0000:3b:00.0"`; `understudy doctor` lists the network cards"#,
    );
    fails(
        &device(r#"pci = "0000:3b:00.0" #!"#),
        "port `a` is hardware, which needs huge pages",
        "add `hugepages = true` to [runtime] and reserve some (as root: echo 512 > /proc/sys/vm/nr_hugepages); `understudy doctor` shows the reserved pages",
    );
}

#[test]
fn driver_arguments_need_hardware() {
    fails(
        &device("ring = {}\ndevargs = [\"mprq_en=1\"] #!"),
        "`devargs` is only valid for hardware",
        "remove it, or use `pci` or `mlx5` for this port",
    );
    fails(
        &device("tap = { interface = \"us0\" }\ndevargs = [\"a\"] #!"),
        "`devargs` is only valid for hardware",
        "remove it, or use `pci` or `mlx5` for this port",
    );
}

#[test]
fn interfaces_have_valid_names() {
    fails(
        &device(r#"tap = { interface = "a-name-too-long0" } #!"#),
        "an interface has a name of 15 bytes at most, and this has 16",
        "choose a shorter name; `ip link` lists what there is",
    );
    fails(
        &device(r#"tap = { interface = "us 0" } #!"#),
        "`us 0` cannot be the name of an interface",
        "use letters, digits, `-`, `_` and `.`; `ip link` lists what there is",
    );
    fails(
        &device(r#"af_packet = { interface = "eth0/1" } #!"#),
        "`eth0/1` cannot be the name of an interface",
        "use letters, digits, `-`, `_` and `.`; `ip link` lists what there is",
    );
    fails(&device("af_packet = {} #!"), "`af_packet` has no `interface`", r#"add `interface = "eth1"`"#);
    fails(
        &device(r#"af_xdp = { interface = "eth0", start_queue = -1 } #!"#),
        "`start_queue` cannot be -1",
        "write a number from 0 to 1023, such as `start_queue = 0`",
    );
    fails(
        &device("tap = { interface = 5 } #!"),
        "`interface` has to be a string in quotes, and is a whole number",
        r#"put it in quotes: `interface = "5"`"#,
    );
}

#[test]
fn sockets_have_a_role_and_a_usable_path() {
    fails(&device(r#"memif = { socket = "s" } #!"#), "`memif` has no `role`", r#"add `role = "server"`"#);
    fails(
        &device(r#"memif = { role = "server" } #!"#),
        "`memif` has no `socket`",
        r#"add `socket = "/run/understudy/memif.sock"`"#,
    );
    fails(
        &device(r#"memif = { socket = "s", role = "master" } #!"#),
        "`role` cannot be `master`",
        "it can be `server` or `client`",
    );
    fails(
        &device(r#"memif = { socket = "s", role = "servr" } #!"#),
        "`role` cannot be `servr`",
        "did you mean `server`? it can be `server` or `client`",
    );
    fails(&device("vhost = {} #!"), "`vhost` has no `socket`", r#"add `socket = "/run/understudy/vm.sock"`"#);
    fails(
        &device(r#"vhost = { socket = "a,b" } #!"#),
        "DPDK does not accept the path `a,b`",
        "use a path without commas, equals signs and brackets",
    );
    fails(
        &device(
            r#"vhost = { socket = "/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" } #!"#,
        ),
        "a socket has a path of 107 bytes at most, and this has 108",
        "use a shorter path, such as one in /run/understudy",
    );
}

#[test]
fn captures_to_play_exist_and_hold_ethernet() {
    let folder = captures();
    fails_in(
        folder.path(),
        &device("pcap = {} #!"),
        "`pcap` names no file",
        r#"add `rx = "in.pcap"` to play a capture, `tx = "out.pcap"` to record one, or both"#,
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "gone.pcap" } #!"#),
        "there is no file `gone.pcap`",
        "correct the path; a relative one begins in the folder of the configuration file",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = ["in.pcap", "gone.pcap"] } #!"#),
        "there is no file `gone.pcap`",
        "correct the path; a relative one begins in the folder of the configuration file",
    );
    fails_in(
        folder.path(),
        &device("pcap = { rx = [] } #!"),
        "`rx` names no file",
        r#"write `rx = "in.pcap"`, or leave it out"#,
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "no" } #!"#),
        "`no` is a folder",
        "name a capture in it",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "text.pcap" } #!"#),
        "`text.pcap` is not a capture",
        "name a file that tcpdump or Wireshark has written",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "zip.pcap" } #!"#),
        "`zip.pcap` is compressed",
        "unpack it first: gunzip -k zip.pcap",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "any.pcap" } #!"#),
        "`any.pcap` has frames of link type 113, not of Ethernet",
        "record on an Ethernet interface, not on `any`: tcpdump -w FILE -i eth0",
    );
    fails_in(
        folder.path(),
        &device("pcap = { rx = \"in.pcap\" }\nrx_queues = 2 #!"),
        "port `a` has a receive queue for each file it plays",
        "leave `rx_queues` out",
    );
    fails_in(
        folder.path(),
        &device("pcap = { rx = 5 } #!"),
        "`rx` has to be a string in quotes, and is a whole number",
        r#"put it in quotes: `rx = "5"`"#,
    );
}

#[test]
fn captures_are_recorded_into_existing_folders() {
    let folder = captures();
    fails_in(
        folder.path(),
        &device(r#"pcap = { tx = "gone/out.pcap" } #!"#),
        "the folder `gone` to record into does not exist",
        "create it: `mkdir -p gone`",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { tx = "no" } #!"#),
        "`no` is a folder",
        r#"name the file to record to: `tx = "out.pcap"`"#,
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "in.pcap", tx = "./in.pcap" } #!"#),
        "the capture that is played would be overwritten",
        r#"record to another file: `tx = "out.pcap"`"#,
    );
}

#[test]
fn captures_without_end_are_not_recorded_and_need_buffers() {
    let folder = captures();
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "in.pcap", tx = "out.pcap", infinite = true } #!"#),
        "a port that plays endlessly cannot record",
        "remove `tx` or `infinite`; sent frames are counted in either case",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { infinite = true, tx = "out.pcap" } #!"#),
        "`infinite` needs a capture to play",
        r#"add `rx = "in.pcap"` in place of `tx`, or remove `infinite`"#,
    );
    fails_in(
        folder.path(),
        &device("buffers = 4000 #!\npcap = { rx = \"many.pcap\", infinite = true }"),
        "port `a` needs 4536 buffers or more",
        "write `buffers = 8192` (512 descriptors in each of 2 queues, 512 for each worker, 3000 frames of the captures), or reduce `descriptors`",
    );
    fails_in(
        folder.path(),
        &device(r#"pcap = { rx = "long.pcap", infinite = true } #!"#),
        "port `a` plays frames of 5000 bytes, but its MTU allows only 1514",
        "set `mtu = 4986`",
    );
}

#[test]
fn made_frames_fit_the_mtu() {
    fails(
        &device("null = { size = 1600 } #!"),
        "port `a` generates frames of 1600 bytes, but its MTU allows only 1514",
        "set `mtu = 1586`, or `size = 1514` at most",
    );
    fails(
        &device("null = { size = 13 } #!"),
        "`size` cannot be 13",
        "write a number from 14 to 9614, such as `size = 64`",
    );
}
