//! Messages of the applications, which name the incarnations of their sender and of their receiver.

/// Process, and its incarnation in the reliable service
pub(super) type Endpoint = (u32, u32);

/// Bytes of a message without padding
const LEN: usize = 24;
/// Padding
const PADDING: u8 = 7;

/// Service of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    BestEffort,
    Reliable,
}

/// Message of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Body {
    pub(super) service: Service,
    pub(super) src: Endpoint,
    pub(super) dst: Endpoint,
    /// Number of the scattering at its sender
    pub(super) serial: u32,
}

impl Body {
    /// Returns the message with some padding.
    pub(super) fn encode(self, padding: usize) -> Vec<u8> {
        let service = u32::from(self.service == Service::Reliable);
        let numbers = [service, self.src.0, self.src.1, self.dst.0, self.dst.1, self.serial];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        bytes.resize(LEN + padding, PADDING);
        bytes
    }

    /// Returns the message, if its bytes are those of one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, padding) = bytes.split_at_checked(LEN)?;
        let number = |n: usize| Some(u32::from_be_bytes(numbers.get(4 * n..4 * n + 4)?.try_into().ok()?));
        let service = match number(0)? {
            0 => Service::BestEffort,
            1 => Service::Reliable,
            _ => return None,
        };
        let body = Self {
            service,
            src: (number(1)?, number(2)?),
            dst: (number(3)?, number(4)?),
            serial: number(5)?,
        };
        padding.iter().all(|&byte| byte == PADDING).then_some(body)
    }
}
