//! A secret that servers and their switch share, so that an address alone does not authenticate a host.
//!
//! The requester of a connection appends a tag to its private data: 16 bytes of a BLAKE3 hash, keyed with the
//! secret, over the addresses of both ends and the data. The secret itself is never sent. A tag authenticates
//! the request for a connection, not the packets on it: RoCEv2 does not authenticate packets, and a host that
//! can read packets and send with a server's address can replay a request. docs/p4ce.md describes the
//! consequences.

use constant_time_eq::constant_time_eq_16;
use core::fmt;
use core::net::IpAddr;

/// Length of a tag, in bytes
pub const TAG: usize = 16;

/// The shared secret. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Derives a secret from the operator's text. The text has to be too long to guess: 32 random bytes,
    /// encoded as text.
    pub fn new(text: &str) -> Self {
        Self(blake3::derive_key("understudy p4ce 2026-11 shared secret", text.as_bytes()))
    }

    /// Returns the derived key, for further derivations.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The two ends of a connection, and the secret with which its request is authenticated, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// Shared secret, if requests are authenticated
    pub secret: Option<&'a Secret>,
    /// The requester
    pub from: IpAddr,
    /// The responder
    pub to: IpAddr,
}

impl Envelope<'_> {
    fn tag(&self, secret: &Secret, message: &[u8]) -> [u8; TAG] {
        let mut hasher = blake3::Hasher::new_keyed(&secret.0);
        for ip in [self.from, self.to] {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            hasher.update(&ip.octets());
        }
        hasher.update(message);
        let mut tag = [0; TAG];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG]);
        tag
    }

    /// Appends the tag to a message, if there is a secret.
    pub fn seal(&self, mut message: Vec<u8>) -> Vec<u8> {
        if let Some(secret) = self.secret {
            let tag = self.tag(secret, &message);
            message.extend(tag);
        }
        message
    }

    /// Returns whether the first `len` bytes of private data have a valid tag; always true without a secret.
    /// Takes the same time at whichever byte a wrong tag differs.
    pub fn verifies(&self, private_data: &[u8], len: usize) -> bool {
        let Some(secret) = self.secret else { return true };
        let Some((message, rest)) = private_data.split_at_checked(len) else { return false };
        rest.first_chunk().is_some_and(|tag| constant_time_eq_16(tag, &self.tag(secret, message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_valid_for_one_secret_two_ends_and_one_message() {
        let (secret, other) = (Secret::new("the right one"), Secret::new("another"));
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let envelope = Envelope { secret: Some(&secret), from: a, to: b };
        let sent = envelope.seal(b"message".to_vec());
        assert_eq!(sent.len(), 7 + TAG);
        // The communication manager pads private data with zeros.
        let received = [sent.clone(), vec![0; 20]].concat();
        assert!(envelope.verifies(&received, 7));
        for wrong in [
            Envelope { secret: Some(&other), ..envelope },
            Envelope { from: b, to: a, ..envelope },
            Envelope { to: a, ..envelope },
        ] {
            assert!(!wrong.verifies(&received, 7), "{wrong:?}");
        }
        for at in 0..sent.len() {
            let mut damaged = received.clone();
            damaged[at] ^= 1;
            assert!(!envelope.verifies(&damaged, 7), "byte {at}");
        }
        assert!(
            !envelope.verifies(&received, 8)
                && !envelope.verifies(b"message", 7)
                && !envelope.verifies(b"", 7)
        );
        // Without a secret, nothing is appended and everything is admitted.
        let open = Envelope { secret: None, ..envelope };
        assert_eq!(open.seal(b"message".to_vec()), b"message");
        assert!(open.verifies(&received, 7));
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
