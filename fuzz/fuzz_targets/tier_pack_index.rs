//! The index of a file of many objects: as it is, and with the checksum that it has to have.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mc_tier::pack_file::PackIndex;

/// Reads an index and all that it says of its objects.
fn check(bytes: &[u8], run: u64, pack_len: u64) {
    if let Ok(index) = PackIndex::parse(Bytes::copy_from_slice(bytes), run, pack_len) {
        let mut end = bytes.len() as u64;
        for number in 0..index.count() {
            let packed = index.object(number).expect("a parsed index has its objects");
            assert_eq!(packed.at, end);
            end += packed.object.object_len();
        }
        assert_eq!(end, pack_len);
    }
}

fuzz_target!(|input: (u64, u64, u32, Vec<u8>)| {
    let (run, pack_len, count, mut bytes) = input;
    check(&bytes, run, pack_len);
    // The checksum is in front of as many bytes as there are objects.
    let count = (count % 8) as usize;
    if bytes.len() > count + 4 {
        let checked = bytes.len() - count - 4;
        let checksum =
            crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..checked]) as u32;
        bytes[checked..checked + 4].copy_from_slice(&checksum.to_le_bytes());
        check(&bytes, run, pack_len);
    }
});
