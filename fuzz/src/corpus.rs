//! First inputs of the targets, made from the repository's captures, and deterministic mutations of inputs.

use rocev2::Bth;
use rocev2::checksum::Sum;
use rocev2::ethernet::Ethernet;
use std::io;
use std::path::Path;
use switch::Rng;
use understudy_tests::captures;

/// Most frames that are taken of a capture: enough for every opcode of it
const PER_FILE: usize = 24;
/// Length of the headers before the BTH in most captures: Ethernet, IPv4, UDP
const BEFORE_BTH: usize = 42;
const ICRC: usize = 4;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];

/// Returns the first inputs of a target, in an order that is always the same.
pub fn first_inputs(target: &str) -> Vec<Vec<u8>> {
    named(target).into_iter().map(|(_, input)| input).collect()
}

/// Writes the first inputs of a target into a new folder, a file each.
pub fn write(target: &str, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    named(target).into_iter().try_for_each(|(name, input)| std::fs::write(folder.join(name), input))
}

/// Returns the first inputs of a target with names: capture, frame, and input of that frame.
fn named(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for path in captures::all() {
        let stem = path.file_stem().expect("a capture has a name").to_string_lossy().into_owned();
        let captured = captures::frames(&path);
        let stride = (captured.len() / PER_FILE).max(1);
        for (n, frame) in captured.iter().step_by(stride).enumerate() {
            let inputs = of_frame(target, frame).into_iter().enumerate();
            all.extend(inputs.map(|(m, input)| (format!("{stem}-{n}-{m}"), input)));
        }
    }
    all
}

/// Returns the inputs that a target gets for a captured frame.
fn of_frame(target: &str, frame: &[u8]) -> Vec<Vec<u8>> {
    match target {
        "decode" => {
            vec![[&[0], frame].concat(), [&[2], frame.get(Ethernet::LEN..).unwrap_or_default()].concat()]
        }
        "forward" => [0x43, 0x4e].map(|options| [&[options, 0], &with_len(frame)[..]].concat()).into(),
        "impair" => [50, 100]
            .map(|share| [&[share], &[&[7], &with_len(frame)[..]].concat().repeat(4)[..]].concat())
            .into(),
        "cm" => Vec::from_iter(
            frame
                .len()
                .checked_sub(310)
                .filter(|rest| *rest > 0)
                .map(|_| frame[frame.len() - 260..frame.len() - ICRC].to_vec()),
        ),
        "rnic" => rnic(frame),
        "p4ce" => p4ce(frame),
        "swordbox" => swordbox(frame),
        "tunnel" => tunnel(frame),
        "process" => process(frame),
        "rdmc" => rdmc(frame),
        _ => vec![frame.to_vec()],
    }
}

/// Returns at most 255 bytes of a frame, behind their count.
fn with_len(frame: &[u8]) -> Vec<u8> {
    let len = frame.len().min(255);
    [&[len as u8], &frame[..len]].concat()
}

/// Returns at most `most` bytes of a frame from its BTH on, without the ICRC.
fn from_bth(frame: &[u8], most: usize) -> &[u8] {
    let bytes = frame.get(BEFORE_BTH..frame.len().saturating_sub(ICRC)).unwrap_or_default();
    &bytes[..bytes.len().min(most)]
}

fn rnic(frame: &[u8]) -> Vec<Vec<u8>> {
    let bth = from_bth(frame, 510);
    let input = |options, to| [&[options, 0, to, (bth.len() / 2) as u8], bth].concat();
    [1, 12].into_iter().flat_map(|options| [3, 9].map(|to| input(options, to))).collect()
}

/// Packets from the leader, from two replicas, and to QP 1, with two PSNs of each
fn p4ce(frame: &[u8]) -> Vec<Vec<u8>> {
    let bth = from_bth(frame, 500);
    if bth.len() < Bth::LEN {
        return Vec::new();
    }
    let step = |kind: u8, host: u32| {
        let psn = ((0xff_fffd + 1000 * host) & 0xff_ffff).to_be_bytes();
        let padding = &[0][..bth.len() % 2];
        [&[kind, bth.len().div_ceil(2) as u8], &bth[..9], &psn[1..], &bth[12..], padding].concat()
    };
    let steps = [step(1, 0), step(0x11, 1), step(0x21, 2), step(0x03, 0)].concat().repeat(2);
    [0, 5].map(|options| [&[options], &steps[..]].concat()).into()
}

