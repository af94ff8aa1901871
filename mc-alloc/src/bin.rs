//! Size classes of free regions: a floating-point number with six mantissa bits.
//!
//! A region's bin is its size with all but the seven leading bits dropped. So a bin
//! spans less than 1/64 of its smallest size, sizes below 128 have a bin each, and 59
//! rows of 64 bins cover every size that fits 64 bits.

/// Bins in a row: one bit each in a row's bitmap.
pub(crate) const COLUMNS: usize = 1 << MANTISSA_BITS;

const MANTISSA_BITS: u32 = 6;
const MANTISSA_MASK: u64 = (1 << MANTISSA_BITS) - 1;

/// A size class: row (power of two) and column (64th part of it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bin {
    row: u8,
    column: u8,
}

impl Bin {
    /// The bin that holds regions of `size` bytes: the last one whose smallest size
    /// is not above `size`.
    pub(crate) const fn of(size: u64) -> Self {
        if size <= MANTISSA_MASK {
            return Self { row: 0, column: size as u8 };
        }
        let exponent = size.ilog2();
        let column = (size >> (exponent - MANTISSA_BITS)) & MANTISSA_MASK;
        Self { row: (exponent - MANTISSA_BITS + 1) as u8, column: column as u8 }
    }

    /// The bin at `column` of `row`.
    pub(crate) const fn at(row: usize, column: usize) -> Self {
        Self { row: row as u8, column: column as u8 }
    }

    pub(crate) const fn row(self) -> usize {
        self.row as usize
    }

    /// Below [`COLUMNS`]; the mask lets the compiler see it.
    pub(crate) const fn column(self) -> usize {
        self.column as usize & (COLUMNS - 1)
    }

    /// The smallest size that this bin holds.
    pub(crate) const fn smallest(self) -> u64 {
        match self.row {
            0 => self.column as u64,
            row => (self.column as u64 | 1 << MANTISSA_BITS) << (row - 1),
        }
    }

    /// The largest size that this bin holds.
    pub(crate) const fn largest(self) -> u64 {
        match self.row {
            0 => self.column as u64,
            row => self.smallest() | ((1 << (row - 1)) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Bin = Bin::at(58, 63);

    fn every_bin() -> impl Iterator<Item = Bin> {
        (0..=58).flat_map(|row| (0..COLUMNS).map(move |column| Bin::at(row, column)))
    }

    #[test]
    fn every_edge_of_every_bin_is_where_it_should_be() {
        let mut expected = 0_u64;
        for bin in every_bin() {
            assert_eq!(bin.smallest(), expected, "{bin:?} starts where its predecessor ends");
            assert_eq!(Bin::of(bin.smallest()), bin);
            assert_eq!(Bin::of(bin.largest()), bin);
            if bin.smallest() > 0 {
                assert!(Bin::of(bin.smallest() - 1) < bin);
            }
            match bin.largest().checked_add(1) {
                Some(next) => {
                    assert!(Bin::of(next) > bin);
                    expected = next;
                }
                None => assert_eq!(bin, LAST),
            }
        }
        assert_eq!(Bin::of(u64::MAX), LAST);
    }

    #[test]
    fn a_bin_spans_less_than_a_sixty_fourth() {
        for bin in every_bin().skip(1) {
            assert!(u128::from(bin.largest() - bin.smallest()) * 64 < u128::from(bin.smallest()));
        }
    }
}
