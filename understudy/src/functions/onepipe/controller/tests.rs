//! Tests of `[controller]` beside `[onepipe]`.

use super::*;
use crate::config::tests::{PORTS, fails, folder, problems_in, read as read_file};
use crate::functions::FunctionConfig;
use crate::functions::onepipe::OnePipeConfig;

const HEAD: &str = "[onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\n";
const LINK: &str = "[[onepipe.links]]\nside = \"below\"\nport = \"a\"\nmac = \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\nqpn = 0x11\n";
const LOCAL: &str = "addresses = [\"127.0.0.1:7070\"]\nswitch = 3\ntopology = \"00c0ffee00c0ffee\"\n";

/// Returns a file with these lines in `[onepipe]` and `[controller]`.
fn file(onepipe: &str, controller: &str) -> String {
    [PORTS, HEAD, onepipe, LINK, "[controller]\n", controller].concat()
}

fn read(text: &str) -> OnePipeConfig {
    match read_file(text).function {
        FunctionConfig::OnePipe(config) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn controller_is_read() {
    let config = read(&file("", LOCAL));
    let expected = ControllerConfig {
        controllers: Controllers {
            addresses: vec!["127.0.0.1:7070".parse().unwrap()],
            secret_file: None,
            topology: 0x00c0_ffee_00c0_ffee,
        },
        switch: 3,
        seat: 0,
    };
    assert_eq!((config.controller, config.switch.fail_after_intervals), (Some(expected), Some(10)));
    let far = "addresses = [\"10.9.0.1:7070\", \"[fd00::1]:7071\"]\nsecret_file = \"secret\"\nfail_after_intervals = 77\n";
    let config =
        read(&file("dead_after_intervals = 20\n", &[far, &LOCAL[LOCAL.find("switch").unwrap()..]].concat()));
    let controller = config.controller.unwrap().controllers;
    assert_eq!((controller.addresses.len(), config.switch.fail_after_intervals), (2, Some(77)));
    assert!(controller.secret_file.unwrap().ends_with("secret"));
    let config = read(&file("dead_after_intervals = 20\n", LOCAL));
    assert_eq!(config.switch.fail_after_intervals, Some(20));
    let config = read(&file("", "").replace("[controller]\n", ""));
    assert_eq!((config.controller, config.switch.fail_after_intervals), (None, None));
}

#[test]
fn each_mistake_is_reported_with_its_line() {
    let with = |from: &str, to: &str| {
        assert!(LOCAL.contains(from));
        file("", &LOCAL.replace(from, to))
    };
    let form = "write such as `\"10.9.0.1:7070\"` or `\"[fd00::1]:7070\"`; names are not resolved";
    fails(
        &with("[\"127.0.0.1:7070\"]", "[\"localhost:7070\"] #!"),
        "`localhost:7070` is not an address with a port",
        form,
    );
    fails(
        &with("[\"127.0.0.1:7070\"]", "[\"10.0.0.1:0\"] #!"),
        "`10.0.0.1:0` is not an address with a port",
        form,
    );
    fails(
        &with("[\"127.0.0.1:7070\"]", "[] #!"),
        "`addresses` is empty",
        "write `addresses = [\"10.9.0.1:7070\"]`, or remove [controller]",
    );
    fails(
        &with("127.0.0.1:7070\"]", "10.9.0.1:7070\"] #!"),
        "there is no `secret_file`, and 10.9.0.1:7070 is not a loopback address",
        "add `secret_file = \"secret\"`: any program could pose as the controller or as a node",
    );
    fails(
        &with("\"00c0ffee00c0ffee\"", "\"+0c0ffee00c0ffee\" #!"),
        "`+0c0ffee00c0ffee` is not the hash of a topology",
        "copy it from a file of `understudy plan --out DIR`",
    );
    fails(
        &with("switch", "fail_after_intervals = 9 #!\nswitch"),
        "`fail_after_intervals` is 9, below the `dead_after_intervals` of 10",
        "write 10 or more: a link leaves best effort before a process fails",
    );
    let write = file("", LOCAL).replace("qpn", "beacon = { va = 1, rkey = 2 }\nqpn");
    fails(
        &write.replace("[controller]", "[controller] #!"),
        "[controller] needs beacons that are datagrams, and those of link `10.0.0.1` are WRITEs",
        "remove `beacon` from that link: a WRITE does not name its queue pair, by which the neighbour recognises this switch",
    );
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = file("", "addresses = [\"x\"]\nswitch = 70000\ntopology = \"y\"\nfail_after_intervals = 5\n");
    assert_eq!(problems_in(folder().path(), &text).len(), 4);
}
