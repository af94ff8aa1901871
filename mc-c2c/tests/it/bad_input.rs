//! Input that does not fit is refused with its cause.

use mc_c2c::{
    ConvertError, Converter, Dtype, Identity, KvFormat, Part, Projector, WeightsError,
    read_projector, read_projector_bin,
};
use proptest::prelude::*;

const PROJECTOR: &[u8] = include_bytes!("../data/projector.bin");
const SOURCE: &[u8] = include_bytes!("../data/src.bf16");

fn projector() -> Projector {
    read_projector_bin(PROJECTOR, PROJECTOR.len() as u64).unwrap().into()
}

fn container() -> Vec<u8> {
    let identity = Identity {
        source_layers: 3,
        target_layers: 2,
        source_kv_heads: 1,
        target_kv_heads: 1,
        ..Identity::default()
    };
    let mut file = Vec::new();
    mc_c2c::write_projector(&projector(), &identity, &mut file).unwrap();
    file
}

fn read_bin(bytes: &[u8]) -> Result<Projector, WeightsError> {
    read_projector_bin(bytes, bytes.len() as u64).map(Into::into)
}

#[test]
fn a_projector_bin_has_exactly_the_length_of_its_header() {
    for len in [0, 15, 16, 17, 8319] {
        let refusal = read_bin(&PROJECTOR[..len]).unwrap_err();
        assert!(matches!(refusal, WeightsError::Length { .. }), "{len}: {refusal}");
    }
    let refusal = read_bin(&[PROJECTOR, b"more"].concat()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the file has 8324 bytes, and its header says 8320; get it again"
    );
    // A file that shrinks while it is read.
    let refusal = read_projector_bin(&PROJECTOR[..8000], 8320).unwrap_err();
    assert!(matches!(refusal, WeightsError::Io(_)), "{refusal}");
}

#[test]
fn a_header_out_of_range_is_refused_before_memory_is_taken() {
    for (at, value) in
        [(0, 0), (0, -1), (0, 1025), (4, i32::MAX), (8, i32::MIN), (12, 65_537), (12, 0)]
    {
        let mut file = PROJECTOR.to_vec();
        file[at..at + 4].copy_from_slice(&i32::to_le_bytes(value));
        let refusal = read_bin(&file).unwrap_err();
        assert!(matches!(refusal, WeightsError::Header { .. }), "{at} {value}: {refusal}");
    }
    let largest: Vec<u8> =
        [1024, 65_536, 65_536, 65_536].iter().flat_map(|n: &i32| n.to_le_bytes()).collect();
    let refusal = read_bin(&largest).unwrap_err();
    assert!(matches!(refusal, WeightsError::Length { .. }), "{refusal}");
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut file = PROJECTOR.to_vec();
        file[8316..].copy_from_slice(&value.to_le_bytes());
        assert_eq!(
            read_bin(&file).unwrap_err().to_string(),
            "layer 1 value_proj_bias has an infinite or undefined weight; get the file again"
        );
    }
}

#[test]
fn containers_say_what_is_wrong_with_them() {
    let text = |file: &[u8], old: &str, new: &str| -> String {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        assert_eq!(old.len(), new.len(), "the lengths in the header stay");
        let at = file.windows(old.len()).position(|window| window == old).unwrap();
        let mut file = file.to_vec();
        file[at..at + new.len()].copy_from_slice(new);
        read_projector(&file).unwrap_err().to_string()
    };
    let file = container();
    for (old, new, refusal) in [
        ("kv-projector", "another-file", "the property format is \"another-file\""),
        ("\"version\":\"1\"", "\"version\":\"9\"", "the property version is \"9\", and 1"),
        ("\"simplified\"", "\"simplistic\"", "the property variant is"),
        (
            "\"source_layers\":\"3\"",
            "\"source_layers\":\"0\"",
            "the property source_layers is \"0\"",
        ),
        (
            "\"target_layers\":\"2\"",
            "\"target_layers\":\"3\"",
            "the tensor layers.2.key.in.weight is missing",
        ),
        ("gelu_tanh_pade", "gelu_tanh_full", "the property activation is"),
        (
            "layers.1.value.in.bias",
            "layers.1.value.in.bier",
            "the tensor layers.1.value.in.bias is missing",
        ),
        (
            "\"shape\":[16,8]",
            "\"shape\":[8,16]",
            "layers.0.key.in.bias has the shape [16], and [8] is needed",
        ),
    ] {
        let given = text(&file, old, new);
        assert!(given.starts_with(refusal) || given.contains(refusal), "{given}");
    }
    for len in [0, 7, 8, 100, file.len() - 1] {
        read_projector(&file[..len]).unwrap_err();
    }
    read_projector(&[&file[..], b"x"].concat()).unwrap_err();
}

#[test]
fn objects_that_do_not_fit_are_refused() {
    let (from, to) = (KvFormat::bf16(3, 8), KvFormat::bf16(2, 6));
    let new = |from, to| Converter::new(projector(), from, to);
    for (from, to) in [(KvFormat::bf16(3, 9), to), (from, KvFormat::bf16(2, 7))] {
        assert!(matches!(new(from, to), Err(ConvertError::Dim { .. })));
    }
    for (from, to) in
        [(KvFormat::bf16(1, 8), to), (from, KvFormat::bf16(1, 6)), (from, KvFormat::bf16(3, 6))]
    {
        assert!(matches!(new(from, to), Err(ConvertError::Layers { .. })));
    }
    let converter = new(from, to).unwrap();
    for len in [0, 1, 47, 49, 239] {
        let refusal = converter.output_len(len).unwrap_err();
        assert_eq!(refusal, ConvertError::Length { len, token_bytes: 48 });
    }
    let convert =
        |source: &[u8], target, out: &mut [u8]| converter.convert(Part::Key, source, target, out);
    let mut out = [0; 120];
    assert_eq!(
        convert(SOURCE, None, &mut out[1..]),
        Err(ConvertError::Output { expected: 120, len: 119 })
    );
    assert_eq!(convert(SOURCE, Some(&[]), &mut out), Err(ConvertError::NoTarget));
    // Infinite in the last layer of the first token, then in one that no network reads.
    for (at, outcome) in
        [(2 * 8 + 3, Err(ConvertError::NotFinite { side: "source", layer: 2 })), (3, Ok(()))]
    {
        let mut source = SOURCE.to_vec();
        source[2 * at..2 * at + 2].copy_from_slice(&0x7f80u16.to_le_bytes());
        assert_eq!(convert(&source, None, &mut out), outcome);
    }
    // Large, but finite: the result is not.
    let huge: Vec<u8> = (0..SOURCE.len() / 2).flat_map(|_| 0x7e00u16.to_le_bytes()).collect();
    let half = KvFormat { dtype: Dtype::F16, ..to };
    let converter = new(from, half).unwrap();
    let refusal = converter.convert(Part::Key, &huge, None, &mut out).unwrap_err();
    assert!(matches!(refusal, ConvertError::Overflow { dtype: Dtype::F16, .. }), "{refusal}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (read_bin(&bytes).is_ok(), read_projector(&bytes).is_ok());
    }

    #[test]
    fn a_damaged_container_is_refused_or_the_same_kind(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut file = container();
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        if let Ok((Projector::Full(_), _)) = read_projector(&file) {
            panic!("it was a simplified projector");
        }
    }
}
