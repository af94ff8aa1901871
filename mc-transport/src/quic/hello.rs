//! What each side says on the first stream of a connection.

/// Bytes of a hello.
pub(super) const HELLO_LEN: usize = 16;

/// The hello of a node whose largest operation has `max_operation` bytes.
pub(super) fn encode(max_operation: u64) -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..8].copy_from_slice(&max_operation.to_le_bytes());
    bytes
}

/// The bytes of the largest operation that its sender takes part in; `None` when this is
/// no hello of this version.
pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<u64> {
    let (max_operation, reserved) = bytes.split_first_chunk::<8>()?;
    (reserved == [0; 8]).then(|| u64::from_le_bytes(*max_operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The golden bytes are those of the example in docs/quic-wire.md.
    #[test]
    fn hello_bytes() {
        let mut bytes = *b"\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(encode(1 << 30), bytes);
        assert_eq!(decode(&bytes), Some(1 << 30));
        bytes[15] = 1;
        assert_eq!(decode(&bytes), None);
    }
}
