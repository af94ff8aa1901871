//! The ranges of addresses that an engine has registered, and the parts of them that a transfer
//! names.

use std::ops::Deref;

use mc_types::{Extent, RemoteKey};

/// The most ranges of one engine.
pub(crate) const MAX_RANGES: usize = 65_536;

/// Registered memory: `len` bytes from `address` on, in the address space of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The key of the region that begins at `address`.
    pub(crate) key: RemoteKey,
}

impl Range {
    /// Returns the address behind the last byte; `None` for a range that is empty or that exceeds
    /// the address space.
    fn end(&self) -> Option<u64> {
        self.address.checked_add(self.len).filter(|_| self.len > 0)
    }
}

/// Why ranges are not those of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RangesError {
    /// More than [`MAX_RANGES`].
    #[error("{count} ranges are more than {MAX_RANGES}")]
    TooMany { count: usize },
    /// A range is empty, or exceeds the address space.
    #[error("{len} bytes at {address:#x} are no range of addresses")]
    Impossible { address: u64, len: u64 },
    /// A range begins before the end of the one before it.
    #[error("the range at {address:#x} overlaps the one before it, or is out of order")]
    Overlap { address: u64 },
    /// The range that was registered first is not among them.
    #[error("no range begins at {address:#x}, where the first one is said to be")]
    NoFirst { address: u64 },
}

/// Ranges in the order of their addresses; no two overlap. Dereferences to their list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    sorted: Vec<Range>,
    first: Option<u64>,
}

impl Ranges {
    /// Takes ranges that are sorted by address; `first` is the address of the one that was
    /// registered before the others, `None` if there is none.
    ///
    /// # Errors
    /// [`RangesError`] for ranges that no engine has.
    pub(crate) fn new(sorted: Vec<Range>, first: Option<u64>) -> Result<Self, RangesError> {
        if sorted.len() > MAX_RANGES {
            return Err(RangesError::TooMany { count: sorted.len() });
        }
        let mut reached = 0;
        for range in &sorted {
            let Range { address, len, .. } = *range;
            let end = range.end().ok_or(RangesError::Impossible { address, len })?;
            if address < reached {
                return Err(RangesError::Overlap { address });
            }
            reached = end;
        }
        let ranges = Self { sorted, first };
        match first {
            Some(address) if ranges.find(address).is_none_or(|range| range.address != address) => {
                Err(RangesError::NoFirst { address })
            }
            None if !ranges.is_empty() => Err(RangesError::NoFirst { address: 0 }),
            _ => Ok(ranges),
        }
    }

    /// Returns the address of the range that was registered before the others.
    pub(crate) fn first(&self) -> Option<u64> {
        self.first
    }

    /// Returns the range that contains `address`.
    fn find(&self, address: u64) -> Option<&Range> {
        let index = self.sorted.partition_point(|range| range.address <= address);
        let range = self.sorted.get(index.checked_sub(1)?)?;
        (address - range.address < range.len).then_some(range)
    }

    /// Returns the parts of regions that the `len` bytes at `address` consist of, in order: several
    /// where ranges adjoin. `None` if a byte is not registered; no parts for no bytes.
    pub(crate) fn parts(&self, address: u64, len: u64) -> Option<Vec<(RemoteKey, Extent)>> {
        let end = address.checked_add(len)?;
        let (mut reached, mut parts) = (address, Vec::new());
        while reached < end {
            let range = self.find(reached)?;
            let offset = reached - range.address;
            let step = (range.len - offset).min(end - reached);
            parts.push((range.key, Extent::new(offset, step)?));
            reached += step;
        }
        Some(parts)
    }
}

impl Deref for Ranges {
    type Target = [Range];

    fn deref(&self) -> &[Range] {
        &self.sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(address: u64, len: u64) -> Range {
        // The key names the range.
        let key = RemoteKey::from_bytes(u128::from(address).to_le_bytes());
        Range { address, len, key }
    }

    fn ranges(list: &[(u64, u64)]) -> Result<Ranges, RangesError> {
        let first = list.first().map(|&(address, _)| address);
        Ranges::new(list.iter().map(|&(address, len)| range(address, len)).collect(), first)
    }

    fn parts(ranges: &Ranges, address: u64, len: u64) -> Option<Vec<(u64, u64, u64)>> {
        let parts = ranges.parts(address, len)?;
        let owner = |key: RemoteKey| u128::from_le_bytes(key.to_bytes()) as u64;
        Some(parts.iter().map(|(key, part)| (owner(*key), part.offset(), part.len())).collect())
    }

    #[test]
    fn bytes_are_found_in_the_ranges_that_adjoin() {
        let known = ranges(&[(100, 10), (110, 5), (120, 10)]).unwrap();
        assert_eq!(parts(&known, 100, 10), Some(vec![(100, 0, 10)]));
        assert_eq!(parts(&known, 105, 10), Some(vec![(100, 5, 5), (110, 0, 5)]));
        assert_eq!(parts(&known, 129, 1), Some(vec![(120, 9, 1)]));
        for (address, len) in [(99, 1), (114, 2), (115, 1), (129, 2), (130, 1), (100, u64::MAX)] {
            assert_eq!(parts(&known, address, len), None, "{address} {len}");
        }
        assert_eq!(parts(&known, 7, 0), Some(vec![]), "no bytes need no range");
    }

    #[test]
    fn ranges_that_no_engine_has_are_rejected() {
        assert_eq!(ranges(&[(5, 0)]), Err(RangesError::Impossible { address: 5, len: 0 }));
        let far = u64::MAX - 3;
        assert_eq!(ranges(&[(far, 4)]), Err(RangesError::Impossible { address: far, len: 4 }));
        assert_eq!(ranges(&[(5, 6), (10, 1)]), Err(RangesError::Overlap { address: 10 }));
        assert_eq!(ranges(&[(20, 1), (10, 1)]), Err(RangesError::Overlap { address: 10 }));
        let many = (0..=MAX_RANGES as u64).map(|at| range(at * 2 + 2, 1)).collect();
        let count = MAX_RANGES + 1;
        assert_eq!(Ranges::new(many, Some(2)), Err(RangesError::TooMany { count }));
        let one = vec![range(8, 8)];
        assert_eq!(Ranges::new(one.clone(), Some(9)), Err(RangesError::NoFirst { address: 9 }));
        assert_eq!(Ranges::new(one, None), Err(RangesError::NoFirst { address: 0 }));
        assert_eq!(Ranges::new(vec![], None).map(|none| none.first()), Ok(None));
    }

    proptest! {
        /// Every byte is found where a search through all ranges finds it.
        #[test]
        fn parts_are_those_of_a_model(
            gaps in prop::collection::vec((0_u64..3, 1_u64..6), 0..8),
            address in 0_u64..60,
            len in 0_u64..30,
        ) {
            let (mut at, mut list) = (1, Vec::new());
            for (gap, len) in gaps {
                at += gap;
                list.push((at, len));
                at += len;
            }
            let known = ranges(&list).unwrap();
            let byte = |at: u64| {
                let (start, _) = list.iter().find(|(start, len)| (*start..start + len).contains(&at))?;
                Some((*start, at - start))
            };
            let expected: Option<Vec<_>> = (address..address + len).map(byte).collect();
            let found = parts(&known, address, len).map(|parts| {
                let bytes = |(owner, from, len): (u64, u64, u64)| (from..from + len).map(move |at| (owner, at));
                parts.into_iter().flat_map(bytes).collect::<Vec<_>>()
            });
            prop_assert_eq!(found, expected);
        }
    }
}
