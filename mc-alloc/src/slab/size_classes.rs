//! The slot sizes that slabs are divided into.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::error::Error;
use core::fmt;

/// Bytes of a slab unless another size is asked for: 4 MiB.
const DEFAULT_SLAB_SIZE: u64 = 4 << 20;

/// The smallest slab size that may be asked for.
const SMALLEST_SLAB: u64 = 4096;

/// Slots that a slab can have at most; bounds the slot table of a slab to 16 MiB.
const MAX_SLOTS_SHIFT: u32 = 20;

/// Size classes that there can be at most.
pub(super) const MAX_CLASSES: usize = 256;

/// Into how many slots the largest classes divide a slab.
const SLOTS_OF_LARGE_CLASSES: [u64; 11] = [16, 13, 10, 8, 7, 6, 5, 4, 3, 2, 1];

/// A slab size and the slot sizes that its slabs can be divided into; always valid.
///
/// The default classes go from 64 bytes to the slab size. Up to 1/16 of a slab there are
/// four to a power of two (64, 80, 96, 112, 128, ...), so each is at most 1.25 times its
/// predecessor, and a request gets its alignment for no more than what rounding its size
/// up to that alignment costs. Above 1/16 a slab is divided evenly, into 16, 13, 10, 8, 7,
/// 6, 5, 4, 3, 2 slots and 1, in multiples of 1/1024 of the slab: a rounder size would
/// only leave more of the slab unused behind the last slot. In every class that is less
/// than 1/40 of a slab. Objects slightly larger than a half or a third of a slab fit
/// badly, whatever the classes; a larger slab size is the remedy.
///
/// ```
/// use mc_alloc::SizeClasses;
///
/// let default = SizeClasses::default();
/// assert_eq!(default.slab_size(), 4 << 20);
/// assert_eq!(default.sizes()[..6], [64, 80, 96, 112, 128, 160]);
/// let pages = SizeClasses::explicit(1 << 21, &[16_384, 65_536])?;
/// assert_eq!(pages.sizes(), [16_384, 65_536]);
/// # Ok::<(), mc_alloc::SizeClassError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeClasses {
    slab_size: u64,
    sizes: Box<[u64]>,
}

impl SizeClasses {
    /// The default classes of slabs of `slab_size` bytes. In slabs above 64 MiB the
    /// smallest class is a 2^20th of the slab, which bounds the slots of a slab.
    ///
    /// # Errors
    ///
    /// [`SizeClassError::BadSlabSize`] when `slab_size` is not a power of two of at least
    /// 4096.
    pub fn geometric(slab_size: u64) -> Result<Self, SizeClassError> {
        check_slab_size(slab_size)?;
        let mut sizes = Vec::new();
        let mut power = smallest_class(slab_size).max(64);
        while power < slab_size / 16 {
            sizes.extend((4..8).map(|quarters| power / 4 * quarters));
            power *= 2;
        }
        let unit = (slab_size / 1024).max(8);
        sizes.extend(SLOTS_OF_LARGE_CLASSES.map(|slots| slab_size / slots / unit * unit));
        Ok(Self { slab_size, sizes: sizes.into() })
    }

    /// Classes of exactly these `sizes`, for a workload whose sizes are known.
    ///
    /// # Errors
    ///
    /// See [`SizeClassError`].
    pub fn explicit(slab_size: u64, sizes: &[u64]) -> Result<Self, SizeClassError> {
        check_slab_size(slab_size)?;
        let (Some(&smallest), Some(&largest)) = (sizes.first(), sizes.last()) else {
            return Err(SizeClassError::NoClasses);
        };
        if sizes.len() > MAX_CLASSES {
            return Err(SizeClassError::TooManyClasses {
                classes: sizes.len(),
                limit: MAX_CLASSES,
            });
        }
        if let Some(pair) = sizes.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(SizeClassError::NotAscending { first: pair[0], second: pair[1] });
        }
        if smallest < smallest_class(slab_size) {
            return Err(SizeClassError::TooSmall {
                class: smallest,
                smallest: smallest_class(slab_size),
            });
        }
        if largest > slab_size {
            return Err(SizeClassError::LargerThanSlab { class: largest, slab_size });
        }
        Ok(Self { slab_size, sizes: sizes.into() })
    }

    /// Bytes of a slab: a power of two.
    #[must_use]
    pub const fn slab_size(&self) -> u64 {
        self.slab_size
    }

    /// Bytes of a slot of each class, in ascending order; never empty.
    #[must_use]
    pub const fn sizes(&self) -> &[u64] {
        &self.sizes
    }
}

impl Default for SizeClasses {
    /// The default classes of slabs of 4 MiB.
    fn default() -> Self {
        Self::geometric(DEFAULT_SLAB_SIZE).expect("4 MiB is a power of two above 4096")
    }
}

fn check_slab_size(slab_size: u64) -> Result<(), SizeClassError> {
    if slab_size.is_power_of_two() && slab_size >= SMALLEST_SLAB {
        Ok(())
    } else {
        Err(SizeClassError::BadSlabSize { slab_size })
    }
}

