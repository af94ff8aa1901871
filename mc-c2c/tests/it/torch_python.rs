//! State dicts and checkpoints that PyTorch itself wrote.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mc_c2c::{
    CheckpointError, CheckpointOptions, KvFormat, Projector, StateDict, TorchError, Variant,
    read_checkpoint,
};
use mc_testkit::python;
use serde_json::Value;

use crate::common::assert_converts_as_torch;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/checkpoint.py");

/// A directory that the script has filled; `None` without PyTorch, which is too large to install
/// for a test.
fn written(name: &str) -> Option<PathBuf> {
    let has_torch = |python: &&str| {
        let mut import = Command::new(python);
        import.args(["-c", "import torch"]).stdout(Stdio::null()).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    };
    let Some(interpreter) = ["python3", "/usr/bin/python3"].iter().find(|python| has_torch(python))
    else {
        eprintln!(
            "left out: no python3 has torch; the samples in tests/data are read all the same"
        );
        return None;
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).unwrap();
    python::run("checkpoints", Command::new(interpreter).arg(SCRIPT).arg(&dir));
    Some(dir)
}

fn open(path: &Path) -> Result<StateDict<BufReader<File>>, TorchError> {
    StateDict::open(BufReader::new(File::open(path).unwrap()))
}

#[test]
fn full_projectors_convert_as_in_torch_and_simplified_ones_have_their_weights() {
    let Some(dir) = written("torch-checkpoints") else { return };
    let (from, to) = (KvFormat::bf16(4, 32), KvFormat::bf16(3, 48));
    let options = CheckpointOptions {
        source_model: Some("Qwen/Qwen3-4B".into()),
        ..CheckpointOptions::default()
    };
    for name in ["fp32", "bf16", "wide"] {
        let dir = dir.join(name);
        let (projector, identity) = read_checkpoint(&dir, Variant::Full, &options).unwrap();
        assert_eq!((identity.source_kv_heads, identity.target_kv_heads), (2, 3));
        assert_eq!(identity.source_model, "Qwen/Qwen3-4B");
        if name != "wide" {
            assert_eq!((identity.source_layers, identity.target_layers), (4, 3));
        }
        // As it is, and as its own file.
        let mut file = Vec::new();
        mc_c2c::write_projector(&projector, &identity, &mut file).unwrap();
        assert_eq!(mc_c2c::read_projector(&file).unwrap(), (projector.clone(), identity));
        assert_converts_as_torch(&dir, projector, from, to);
    }
    // Its map aligns the last layers, module 1 first.
    let (full, _) = read_checkpoint(&dir.join("fp32"), Variant::Full, &options).unwrap();
    let (simple, identity) =
        read_checkpoint(&dir.join("fp32"), Variant::Simplified, &options).unwrap();
    assert_eq!((identity.source_layers, simple.modules()), (4, 3));
    assert_eq!(simple.shape(), full.shape());
    let refusal = read_checkpoint(&dir.join("wide"), Variant::Simplified, &options).unwrap_err();
    assert!(matches!(refusal, CheckpointError::Map { .. }), "{refusal}");
    let Projector::Simplified(_) = simple else { panic!("another variant") };
}

#[test]
fn every_tensor_of_a_state_dict_has_the_values_that_torch_saved() {
    let Some(dir) = written("torch-state-dicts") else { return };
    let dir = dir.join("state_dicts");
    let values: Value =
        serde_json::from_slice(&fs::read(dir.join("values.json")).unwrap()).unwrap();
    let values = values.as_object().unwrap();
    for protocol in 2..=5 {
        let mut tensors = open(&dir.join(format!("protocol_{protocol}.pt"))).unwrap();
        assert_eq!(tensors.names().count(), values.len());
        for (name, expected) in values {
            let tensor = tensors.read(name).unwrap();
            let hex: String = tensor.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(&serde_json::json!([tensor.shape, hex]), expected, "{protocol} {name}");
        }
        assert_eq!(tensors.read("whole").unwrap().to_f32().unwrap()[23], 23.0);
        assert_eq!(tensors.read("i64").unwrap().to_f32(), None);
        assert!(matches!(tensors.read("other"), Err(TorchError::NoTensor { .. })));
    }
    let mut many = open(&dir.join("many.pt")).unwrap();
    assert_eq!(many.read("layer.2999").unwrap().to_f32().unwrap(), [2999.0; 2]);
    for (name, refusal) in [
        ("legacy", "PyTorch's old format"),
        ("nested", "\"state\", which is no tensor,"),
        ("tensor", "no dictionary of tensors"),
        ("module", "\"torch.nn.modules.linear.Linear\""),
        ("expanded", "\"repeated\" has more elements than its storage"),
    ] {
        let given = open(&dir.join(format!("{name}.pt"))).unwrap_err().to_string();
        assert!(given.contains(refusal), "{name}: {given}");
    }
}
