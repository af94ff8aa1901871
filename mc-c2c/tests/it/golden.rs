//! The golden vector: made from the format's description by another program.

use std::num::NonZeroUsize;

use mc_c2c::{Converter, Identity, KvFormat, Layout, Part, Projector, Rounding};

const PROJECTOR: &[u8] = include_bytes!("../data/projector.bin");
const SOURCE: &[u8] = include_bytes!("../data/src.bf16");
const KEYS: &[u8] = include_bytes!("../data/tgt_key.bf16");
const VALUES: &[u8] = include_bytes!("../data/tgt_value.bf16");

fn projector() -> Projector {
    mc_c2c::read_projector_bin(PROJECTOR, PROJECTOR.len() as u64).unwrap().into()
}

fn converted(converter: &Converter, part: Part, source: &[u8]) -> Vec<u8> {
    let mut out = vec![0; converter.output_len(source.len()).unwrap()];
    converter.convert(part, source, None, &mut out).unwrap();
    out
}

#[test]
fn the_golden_vector_is_met_byte_for_byte() {
    let converter =
        Converter::new(projector(), KvFormat::bf16(3, 8), KvFormat::bf16(2, 6)).unwrap();
    let truncating = converter.clone().rounding(Rounding::Truncate);
    assert_eq!(converted(&truncating, Part::Key, SOURCE), KEYS);
    assert_eq!(converted(&truncating, Part::Value, SOURCE), VALUES);
    let nearest = converted(&converter, Part::Key, SOURCE);
    assert_eq!(nearest.len(), KEYS.len());
    let bits = |bytes: &[u8]| -> Vec<u16> {
        bytes.as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect()
    };
    let off = |(a, b): (&u16, &u16)| a.abs_diff(*b);
    assert!(bits(&nearest).iter().zip(&bits(KEYS)).map(off).all(|off| off <= 1));
    assert_ne!(nearest, KEYS, "half of the elements are rounded up");
}

#[test]
fn threads_layouts_and_containers_change_nothing() {
    let tokens = 1200;
    let source: Vec<u8> = SOURCE.iter().copied().cycle().take(tokens * 3 * 8 * 2).collect();
    let (from, to) = (KvFormat::bf16(3, 8), KvFormat::bf16(2, 6));
    let converter = Converter::new(projector(), from, to).unwrap();
    let expected = converted(&converter, Part::Value, &source);
    let four = converter.clone().threads(NonZeroUsize::new(4).unwrap());
    assert_eq!(converted(&four, Part::Value, &source), expected);

    // Layer first on both sides.
    let by_layer = |object: &[u8], layers: usize, row: usize| -> Vec<u8> {
        let rows = |layer: usize| object.chunks(row).skip(layer).step_by(layers).flatten().copied();
        (0..layers).flat_map(rows).collect()
    };
    let layer_first = |format: KvFormat| KvFormat { layout: Layout::LayerFirst, ..format };
    let other = Converter::new(projector(), layer_first(from), layer_first(to)).unwrap();
    assert_eq!(
        converted(&other, Part::Value, &by_layer(&source, 3, 16)),
        by_layer(&expected, 2, 12)
    );

    let identity = Identity {
        source_model: "Qwen/Qwen3-4B".into(),
        target_model: "Qwen/Qwen3-0.6B".into(),
        source_layers: 3,
        target_layers: 2,
        source_kv_heads: 2,
        target_kv_heads: 3,
    };
    let mut file = Vec::new();
    mc_c2c::write_projector(&projector(), &identity, &mut file).unwrap();
    let (read, known) = mc_c2c::read_projector(&file).unwrap();
    assert_eq!((&read, known), (&projector(), identity));
    let Projector::Simplified(read) = read else { panic!("another variant") };
    let mut bin = Vec::new();
    mc_c2c::write_projector_bin(&read, &mut bin).unwrap();
    assert_eq!(bin, PROJECTOR);
}
