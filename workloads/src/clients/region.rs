//! Description of a server's memory regions in the private data of a REP.

use rnic::Remote;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the list
const MAGIC: [u8; 2] = *b"SB";

/// A region of a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Virtual address of the first byte
    pub va: u64,
    /// Length in bytes
    pub len: u64,
    /// `R_Key`
    pub rkey: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    va: U64,
    len: U64,
    rkey: U32,
}

impl Region {
    /// Returns the remote address at `offset` bytes from the beginning.
    pub const fn at(&self, offset: u64) -> Remote {
        Remote { va: self.va.wrapping_add(offset), rkey: self.rkey }
    }

    /// Returns the offset of `va` in bytes, if `len` bytes from there are within the region.
    pub fn offset_of(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.va)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }

    /// Returns the private data of a REP that describes these regions: `SB`, the number of regions (one
    /// byte), and for each the virtual address and the length (8 bytes each) and the `R_Key` (4 bytes).
    pub fn list_to_bytes(regions: &[Self]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(regions.len() as u8);
        for Self { va, len, rkey } in regions {
            bytes.extend(Wire { va: (*va).into(), len: (*len).into(), rkey: (*rkey).into() }.as_bytes());
        }
        bytes
    }

    /// Parses the regions from private data; bytes behind them are ignored. Returns `None` for anything else.
    pub fn list_from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (count, mut rest) = rest.split_first()?;
        (0..*count)
            .map(|_| {
                let (wire, others) = Wire::read_from_prefix(rest).ok()?;
                rest = others;
                Some(Self { va: wire.va.get(), len: wire.len.get(), rkey: wire.rkey.get() })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_list_survives_a_round_trip() {
        let region = |n: u64| Region { va: n << 40, len: n * 100, rkey: n as u32 };
        let regions: Vec<_> = (1..=4).map(region).collect();
        let mut bytes = Region::list_to_bytes(&regions);
        assert!(
            bytes.len() <= rnic::cm::private_data::REP,
            "the list has to fit into the private data of a REP"
        );
        bytes.resize(rnic::cm::private_data::REP, 0);
        assert_eq!(Region::list_from_bytes(&bytes), Some(regions));
        assert_eq!(Region::list_from_bytes(&bytes[..40]), None);
        assert_eq!(Region::list_from_bytes(b"P4"), None);
    }

    #[test]
    fn offsets_exist_only_within_the_region() {
        let region = Region { va: 0x1000, len: 16, rkey: 7 };
        assert_eq!(region.at(8), Remote { va: 0x1008, rkey: 7 });
        assert_eq!((region.offset_of(0x1008, 8), region.offset_of(0x1009, 8)), (Some(8), None));
        assert_eq!((region.offset_of(0xfff, 1), region.offset_of(u64::MAX, 8)), (None, None));
    }
}
