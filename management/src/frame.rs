//! Frames, and the keys of their tags.
//!
//! ```text
//! 0..4   length of the content, at most 64 KiB, big-endian
//! 4      kind
//! 5..    content
//! then   tag, 32 bytes
//! ```
//!
//! A tag is a BLAKE3 hash over the frame's number (8 bytes), which is not sent, and the frame up to the tag,
//! keyed with the key of the direction. Both keys are derived from the secret and from both hellos, hence
//! from the random numbers of both ends.

use crate::hello;
use crate::{Bug, MAX_MESSAGE, Reason, Secret};

/// Length of a tag, in bytes
const TAG: usize = 32;
const HEADER: usize = 5;
/// Bytes of a frame beside its content
pub(crate) const OVERHEAD: usize = HEADER + TAG;

const NODE_HELLO: &str = "understudy management 2026-11 hello of a node";
const CONTROLLER_HELLO: &str = "understudy management 2026-11 hello of a controller";
const FROM_NODE: &str = "understudy management 2026-11 frames from a node";
const FROM_CONTROLLER: &str = "understudy management 2026-11 frames from a controller";

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Content is a message
    Message = 1,
    /// The peer is alive; no content
    Alive = 2,
    /// First frame of the node, which proves that it has the secret now; no content
    Finish = 3,
    /// The connection ends; content is the number of the reason, one byte
    Close = 4,
}

impl Kind {
    fn of(kind: u8, len: usize) -> Result<Self, Reason> {
        match (kind, len) {
            (1, _) => Ok(Self::Message),
            (2, 0) => Ok(Self::Alive),
            (3, 0) => Ok(Self::Finish),
            (4, 1) => Ok(Self::Close),
            _ => Err(Reason::Frame(kind)),
        }
    }
}

/// A frame whose tag is right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: Kind,
    pub(crate) content: &'a [u8],
    /// Length of the whole frame
    pub(crate) len: usize,
}

/// Returns the bytes from which all keys are derived. Without a secret, tags detect accidents only.
fn key(secret: Option<&Secret>) -> [u8; 32] {
    secret.map_or([0; 32], |secret| *secret.key())
}

/// Returns the tag of a node's hello.
pub(crate) fn node_hello_tag(secret: Option<&Secret>, hello: &[u8; hello::UNTAGGED]) -> blake3::Hash {
    blake3::keyed_hash(&blake3::derive_key(NODE_HELLO, &key(secret)), hello)
}

/// Returns the tag of a controller's hello, which answers a node's.
pub(crate) fn controller_hello_tag(
    secret: Option<&Secret>,
    node: &[u8; hello::LEN],
    hello: &[u8; hello::UNTAGGED],
) -> blake3::Hash {
    let key = blake3::derive_key(CONTROLLER_HELLO, &key(secret));
    blake3::Hasher::new_keyed(&key).update(node).update(hello).finalize()
}

/// Both ends of one direction: the key, and the number of the next frame.
#[derive(Clone)]
pub(crate) struct Direction {
    key: [u8; 32],
    next: u64,
    bug: Option<Bug>,
}

impl core::fmt::Debug for Direction {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Direction").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Direction {
    /// Returns the directions from the node and from the controller.
    pub(crate) fn both(
        secret: Option<&Secret>,
        node: &[u8; hello::LEN],
        controller: &[u8; hello::LEN],
        bug: Option<Bug>,
    ) -> [Self; 2] {
        let hellos: &[&[u8]] = if Bug::NoRandom.is(bug) { &[] } else { &[node, controller] };
        let material = [&key(secret)[..], &hellos.concat()].concat();
        let contexts = [FROM_NODE, if Bug::OneKey.is(bug) { FROM_NODE } else { FROM_CONTROLLER }];
        contexts.map(|context| Self { key: blake3::derive_key(context, &material), next: 0, bug })
    }

    fn tag(&self, frame: &[u8]) -> blake3::Hash {
        let number = if Bug::NoNumber.is(self.bug) { 0 } else { self.next };
        blake3::Hasher::new_keyed(&self.key).update(&number.to_be_bytes()).update(frame).finalize()
    }

    /// Appends a frame.
    ///
    /// # Panics
    /// If the content is longer than [`MAX_MESSAGE`].
    pub(crate) fn seal(&mut self, kind: Kind, content: &[u8], to: &mut Vec<u8>) {
        assert!(content.len() <= MAX_MESSAGE, "a message of {} bytes", content.len());
        let at = to.len();
        to.extend((content.len() as u32).to_be_bytes());
        to.push(kind as u8);
        to.extend(content);
        let tag = self.tag(&to[at..]);
        to.extend(tag.as_bytes());
        self.next += 1;
    }

    /// Returns the first frame, or `None` if not all of it is there.
    ///
    /// # Errors
    /// The content is longer than `max`, the tag is wrong, or the kind is unknown.
    pub(crate) fn open<'a>(&mut self, bytes: &'a [u8], max: usize) -> Result<Option<Frame<'a>>, Reason> {
        let Some(&len) = bytes.first_chunk() else { return Ok(None) };
        let len = u32::from_be_bytes(len);
        if len as usize > max {
            return Err(Reason::TooLong(len));
        }
        let end = HEADER + len as usize;
        let Some(frame) = bytes.get(..end + TAG) else { return Ok(None) };
        let (frame, tag) = frame.split_at(end);
        let tag: [u8; TAG] = tag.try_into().expect("32 bytes");
        // Comparing hashes takes the same time wherever they differ.
        if self.tag(frame) != blake3::Hash::from_bytes(tag) {
            return Err(Reason::Tag);
        }
        self.next += 1;
        let kind = Kind::of(frame[4], len as usize)?;
        Ok(Some(Frame { kind, content: &frame[HEADER..], len: end + TAG }))
    }
}
