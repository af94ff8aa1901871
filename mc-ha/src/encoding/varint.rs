//! Integers of few bytes.

/// Appends a LEB128.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Signed differences as unsigned numbers, small ones as small ones.
pub(super) const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

pub(super) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads fields from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A number of things of at least `each` bytes, so that no more can be announced than there is
    /// room for.
    pub(super) fn count(&mut self, each: usize) -> Option<usize> {
        let count = usize::try_from(self.varint()?).ok()?;
        (count <= self.0.len() / each).then_some(count)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.varint()?).ok()?;
        core::str::from_utf8(self.bytes(len)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_come_back(value: u64, signed: i64) {
            let mut out = Vec::new();
            put(&mut out, value);
            put(&mut out, zigzag(signed));
            let mut reader = Reader(&out);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert_eq!(reader.varint().map(unzigzag), Some(signed));
            prop_assert_eq!(reader.varint(), None);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let mut reader = Reader(&bytes);
            while reader.varint().is_some() {}
        }
    }
}