fn swordbox(frame: &[u8]) -> Vec<Vec<u8>> {
    // Both clients contend: requests, their delivery to the server, and the delivery of the responses
    let step = [0, 0, 0x80, 3, 5, 0, 5, 0, 8, 0, 8, 0];
    // Requests of unknown clients to the server, and responses to unknown clients: 256 queue pairs each time
    let unknown = [14, 0x80, 14, 0x81, 13, 255, 13, 255];
    let frame = &frame[..frame.len().min(40)];
    let small = |options| [&[options], &step.repeat(20)[..], &[15, 40], frame, &step].concat();
    let large = [&[33], &[&step[..], &unknown].concat().repeat(4)[..], &step].concat();
    vec![small(1), small(3), large]
}

/// Packets into a tunnel that ends at the switch, and into another one behind that, with right checksums
fn tunnel(frame: &[u8]) -> Vec<Vec<u8>> {
    if frame.get(12..14) != Some(&ETHERTYPE_IPV4) {
        return Vec::new();
    }
    let inside = |packet: &[u8], src: u8, dst: u8| {
        let len = (20 + packet.len() as u16).to_be_bytes();
        let mut header =
            [0x45, 0x6a, len[0], len[1], 0, 0, 0x40, 0, 64, 4, 0, 0, 10, 0, 0, src, 10, 0, 0, dst];
        let checksum = Sum::default().add(&header).checksum().to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        [&header, packet].concat()
    };
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, ETHERTYPE_IPV4[0], ETHERTYPE_IPV4[1]];
    let plain = &frame[Ethernet::LEN..];
    let nested = inside(plain, 101, 102);
    let input = |options, packet: &[u8]| [&[options], &ethernet[..], &inside(packet, 1, 101)].concat();
    [0, 1].into_iter().flat_map(|options| [plain, &nested].map(|packet| input(options, packet))).collect()
}

fn process(frame: &[u8]) -> Vec<Vec<u8>> {
    let step = |bytes: [u8; 4]| [&bytes[..], &[0xff; 12]].concat();
    // Scatterings, packets of three senders, barriers, ACKs, time; then two scatterings at once, with nothing before them
    let steps = [
        [0xc5, 15, 9, 0],
        [0x40, 1, 0, 1],
        [0x60, 1, 0, 2],
        [0x48, 1, 0, 3],
        [0x02, 0, 0, 1],
        [0x46, 0, 200, 3],
        [0x44, 0, 1, 0],
        [0xc5, 7, 100, 0],
        [0xc2, 0, 0, 1],
        [0x05, 0x61, 8, 0],
        [0x05, 0x61, 20, 1],
    ];
    let steps = steps.map(step).concat().repeat(6);
    let len = frame.len().min(254) as u8 | 2;
    let raw = &frame[..frame.len().min(255)];
    [0, 1].map(|options| [&[options], &steps[..], &[7, len, 0, 0], raw].concat()).into()
}

fn rdmc(frame: &[u8]) -> Vec<Vec<u8>> {
    // Both other members create the group and join
    let join = [[13, 0, 0, 0], [2, 0, 0, 1], [2, 1, 0, 1], [4, 0, 0, 0], [4, 1, 0, 0]];
    // Blocks come from one member and words from the other
    let blocks =
        [[11, 1, 0, 9], [11, 0, 0, 9], [13, 0, 1, 60], [8, 0, 200, 5], [8, 0, 200, 5], [8, 1, 200, 5]];
    // The root closes the group
    let close = [
        [8, 0, 200, 5],
        [24, 0, 200, 8],
        [12, 0, 10, 9],
        [13, 0, 2, 0],
        [5, 0, 1, 1],
        [5, 1, 1, 1],
        [5, 0, 2, 0],
        // Then one member requests without end, and does not read its responses
        [13, 0, 4, 0],
        [15, 0, 1, 0],
        [7, 0, 255, 0],
        [7, 0, 255, 0],
    ];
    let steps = [&join.concat()[..], &blocks.concat().repeat(2), &close.concat(), &[0; 4]].concat();
    vec![[&[(frame.len() / 4 % 16) as u8], &steps[..], &frame[..frame.len().min(48)]].concat()]
}

/// Returns `input` with one to four changes: a bit flipped, a byte set, a part removed, repeated, or taken from another of
/// `inputs`.
pub fn mutate(input: &[u8], inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.between(1, 4) {
        if bytes.is_empty() {
            bytes.push(rng.bits() as u8);
        }
        let at = rng.below(bytes.len() as u64) as usize;
        let end = (at + rng.between(1, 16) as usize).min(bytes.len());
        match rng.below(5) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => {
                let any = rng.bits() as u8;
                bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, any]);
            }
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let other = rng.pick(inputs);
                bytes.truncate(at);
                bytes.extend_from_slice(other.get(at..).unwrap_or_default());
            }
        }
    }
    bytes
}
