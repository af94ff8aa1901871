//! Keys of objects that exist only to be counted.

use mc_types::KeyRef;

/// Bytes in a key: the length that the memory per object is stated for.
const LEN: usize = 40;

/// The place of the number, in hexadecimal digits.
const DIGITS: usize = 16;

/// Writes keys into a buffer of its own, so that making one costs a few
/// nanoseconds and no allocation.
#[derive(Clone, Debug)]
pub(super) struct KeyWriter {
    text: [u8; LEN],
}

impl KeyWriter {
    /// Keys of one family; those of another family differ for every number.
    pub(super) fn new(family: u32) -> Self {
        let mut text = *b"model/layer-00000000/0000000000000000-kv";
        for (place, digit) in text[12..20].iter_mut().rev().enumerate() {
            *digit = hex(u64::from(family) >> (4 * place));
        }
        Self { text }
    }

    /// The key of `number`.
    pub(super) fn key(&mut self, number: u64) -> KeyRef<'_> {
        let digits = &mut self.text[21..21 + DIGITS];
        for (place, digit) in digits.iter_mut().rev().enumerate() {
            *digit = hex(number >> (4 * place));
        }
        let text = std::str::from_utf8(&self.text).expect("only ASCII is written");
        KeyRef::new(text).expect("forty bytes are a key")
    }
}

const fn hex(bits: u64) -> u8 {
    b"0123456789abcdef"[(bits & 15) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_family_and_number() {
        let mut keys = KeyWriter::new(0xab);
        assert_eq!(keys.key(0x12f).as_str(), "model/layer-000000ab/000000000000012f-kv");
        assert_eq!(keys.key(u64::MAX).as_str().len(), LEN);
        assert_ne!(KeyWriter::new(1).key(7), KeyWriter::new(2).key(7));
    }
}
