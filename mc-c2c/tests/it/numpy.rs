//! Both projectors agree with numpy.

use std::fs;
use std::path::Path;
use std::process::Command;

use mc_c2c::{Converter, Dtype, KvFormat, Part, Projector};
use mc_testkit::python;

use crate::common::{assert_close, bits, to_f32};

const TMP: &str = env!("CARGO_TARGET_TMPDIR");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/reference.py");
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");

#[test]
fn both_projectors_agree_with_numpy_within_one_step_of_bf16() {
    let interpreter = python::environment(TMP, "c2c-python", PACKAGES);
    let dir = Path::new(TMP).join("c2c-reference");
    fs::create_dir_all(&dir).unwrap();
    python::run("the reference", Command::new(interpreter).arg(SCRIPT).arg(&dir));
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let (source, target) = (read("source.bf16"), read("target.bf16"));
    for name in ["simplified", "full"] {
        let (projector, identity) =
            mc_c2c::read_projector(&read(&format!("{name}.safetensors"))).unwrap();
        assert_eq!((identity.source_layers, identity.target_kv_heads), (4, 3));
        let own = matches!(projector, Projector::Full(_)).then_some(&target[..]);
        // Written again, it is the same.
        let mut again = Vec::new();
        mc_c2c::write_projector(&projector, &identity, &mut again).unwrap();
        assert_eq!(mc_c2c::read_projector(&again).unwrap().0, projector);

        let (from, to) = (KvFormat::bf16(4, 32), KvFormat::bf16(3, 48));
        let converter = Converter::new(projector, from, to).unwrap();
        for part in Part::ALL {
            let mut out = vec![0; converter.output_len(source.len()).unwrap()];
            converter.convert(part, &source, own, &mut out).unwrap();
            assert_close(&out, &read(&format!("{name}.{part}.bf16")), &format!("{name} {part}"));
        }

        // The same from and to fp32: the inputs are equal, and a result has more bits.
        let wide = |format: KvFormat| KvFormat { dtype: Dtype::F32, ..format };
        let widened = |bytes: &[u8]| -> Vec<u8> {
            bits(bytes).into_iter().flat_map(|bits| to_f32(bits).to_le_bytes()).collect()
        };
        let own = own.map(widened);
        let converter =
            Converter::new(std::sync::Arc::clone(converter.projector()), wide(from), wide(to))
                .unwrap();
        let mut out = vec![0; 2 * read(&format!("{name}.key.bf16")).len()];
        converter.convert(Part::Key, &widened(&source), own.as_deref(), &mut out).unwrap();
        let narrowed: Vec<u8> = out.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect();
        assert_close(&narrowed, &read(&format!("{name}.key.bf16")), name);
    }
}