/// Bytes below which a slot would make more slots in a slab than there may be.
const fn smallest_class(slab_size: u64) -> u64 {
    match slab_size >> MAX_SLOTS_SHIFT {
        0 => 1,
        size => size,
    }
}

/// Why a slab cannot be divided as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizeClassError {
    /// The slab size is not a power of two of at least 4096.
    BadSlabSize {
        /// Bytes asked for.
        slab_size: u64,
    },
    /// There is no class at all.
    NoClasses,
    /// There are more classes than an allocator keeps.
    TooManyClasses {
        /// Classes asked for.
        classes: usize,
        /// Classes that there may be.
        limit: usize,
    },
    /// A class is not larger than the one before it.
    NotAscending {
        /// Bytes of a class.
        first: u64,
        /// Bytes of the class named after it.
        second: u64,
    },
    /// A class would divide a slab into more than 2^20 slots.
    TooSmall {
        /// Bytes of the class.
        class: u64,
        /// Bytes that a class of this slab size must have.
        smallest: u64,
    },
    /// A class does not fit a slab.
    LargerThanSlab {
        /// Bytes of the class.
        class: u64,
        /// Bytes of a slab.
        slab_size: u64,
    },
}

impl fmt::Display for SizeClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSlabSize { slab_size } => write!(
                f,
                "a slab size is a power of two of at least {SMALLEST_SLAB}, {slab_size} is none"
            ),
            Self::NoClasses => f.write_str("no size class is named; name at least one"),
            Self::TooManyClasses { classes, limit } => {
                write!(f, "{classes} size classes are more than the limit of {limit}; merge some")
            }
            Self::NotAscending { first, second } => write!(
                f,
                "size class {second} comes after {first}; sort the classes and name each once"
            ),
            Self::TooSmall { class, smallest } => write!(
                f,
                "a size class of {class} bytes divides a slab into too many slots; use at least \
                 {smallest} bytes, or smaller slabs"
            ),
            Self::LargerThanSlab { class, slab_size } => write!(
                f,
                "a size class of {class} bytes does not fit a slab of {slab_size}; use larger slabs"
            ),
        }
    }
}

impl Error for SizeClassError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab_sizes() -> impl Iterator<Item = u64> {
        (12..64).map(|shift| 1 << shift)
    }

    #[test]
    fn the_default_classes_pass_the_checks_of_explicit_ones() {
        for slab_size in slab_sizes() {
            let classes = SizeClasses::geometric(slab_size).unwrap();
            assert_eq!(SizeClasses::explicit(slab_size, classes.sizes()).as_ref(), Ok(&classes));
            assert_eq!(classes.sizes().last(), Some(&slab_size));
        }
    }

    #[test]
    fn the_default_classes_leave_little_of_a_slab_unused() {
        for slab_size in slab_sizes() {
            for &size in SizeClasses::geometric(slab_size).unwrap().sizes() {
                assert!(slab_size % size < slab_size / 40, "{size} in {slab_size}");
            }
        }
    }

    #[test]
    fn the_default_classes_grow_by_a_quarter_while_a_slab_has_sixteen_slots() {
        for slab_size in slab_sizes() {
            let classes = SizeClasses::geometric(slab_size).unwrap();
            for pair in classes.sizes().windows(2) {
                let limit = if pair[1] <= slab_size / 5 { 1.33 } else { 2.01 };
                assert!(pair[1] as f64 / pair[0] as f64 <= limit, "{pair:?} of {slab_size}");
                if pair[1] <= slab_size / 16 {
                    assert!(pair[1] * 4 <= pair[0] * 5, "{pair:?} of {slab_size}");
                }
            }
        }
    }

    #[test]
    fn each_mistake_has_its_error() {
        use SizeClassError as E;
        let slab = 1 << 22;
        for (slab_size, sizes, expected) in [
            (0, &[64][..], E::BadSlabSize { slab_size: 0 }),
            (2048, &[64], E::BadSlabSize { slab_size: 2048 }),
            (12_288, &[64], E::BadSlabSize { slab_size: 12_288 }),
            (slab, &[], E::NoClasses),
            (slab, &[64; 257], E::TooManyClasses { classes: 257, limit: 256 }),
            (slab, &[64, 64], E::NotAscending { first: 64, second: 64 }),
            (slab, &[64, 128, 96], E::NotAscending { first: 128, second: 96 }),
            (slab, &[3, 64], E::TooSmall { class: 3, smallest: 4 }),
            (4096, &[0, 64], E::TooSmall { class: 0, smallest: 1 }),
            (slab, &[64, slab + 1], E::LargerThanSlab { class: slab + 1, slab_size: slab }),
        ] {
            assert_eq!(SizeClasses::explicit(slab_size, sizes), Err(expected));
        }
        assert_eq!(SizeClasses::geometric(4097), Err(E::BadSlabSize { slab_size: 4097 }));
    }
}
