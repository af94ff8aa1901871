//! The header of an object's file: as it is, and with the checksum that it has to have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mc_tier::object_file::{encode_header, parse_header};

fn check(bytes: &[u8]) {
    if let Ok((object, len)) = parse_header(bytes) {
        assert_eq!(encode_header(&object), bytes[..len]);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    check(&[bytes, &checksum.to_le_bytes()].concat());
});
