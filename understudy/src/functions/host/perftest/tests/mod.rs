//! The exchange, as recorded between perftest 4.5's client and server.

pub(in crate::functions::host) mod world;

use super::exchange::*;
use core::net::IpAddr;
use rnic::PathMtu;

const VERSION: &[u8] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
const CLIENT: &[u8; 108] =
    b"0000:0001:000011:6a680e:00000260:0000556b7b11a000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";
const CLIENT_2: &[u8; 108] =
    b"0000:0001:000012:f0bf17:00000260:0000556b7b11b000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";
const SERVER: &[u8; 108] =
    b"0000:0080:000014:f96508:000004f3:0000559b7d8d2000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02:00000000:\0";

fn client() -> QpInfo {
    QpInfo {
        reads: 1,
        qpn: 0x11,
        psn: 0x6a_680e,
        rkey: 0x260,
        va: 0x556b_7b11_a000,
        address: IpAddr::from([10, 0, 0, 1]),
    }
}

/// Returns the messages of ib_write_bw with two queue pairs and 20 messages of 4,096 bytes.
fn write_bw() -> Vec<(&'static [u8], Message)> {
    let same = |bytes: &'static [u8]| (bytes, Message::Echo(bytes.to_vec()));
    let first = (&CLIENT[..], Message::QpInfo(client()));
    let info = QpInfo { qpn: 0x12, psn: 0xf0_bf17, va: 0x556b_7b11_b000, ..client() };
    let second = (&CLIENT_2[..], Message::QpInfo(info));
    vec![
        same(VERSION),
        same(b"\0\0\x10\0"),
        same(b"\0\0\0@"),
        (b"3\0", Message::Mtu(PathMtu::B1024)),
        first.clone(),
        second.clone(),
        first.clone(),
        second,
        first.clone(),
        first.clone(),
        same(b"\0\0\0\0\0\0\x10\0"),
        same(b"\0\0\0\0\0\0\0\x14"),
        same(b"?\xffj\xd5\x90\xc9\x18v"),
        same(b"?\xfe\xff\xeb\x89t\x1b\xeb"),
        same(b"?@@\xb5).p\xb6"),
        first,
        (b"done\0", Message::Done),
    ]
}

fn receive(exchange: &mut Exchange, bytes: &[u8]) -> Result<Option<Message>, String> {
    exchange.inbox().extend_from_slice(bytes);
    exchange.next()
}

#[test]
fn messages_of_write_bw_are_parsed() {
    let mut exchange = Exchange::new();
    for (bytes, message) in write_bw() {
        assert_eq!(receive(&mut exchange, bytes), Ok(Some(message)));
        assert_eq!(exchange.next(), Ok(None));
    }
    assert_eq!(exchange.reported, Some((4096, 20)));
}

#[test]
fn messages_may_arrive_byte_by_byte() {
    let mut exchange = Exchange::new();
    for (bytes, message) in write_bw() {
        let (last, pieces) = bytes.split_last().unwrap();
        for byte in pieces {
            assert_eq!(receive(&mut exchange, &[*byte]), Ok(None));
        }
        assert_eq!(receive(&mut exchange, &[*last]), Ok(Some(message)));
    }
}

#[test]
fn queue_pairs_are_encoded_as_perftest_does() {
    let server = QpInfo {
        reads: 0x80,
        qpn: 0x14,
        psn: 0xf9_6508,
        rkey: 0x4f3,
        va: 0x559b_7d8d_2000,
        address: IpAddr::from([10, 0, 0, 2]),
    };
    assert_eq!(server.to_bytes(), SERVER);
    let six = QpInfo { address: "fd00::9".parse().unwrap(), ..server };
    let gid = &six.to_bytes()[50..98];
    assert_eq!(gid, b"fd:00:00:00:00:00:00:00:00:00:00:00:00:00:00:09:");
    assert_eq!(mtu_response(PathMtu::B1024), *b"3\0");
}

#[test]
fn messages_that_perftest_does_not_send_are_errors() {
    for (bytes, what) in [
        (&b"GET / HTTP/1.1\r\n"[..], "the client is not a perftest client"),
        (b"5.60\0\0\0\0\0\0\0\0\0\0\0\0", "perftest version 5.6 of the client is too old; use 5.70 or later"),
    ] {
        assert_eq!(receive(&mut Exchange::new(), bytes), Err(what.into()));
    }
    let start = || {
        let mut exchange = Exchange::new();
        for (bytes, _) in &write_bw()[..3] {
            receive(&mut exchange, bytes).unwrap();
        }
        exchange
    };
    assert_eq!(receive(&mut start(), b"9\0"), Err("the client sent an unknown path MTU".into()));
    for offset in [0, 4, 12, 50, 106] {
        let mut exchange = start();
        receive(&mut exchange, b"3\0").unwrap();
        let mut info = *CLIENT;
        info[offset] = b'x';
        let error = receive(&mut exchange, &info).unwrap_err();
        assert!(error.starts_with("invalid queue pair from the client: "), "{error}");
    }
}
