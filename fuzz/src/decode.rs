//! Dissects arbitrary bytes as a captured frame of any link type, complete or cut, and formats the result as
//! a line of JSON.

#[path = "../../understudy/src/decode/dissect.rs"]
#[allow(dead_code, unreachable_pub)]
mod dissect;
#[path = "../../understudy/src/decode/fields.rs"]
#[allow(dead_code, unreachable_pub)]
mod fields;

use dissect::{Dissection, Link, dissect};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, frame)) = input.split_first() else { return };
    let link = match how & 3 {
        0 | 1 => {
            Link { len: 14, ethertype: frame.get(12..14).map_or(0, |b| u16::from_be_bytes([b[0], b[1]])) }
        }
        2 => Link { len: 0, ethertype: 0x0800 },
        _ => Link { len: 0, ethertype: 0x86dd },
    };
    if let Dissection::Roce(roce) = dissect(frame, link, how & 4 == 0) {
        let json = serde_json::to_string(&roce.packet_fields()).expect("always serialises");
        assert!(!json.contains('\n'));
        let strict =
            matches!(rocev2::packet::classify_ip(frame, link.len, link.ethertype), rocev2::Class::Roce(_));
        if strict && !rocev2::ethernet::ethertype::is_tag(link.ethertype) {
            assert!(roce.fault.is_none() && roce.bth.is_some() && roce.icrc_ok.is_some());
        }
    }
}
