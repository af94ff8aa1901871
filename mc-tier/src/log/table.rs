//! The table of a segment: what the segment is, and which of its records are dead.
//!
//! It is there twice, one copy behind the other, each in whole blocks; a segment without a valid one is
//! free. A copy consists of sectors of 512 bytes, which a disk writes as a whole or not at all. The
//! first:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `MCTSEGMT` |
//! | 8 | 8 | the segment's sequence number: higher than those of all segments begun before |
//! | 16 | 8 | the segment's nonce |
//! | 24 | 8 | where the footer begins, counted from the segment's first byte; 0 for none |
//! | 32 | 8 | the footer's length, in bytes |
//! | 40 | 4 | the CRC-32C of the footer |
//! | 44 | 4 | the CRC-32C of the bytes before |
//!
//! The sectors behind it have a bit for each block of the segment, beginning with the lowest bit of the
//! first byte: 1 when a record that begins there is dead. A sector has 508 bytes of bits, and the
//! CRC-32C of the nonce and these bits. Bits only ever become 1 in one use of a segment: a bit counts
//! when it is 1 in one copy. A table that is found with one such copy is written again before the next
//! change: the bit would be lost with that copy when the segment is released and power fails. Where
//! both copies of a sector are damaged, all of its records are dead, because a removed object must not
//! come back.

use super::record::{BLOCK, array, is_sealed, padded, sealed};
use crate::object::crc32c;

const MAGIC: &[u8; 8] = b"MCTSEGMT";
const SECTOR: usize = 512;
/// Bytes of bits in a sector.
const BITS: usize = SECTOR - 4;
const HEADER: usize = 48;

/// The head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    pub(super) sequence: u64,
    pub(super) nonce: u64,
    pub(super) footer: Option<FooterPlace>,
}

/// Where the footer of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FooterPlace {
    /// Counted from the segment's first byte.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) checksum: u32,
}

/// A bit for each block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeadBlocks {
    bits: Vec<u8>,
    /// Whether a part could not be read, so that everything there is dead.
    pub(super) is_damaged: bool,
    /// Whether one copy alone has a part of it, which is lost with that copy.
    pub(super) is_torn: bool,
}

impl DeadBlocks {
    pub(super) fn none(segment_len: u64) -> Self {
        Self { bits: vec![0; sectors(segment_len) * BITS], is_damaged: false, is_torn: false }
    }

    /// `block` is counted from the segment's first.
    pub(super) fn contains(&self, block: u64) -> bool {
        self.bits[(block / 8) as usize] & (1 << (block % 8)) != 0
    }

    pub(super) fn insert(&mut self, block: u64) {
        self.bits[(block / 8) as usize] |= 1 << (block % 8);
    }

    /// The block behind the last one that is in it.
    pub(super) fn end(&self) -> u64 {
        let last = self.bits.iter().rposition(|byte| *byte != 0);
        last.map_or(0, |at| 8 * at as u64 + u64::from(8 - self.bits[at].leading_zeros()))
    }
}

/// The sectors that bits of a segment take.
const fn sectors(segment_len: u64) -> usize {
    (segment_len / BLOCK).div_ceil(8 * BITS as u64) as usize
}

/// The bytes of one copy.
const fn copy_len(segment_len: u64) -> usize {
    padded(((1 + sectors(segment_len)) * SECTOR) as u64) as usize
}

/// The bytes of both copies. The segment's first record begins behind them.
pub(super) const fn table_len(segment_len: u64) -> usize {
    2 * copy_len(segment_len)
}

/// Writes both copies into `bytes`, which have the length of a table.
pub(super) fn encode(head: SegmentHead, dead: &DeadBlocks, bytes: &mut [u8]) {
    bytes.fill(0);
    let (offset, len, checksum) =
        head.footer.map_or((0, 0, 0), |footer| (footer.offset, footer.len, footer.checksum));
    let mut fields = MAGIC.to_vec();
    for number in [head.sequence, head.nonce, offset, len] {
        fields.extend_from_slice(&number.to_le_bytes());
    }
    fields.extend_from_slice(&checksum.to_le_bytes());
    let (one, two) = bytes.split_at_mut(bytes.len() / 2);
    one[..HEADER].copy_from_slice(&sealed(fields));
    let sectors = one[SECTOR..].chunks_exact_mut(SECTOR);
    for (sector, bits) in sectors.zip(dead.bits.chunks_exact(BITS)) {
        sector[..BITS].copy_from_slice(bits);
        let checksum = checksum_of(head.nonce, bits);
        sector[BITS..].copy_from_slice(&checksum);
    }
    two.copy_from_slice(one);
}

