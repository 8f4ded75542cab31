//! Tests of `[observe]`.

use super::{FORWARD, PORTS, fails, folder, read_in};
use crate::config::ObserveConfig;

const KEYS: &str = "[observe] takes `socket` and `prometheus`";

fn observe(lines: &str) -> String {
    format!("{PORTS}{FORWARD}\n[observe]\n{lines}\n")
}

#[test]
fn sockets_and_addresses_are_read() {
    let folder = folder();
    let read = |lines: &str| {
        let config = read_in(folder.path(), &observe(lines));
        config.unwrap_or_else(|report| panic!("{}", report.render())).observe
    };
    assert_eq!(read(""), ObserveConfig::default());
    assert_eq!(read("socket = \"top.sock\"").socket, Some(folder.path().join("top.sock")));
    for (written, address) in [
        ("true", Some("127.0.0.1:9464")),
        ("false", None),
        ("9100", Some("127.0.0.1:9100")),
        ("\"10.0.0.1:9464\"", Some("10.0.0.1:9464")),
        ("\"[::1]:9464\"", Some("[::1]:9464")),
        ("\"127.0.0.1:0\"", Some("127.0.0.1:0")),
    ] {
        let address = address.map(|address| address.parse().unwrap());
        assert_eq!(read(&format!("prometheus = {written}")).prometheus, address, "{written}");
    }
}

#[test]
fn invalid_keys_and_addresses_are_reported() {
    fails(&observe("metrics = 9464 #!"), "there is no key `metrics` in [observe]", KEYS);
    fails(
        &observe("sockets = \"a.sock\" #!"),
        "there is no key `sockets` in [observe]",
        &format!("did you mean `socket`? {KEYS}"),
    );
    fails(
        &observe("socket = true #!"),
        "`socket` has to be a string in quotes, and is `true` or `false`",
        "write a string in quotes, such as `socket = \"/run/understudy/observe.sock\"`",
    );
    for address in ["localhost:9464", "127.0.0.1", ":9464", "127.0.0.1:99999"] {
        fails(
            &observe(&format!("prometheus = \"{address}\" #!")),
            &format!("`{address}` is not an address with a port"),
            "write `prometheus = \"127.0.0.1:9464\"`, `\"[::1]:9464\"`, or `prometheus = 9464` for this \
             machine alone; names are not resolved",
        );
    }
    fails(
        &observe("prometheus = 0 #!"),
        "`prometheus` cannot be 0",
        "write a number from 1 to 65535, such as `prometheus = 9464`",
    );
    let long = format!("/{}", "x".repeat(120));
    fails(
        &observe(&format!("socket = \"{long}\" #!")),
        "a socket has a path of 107 bytes at most, and this has 121",
        "use a shorter path, such as one in /run/understudy",
    );
}
