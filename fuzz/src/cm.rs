//! Parses arbitrary bytes as a CM message.

use rocev2::cm::{Body, MAD_LEN, Message};

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    // Most inputs have another length than a MAD, so a padded or cut copy is parsed, too.
    let mut mad = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&bytes[..len]);
    for bytes in [bytes, &mad[..]] {
        let Ok(message) = Message::parse(bytes) else { continue };
        assert!(!message.to_string().is_empty());
        if let Body::Req(req) = message.body {
            _ = (req.path_mtu(), req.cma_header().map(|cma| (cma.src_addr(), cma.dst_addr())));
        }
    }
}
