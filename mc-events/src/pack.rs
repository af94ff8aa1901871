//! A MessagePack writer.

use rmp::encode;

const NEVER_FAILS: &str = "a vector takes every write";

/// Writes MessagePack values, each in its shortest form.
#[derive(Debug)]
pub struct Packer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Packer<'a> {
    /// Appends to `out`.
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Begins an array of `len` values, which must follow.
    ///
    /// # Panics
    /// If `len` exceeds `u32::MAX`, as in [`map`](Self::map), [`str`](Self::str) and
    /// [`bin`](Self::bin).
    pub fn array(&mut self, len: usize) -> &mut Self {
        encode::write_array_len(self.out, length(len)).expect(NEVER_FAILS);
        self
    }

    /// Begins a map of `len` pairs, which must follow.
    pub fn map(&mut self, len: usize) -> &mut Self {
        encode::write_map_len(self.out, length(len)).expect(NEVER_FAILS);
        self
    }

    /// Writes nil.
    pub fn nil(&mut self) -> &mut Self {
        encode::write_nil(self.out).expect(NEVER_FAILS);
        self
    }

    /// Writes a truth value.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        encode::write_bool(self.out, value).expect(NEVER_FAILS);
        self
    }

    /// Writes a whole number.
    pub fn uint(&mut self, value: u64) -> &mut Self {
        encode::write_uint(self.out, value).expect(NEVER_FAILS);
        self
    }

    /// Writes a floating-point number.
    pub fn float(&mut self, value: f64) -> &mut Self {
        encode::write_f64(self.out, value).expect(NEVER_FAILS);
        self
    }

    /// Writes a string.
    pub fn str(&mut self, value: &str) -> &mut Self {
        length(value.len());
        encode::write_str(self.out, value).expect(NEVER_FAILS);
        self
    }

    /// Writes bytes.
    pub fn bin(&mut self, value: &[u8]) -> &mut Self {
        length(value.len());
        encode::write_bin(self.out, value).expect(NEVER_FAILS);
        self
    }

    /// Writes the string, or nil in place of an empty one.
    pub(crate) fn str_or_nil(&mut self, value: &str) -> &mut Self {
        if value.is_empty() { self.nil() } else { self.str(value) }
    }

    /// Writes an array of whole numbers.
    pub(crate) fn uints(&mut self, values: impl ExactSizeIterator<Item = u64>) -> &mut Self {
        self.array(values.len());
        for value in values {
            self.uint(value);
        }
        self
    }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("MessagePack counts with 32 bits")
}
