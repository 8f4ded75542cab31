//! The address of a configuration in etcd.

use core::fmt;
use core::str::FromStr;

/// Beginning of each address
const SCHEME: &str = "etcd://";
/// Port of servers whose address has none
const PORT: u16 = 2379;
const EXAMPLE: &str = "write etcd://HOST:PORT/KEY, such as etcd://10.9.0.1:2379/understudy/rack1, or \
                       etcd://HOST:PORT,HOST:PORT/KEY for several servers";

/// Servers of etcd, and a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// `HOST:PORT` of each server; at least one
    pub(super) servers: Vec<String>,
    /// Key, which begins with a slash
    pub(crate) key: String,
}

impl Address {
    /// Returns whether an argument is such an address, which may be wrong, instead of a file.
    pub(crate) fn is_meant(argument: &str) -> bool {
        argument.starts_with(SCHEME)
    }

    /// Returns the servers as `etcdctl --endpoints` takes them.
    pub(crate) fn endpoints(&self) -> String {
        self.servers.join(",")
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("`{text}` {why}; {EXAMPLE}");
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("does not begin with etcd://"))?;
        let slash = rest.find('/').ok_or_else(|| wrong("has no key"))?;
        let (servers, key) = rest.split_at(slash);
        if key == "/" {
            return Err(wrong("has no key"));
        }
        if servers.contains('@') {
            // It would be visible in the list of processes and in metrics.
            return Err(wrong("has a password, and passwords are not supported"));
        }
        if text.chars().any(|letter| letter.is_control() || letter.is_whitespace()) {
            return Err(wrong("has white space"));
        }
        let servers = servers
            .split(',')
            .map(|server| {
                self::server(server).ok_or_else(|| wrong(&format!("names no server in `{server}`")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { servers, key: key.to_owned() })
    }
}

/// Returns `HOST:PORT` of a server: a name, an IPv4 address, or an IPv6 address in brackets, with or without a port.
fn server(text: &str) -> Option<String> {
    let after_brackets = text.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match text[after_brackets..].find(':') {
        Some(colon) => {
            let (host, port) = text.split_at(after_brackets + colon);
            (host, port[1..].parse::<u16>().ok().filter(|port| *port > 0)?)
        }
        None => (text, PORT),
    };
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse::<core::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    is_host.then(|| format!("{host}:{port}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.endpoints(), self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_servers_and_a_key() {
        for (text, servers, key) in [
            ("etcd://10.9.0.1:2379/a", &["10.9.0.1:2379"][..], "/a"),
            ("etcd://etcd-1/understudy/rack1/%41", &["etcd-1:2379"], "/understudy/rack1/%41"),
            ("etcd://a:1,b_2.c:65535/k//x", &["a:1", "b_2.c:65535"], "/k//x"),
            ("etcd://[fd00::1],[::1]:7/k", &["[fd00::1]:2379", "[::1]:7"], "/k"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(
                (&address.servers[..], &*address.key),
                (&servers.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..], key)
            );
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, why) in [
            ("etcd://10.9.0.1:2379", "has no key"),
            ("etcd://10.9.0.1:2379/", "has no key"),
            ("etcd:///key", "names no server in ``"),
            ("etcd://a,,b/key", "names no server in ``"),
            ("etcd://a:0/key", "names no server in `a:0`"),
            ("etcd://a:70000/key", "names no server in `a:70000`"),
            ("etcd://fd00::1/key", "names no server in `fd00::1`"),
            ("etcd://[fd00::x]/key", "names no server in `[fd00::x]`"),
            ("etcd://user:word@a/key", "passwords are not supported"),
            ("etcd://a/k y", "has white space"),
            ("http://a/key", "does not begin with etcd://"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
