//! Helpers of the tests: comparisons with the results of others, and archives.

#![cfg_attr(not(feature = "torch"), allow(dead_code, reason = "the tests of `torch` use the rest"))]

use std::fs;
use std::path::Path;

use mc_c2c::{Converter, KvFormat, Part, Projector};

pub(crate) fn bits(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect()
}

/// Steps of bf16 between two numbers of any sign.
fn steps(a: u16, b: u16) -> u32 {
    let line = |bits: u16| {
        let magnitude = i32::from(bits & 0x7fff);
        if bits >> 15 == 0 { magnitude } else { -magnitude }
    };
    line(a).abs_diff(line(b))
}

pub(crate) fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Results differ by a step of bf16 at most, or, next to zero, by less than sums of `f32` promise.
pub(crate) fn assert_close(ours: &[u8], theirs: &[u8], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (at, (ours, theirs)) in bits(ours).into_iter().zip(bits(theirs)).enumerate() {
        let near = (to_f32(ours) - to_f32(theirs)).abs() < 1e-6;
        assert!(near || steps(ours, theirs) <= 1, "{what}: {at} is {ours:04x}, not {theirs:04x}");
    }
}

/// Converts the objects beside a checkpoint and compares the results with those of PyTorch.
pub(crate) fn assert_converts_as_torch(dir: &Path, full: Projector, from: KvFormat, to: KvFormat) {
    let read = |name: &str| fs::read(dir.join(name)).expect("the script wrote it");
    let (source, target) = (read("source.bf16"), read("target.bf16"));
    let converter = Converter::new(full, from, to).expect("it is of these formats");
    for part in Part::ALL {
        let mut out = vec![0; target.len()];
        converter.convert(part, &source, Some(&target), &mut out).expect("they fit");
        assert_close(&out, &read(&format!("{part}.bf16")), &format!("{dir:?} {part}"));
        assert_ne!(out, target, "{dir:?} {part}");
    }
}

/// A zip of these entries, none of them compressed.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let (name, header) = (name.as_bytes(), file.len() as u32);
        let mut fields = vec![0; 8];
        fields.extend(crc32(content).to_le_bytes());
        fields.extend((content.len() as u32).to_le_bytes());
        fields.extend((content.len() as u32).to_le_bytes());
        fields.extend((name.len() as u16).to_le_bytes());
        fields.extend([0, 0]);
        file.extend([b"PK\x03\x04\x00\x00", &fields[..], name, content].concat());
        let more = [&[0; 10][..], &header.to_le_bytes()].concat();
        directory.extend([b"PK\x01\x02\x00\x00\x00\x00", &fields[..], &more, name].concat());
    }
    let (start, len) = (file.len() as u32, directory.len() as u32);
    let count = (entries.len() as u16).to_le_bytes();
    file.extend(directory);
    file.extend([b"PK\x05\x06\x00\x00\x00\x00", &count[..], &count].concat());
    file.extend([len.to_le_bytes(), start.to_le_bytes()].concat());
    file.extend([0, 0]);
    file
}

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