/// Reads a table; `None` when the segment is free.
pub(super) fn parse(bytes: &[u8], segment_len: u64) -> Option<(SegmentHead, DeadBlocks)> {
    let (one, two) = bytes.split_at(bytes.len() / 2);
    let heads = [one, two].into_iter().filter_map(parse_head);
    // Where the writing of a table was not finished, its first copy is newer.
    let head = heads.reduce(|one, two| if two.sequence > one.sequence { two } else { one })?;
    let mut dead = DeadBlocks::none(segment_len);
    for (number, bits) in dead.bits.chunks_exact_mut(BITS).enumerate() {
        let at = (1 + number) * SECTOR;
        let mut is_known = false;
        for sector in [&one[at..at + SECTOR], &two[at..at + SECTOR]] {
            let (found, checksum) = sector.split_at(BITS);
            if checksum_of(head.nonce, found) == checksum {
                is_known = true;
                bits.iter_mut().zip(found).for_each(|(bits, found)| *bits |= found);
            }
        }
        if !is_known {
            bits.fill(0xff);
            dead.is_damaged = true;
        }
    }
    dead.is_torn = one != two && dead.end() > 0;
    Some((head, dead))
}

fn parse_head(copy: &[u8]) -> Option<SegmentHead> {
    if copy[..8] != *MAGIC || !is_sealed(&copy[..HEADER]) {
        return None;
    }
    let number = |at| u64::from_le_bytes(array(&copy[at..at + 8]));
    let (sequence, nonce, offset, len) = (number(8), number(16), number(24), number(32));
    let checksum = u32::from_le_bytes(array(&copy[40..44]));
    let footer = (offset > 0).then_some(FooterPlace { offset, len, checksum });
    Some(SegmentHead { sequence, nonce, footer })
}

fn checksum_of(nonce: u64, bits: &[u8]) -> [u8; 4] {
    crc32c(&[&nonce.to_le_bytes(), bits].concat()).as_u32().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 64 << 20;

    fn table() -> (SegmentHead, DeadBlocks, Vec<u8>) {
        let footer = FooterPlace { offset: 8192, len: 100, checksum: 7 };
        let head = SegmentHead { sequence: 3, nonce: 0x1234, footer: Some(footer) };
        let mut dead = DeadBlocks::none(LEN);
        [0, 7, 8, 5000, 16_383].into_iter().for_each(|block| dead.insert(block));
        let mut bytes = vec![0xff; table_len(LEN)];
        encode(head, &dead, &mut bytes);
        (head, dead, bytes)
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let (head, dead, bytes) = table();
        assert_eq!(bytes.len(), 8192);
        assert_eq!(parse(&bytes, LEN), Some((head, dead.clone())));
        assert!(dead.contains(5000) && !dead.contains(5001) && dead.end() == 16_384);
        assert_eq!(DeadBlocks::none(LEN).end(), 0);
        assert_eq!(parse(&vec![0; 8192], LEN), None);
    }

    #[test]
    fn a_damaged_sector_costs_nothing_where_its_other_copy_is_whole() {
        let (head, dead, bytes) = table();
        let dead = DeadBlocks { is_torn: true, ..dead };
        for byte in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << (byte % 8);
            assert_eq!(parse(&flipped, LEN), Some((head, dead.clone())), "{byte}");
        }
    }

    #[test]
    fn where_both_copies_are_damaged_all_is_dead() {
        let (_, _, mut bytes) = table();
        bytes[SECTOR] ^= 1;
        bytes[4096 + SECTOR] ^= 1;
        let (_, dead) = parse(&bytes, LEN).unwrap();
        let sector = 8 * BITS as u64;
        assert!(dead.is_damaged && dead.contains(1) && dead.contains(sector - 1));
        assert!(!dead.contains(sector) && dead.contains(5000));
        bytes[0] ^= 1;
        bytes[4096] ^= 1;
        assert_eq!(parse(&bytes, LEN), None);
    }

    /// Each sector is the old or the new one.
    #[test]
    fn a_table_that_is_written_over_one_of_a_former_use_is_one_of_them() {
        let (old, dead, bytes) = table();
        let new = SegmentHead { sequence: 9, nonce: 0x5678, footer: None };
        let mut over = bytes.clone();
        encode(new, &DeadBlocks::none(LEN), &mut over);
        for written in 0..=bytes.len() / SECTOR {
            let mixed = [&over[..written * SECTOR], &bytes[written * SECTOR..]].concat();
            let (head, found) = parse(&mixed, LEN).unwrap();
            if written == 0 {
                assert_eq!((head, &found), (old, &dead));
            } else {
                assert_eq!(head, new, "{written}");
                assert!(
                    found.is_damaged == (written < 6) && !found.contains(16_383) || written < 6
                );
            }
        }
    }
}
