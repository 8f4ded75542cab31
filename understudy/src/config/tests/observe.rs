//! `[observe]`: where an instance can be looked at.

use super::{FORWARD, PORTS, folder, read_in, wrong};
use crate::config::ObserveConfig;

const KEYS: &str = "[observe] takes `socket` and `prometheus`";

fn observe(lines: &str) -> String {
    format!("{PORTS}{FORWARD}\n[observe]\n{lines}\n")
}

#[test]
fn understood() {
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
fn slips() {
    wrong(&observe("metrics = 9464 #!"), "there is no key `metrics` in [observe]", KEYS);
    wrong(
        &observe("sockets = \"a.sock\" #!"),
        "there is no key `sockets` in [observe]",
        &format!("did you mean `socket`? {KEYS}"),
    );
    wrong(
        &observe("socket = true #!"),
        "`socket` has to be a string in quotes, and is `true` or `false`",
        "write a string in quotes, such as `socket = \"/run/understudy/observe.sock\"`",
    );
    for address in ["localhost:9464", "127.0.0.1", ":9464", "127.0.0.1:99999"] {
        wrong(
            &observe(&format!("prometheus = \"{address}\" #!")),
            &format!("`{address}` is no address with a port"),
            "write `prometheus = \"127.0.0.1:9464\"`, `\"[::1]:9464\"`, or `prometheus = 9464` for this machine alone; a name in \
             place of an address is not looked up",
        );
    }
    wrong(
        &observe("prometheus = 0 #!"),
        "`prometheus` cannot be 0",
        "write a number from 1 to 65535, such as `prometheus = 9464`",
    );
    let long = format!("/{}", "x".repeat(120));
    wrong(
        &observe(&format!("socket = \"{long}\" #!")),
        "a socket has a path of 107 bytes at most, and this has 121",
        "use a shorter path, such as one in /run/understudy",
    );
}
