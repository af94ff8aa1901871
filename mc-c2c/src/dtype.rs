//! Element types, and how they become `f32` and back.

use core::fmt;

use half::{bf16, f16};
use serde::Deserialize;

/// The type of an object's elements; little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Dtype {
    /// 16 bits with the exponent of `f32`.
    #[serde(rename = "bf16")]
    Bf16,
    /// 16 bits, IEEE 754 half precision.
    #[serde(rename = "fp16")]
    F16,
    /// 32 bits.
    #[serde(rename = "fp32")]
    F32,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The largest magnitude that it holds.
    const fn max(self) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(0x7f7f_0000),
            Self::F16 => 65_504.0,
            Self::F32 => f32::MAX,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
            Self::F32 => "fp32",
        })
    }
}

/// How a result loses the bits that its type has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// Toward zero, as Mooncake's converter stores bf16. Of the other types fp32 loses nothing, and
    /// fp16 is rounded to the nearest all the same.
    Truncate,
}

/// Reads elements. Returns whether all are finite.
///
/// # Panics
/// When `bytes` has not exactly the elements of `values`.
pub(crate) fn load(dtype: Dtype, bytes: &[u8], values: &mut [f32]) -> bool {
    assert_eq!(bytes.len(), values.len() * dtype.size(), "as many elements");
    match dtype {
        Dtype::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Dtype::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        Dtype::F32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
    are_finite(values)
}

/// Writes elements. Returns whether the type can hold them: none is infinite, NaN, or becomes so.
///
/// # Panics
/// When `bytes` has not exactly the elements of `values`.
pub(crate) fn store(dtype: Dtype, rounding: Rounding, values: &[f32], bytes: &mut [u8]) -> bool {
    assert_eq!(bytes.len(), values.len() * dtype.size(), "as many elements");
    match (dtype, rounding) {
        (Dtype::Bf16, Rounding::Truncate) => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = ((value.to_bits() >> 16) as u16).to_le_bytes();
            }
        }
        (Dtype::Bf16, Rounding::Nearest) => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = bf16::from_f32(*value).to_le_bytes();
            }
        }
        (Dtype::F16, _) => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = f16::from_f32(*value).to_le_bytes();
            }
        }
        (Dtype::F32, _) => {
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = value.to_le_bytes();
            }
        }
    }
    let max = dtype.max();
    // A NaN is at most nothing.
    values.iter().fold(true, |fit, value| fit & (value.abs() <= max))
}

/// Returns whether no value is infinite or NaN. Looks at all of them, which vectorizes.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |finite, value| finite & (value.abs() < f32::INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_and_fp16_comes_back() {
        for bits in 0..=u16::MAX {
            for dtype in [Dtype::Bf16, Dtype::F16] {
                let mut value = [0.0];
                let finite = load(dtype, &bits.to_le_bytes(), &mut value);
                assert_eq!(finite, value[0].is_finite());
                let mut bytes = [0; 2];
                assert_eq!(store(dtype, Rounding::Nearest, &value, &mut bytes), finite);
                if finite {
                    assert_eq!(u16::from_le_bytes(bytes), bits);
                }
            }
        }
    }

    #[test]
    fn what_a_type_cannot_hold_is_reported() {
        let fits =
            |dtype, value| store(dtype, Rounding::Nearest, &[value], &mut vec![0; dtype.size()]);
        assert!(fits(Dtype::F16, 65_504.0) && !fits(Dtype::F16, 65_505.0));
        assert!(fits(Dtype::Bf16, 3.3e38) && !fits(Dtype::Bf16, f32::MAX));
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            assert!(!fits(dtype, f32::NAN) && !fits(dtype, f32::NEG_INFINITY), "{dtype}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_or_toward_zero() {
        let stored = |rounding| {
            let mut bytes = [0; 2];
            assert!(store(Dtype::Bf16, rounding, &[f32::from_bits(0x3f80_ffff)], &mut bytes));
            u16::from_le_bytes(bytes)
        };
        assert_eq!((stored(Rounding::Nearest), stored(Rounding::Truncate)), (0x3f81, 0x3f80));
    }
}
