//! State dicts of PyTorch: a whole file if the first byte is even, else the pickle of one that has
//! the storages `0`, of 16 bytes, and `1`, of none.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use mc_c2c::StateDict;

fuzz_target!(|data: &[u8]| {
    let Some((first, input)) = data.split_first() else { return };
    let built;
    let file = if first % 2 == 0 {
        input
    } else {
        built = archive(&[("a/data.pkl", input), ("a/data/0", &[1; 16]), ("a/data/1", &[])]);
        &built
    };
    let Ok(mut tensors) = StateDict::open(Cursor::new(file)) else { return };
    let names: Vec<String> = tensors.names().map(str::to_owned).collect();
    let mut read = 0;
    for name in names {
        // A damaged storage is found when it is read.
        let Ok(tensor) = tensors.read(&name) else { continue };
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.bytes.len(), elements * tensor.element.size());
        read += elements;
    }
    assert!(read <= file.len(), "{read} elements of {} bytes", file.len());
});

/// A zip of entries that are not compressed.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let (header, len) = (file.len() as u32, content.len() as u32);
        let mut fields = vec![0; 8];
        fields.extend([crc32(content), len, len].map(u32::to_le_bytes).concat());
        fields.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        file.extend([b"PK\x03\x04\0\0", &fields[..], name.as_bytes(), content].concat());
        directory.extend([b"PK\x01\x02\0\0\0\0", &fields[..], &[0; 10]].concat());
        directory.extend([&header.to_le_bytes(), name.as_bytes()].concat());
    }
    let places = [directory.len() as u32, file.len() as u32].map(u32::to_le_bytes).concat();
    let count = (entries.len() as u16).to_le_bytes().repeat(2);
    [file, directory, b"PK\x05\x06\0\0\0\0".to_vec(), count, places, vec![0; 2]].concat()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
