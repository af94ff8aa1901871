//! Identities as Mooncake shows them: two numbers of 64 bits.

/// An identity of 128 bits in two halves, the more significant first.
pub(super) type Halves = (u64, u64);

pub(super) fn halves(bits: u128) -> Halves {
    ((bits >> 64) as u64, bits as u64)
}

pub(super) fn whole((high, low): Halves) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// The halves as decimals with a hyphen in between.
pub(super) fn text(bits: u128) -> String {
    let (high, low) = halves(bits);
    format!("{high}-{low}")
}

/// Reads [`text`].
pub(super) fn parse(text: &str) -> Option<u128> {
    let (high, low) = text.split_once('-')?;
    Some(whole((high.parse().ok()?, low.parse().ok()?)))
}
