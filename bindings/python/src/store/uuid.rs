//! Ids in Mooncake's form: two numbers of 64 bits.

/// The two halves of an id of 128 bits, the more significant half first.
pub(super) type Halves = (u64, u64);

pub(super) fn halves(bits: u128) -> Halves {
    ((bits >> 64) as u64, bits as u64)
}

pub(super) fn whole((high, low): Halves) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Formats the halves as decimals, separated by a hyphen.
pub(super) fn text(bits: u128) -> String {
    let (high, low) = halves(bits);
    format!("{high}-{low}")
}

/// Parses the format of [`text`].
pub(super) fn parse(text: &str) -> Option<u128> {
    let (high, low) = text.split_once('-')?;
    Some(whole((high.parse().ok()?, low.parse().ok()?)))
}
