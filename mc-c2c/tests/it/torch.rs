//! Checkpoints without PyTorch: a sample that it wrote, and files that it never would.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mc_c2c::{
    CheckpointError, CheckpointOptions, KvFormat, Part, Projector, StateDict, TorchError, Variant,
    WeightsError, read_checkpoint,
};
use mc_testkit::Random;
use safetensors::tensor::{Dtype, TensorView};

use crate::common::{assert_converts_as_torch, zip};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/checkpoint");
const MODULE: &[u8] = include_bytes!("../data/checkpoint/projector_0.pt");

/// Longer than any small file takes, and shorter than a loop without end.
const AT_MOST: Duration = Duration::from_secs(20);

fn open(file: &[u8]) -> Result<StateDict<Cursor<&[u8]>>, TorchError> {
    StateDict::open(Cursor::new(file))
}

/// A file with this pickle, and a storage of four floats.
fn file(pickle: &[u8]) -> Vec<u8> {
    let floats: Vec<u8> = [0.0f32, 1.0, 2.0, 3.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    zip(&[("a/data.pkl", pickle), ("a/data/0", &floats)])
}

fn refusal(pickle: &[u8]) -> TorchError {
    open(&file(pickle)).unwrap_err()
}

/// A copy of the sample that a test may change.
fn copy(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoints").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    for entry in fs::read_dir(SAMPLE).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    dir
}

fn full(dir: &Path) -> Result<(Projector, mc_c2c::Identity), CheckpointError> {
    read_checkpoint(dir, Variant::Full, &CheckpointOptions::default())
}

/// A pickle of one tensor `x` of four floats, with this offset, shape and strides.
fn tensor(offset: &[u8], shape: &[u8], strides: &[u8]) -> Vec<u8> {
    [
        b"\x80\x02}X\x01\0\0\0xctorch._utils\n_rebuild_tensor_v2\n((".as_slice(),
        b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ",
        offset,
        shape,
        strides,
        b"\x89}tRs.",
    ]
    .concat()
}

#[test]
fn the_sample_converts_as_in_torch() {
    let (projector, identity) = full(Path::new(SAMPLE)).unwrap();
    assert_eq!((identity.source_layers, identity.target_layers), (2, 2));
    assert_eq!((identity.source_kv_heads, identity.target_kv_heads), (1, 2));
    assert_eq!((projector.modules(), projector.shape()), (1, [2, 4, 4]));
    // in 6×4, three blocks of two 4×4, out 4×4, heads 4×2; two layers of each.
    assert_eq!(projector.flop_per_token(Part::Key), 2 * 2 * (24 + 96 + 16 + 8));
    let others = 4 + 3 * 4 + 4 + 2 + 1;
    assert_eq!(projector.memory_bytes(), 4 * 2 * (144 + others));
    assert!(projector.is_open(0, Part::Value));
    let formats = (KvFormat::bf16(2, 2), KvFormat::bf16(2, 4));
    assert_converts_as_torch(Path::new(SAMPLE), projector, formats.0, formats.1);
}

#[test]
fn a_simplified_projector_has_a_part_of_the_weights() {
    let options = CheckpointOptions { target_model: Some("t".into()), ..Default::default() };
    let read = |variant| read_checkpoint(Path::new(SAMPLE), variant, &options).unwrap();
    let (simple, identity) = read(Variant::Simplified);
    assert_eq!((identity.target_model.as_str(), identity.target_layers), ("t", 2));
    let Projector::Simplified(simple) = simple else { panic!("another variant") };
    let mut bin = Vec::new();
    mc_c2c::write_projector_bin(&simple, &mut bin).unwrap();
    let mut tensors = open(MODULE).unwrap();
    let mut stored = |name: &str| tensors.read(name).unwrap().to_f32().unwrap();
    let transposed = |weights: &[f32], columns: usize, taken: usize| -> Vec<f32> {
        let column = |at: usize| weights.iter().skip(at).step_by(columns).copied();
        (0..taken).flat_map(column).collect()
    };
    let mut expected = Vec::new();
    for part in ["key", "value"] {
        let mut get = |name: &str| stored(&format!("{part}_{name}"));
        expected.extend(transposed(&get("in.weight"), 6, 2));
        expected.extend(get("in.bias"));
        expected.extend(transposed(&get("mlp1.blocks.0.w1.weight"), 4, 4));
        expected.extend([0.0; 4]);
        expected.extend(transposed(&get("proj_out.weight"), 4, 4));
        expected.extend(get("proj_out.bias"));
    }
    let weights: Vec<f32> =
        bin[16..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(weights[..2], [0.5, 0.5]);
    assert_eq!(weights[2..2 + expected.len()], expected);
    assert_eq!(weights[2 + expected.len()..], weights[..2 + expected.len()]);
}

#[test]
fn modules_may_be_safetensors() {
    let dir = copy("safetensors");
    let mut tensors = open(MODULE).unwrap();
    let names: Vec<String> = tensors.names().map(str::to_owned).collect();
    let tensors: Vec<_> = names.iter().map(|name| tensors.read(name).unwrap()).collect();
    let views = names.iter().zip(&tensors).map(|(name, tensor)| {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), &tensor.bytes);
        (name, view.unwrap())
    });
    let module = safetensors::serialize(views, None).unwrap();
    fs::write(dir.join("projector_0.safetensors"), &module).unwrap();
    fs::remove_file(dir.join("projector_0.pt")).unwrap();
    for variant in [Variant::Full, Variant::Simplified] {
        let read = |dir: &Path| read_checkpoint(dir, variant, &CheckpointOptions::default());
        assert_eq!(read(&dir).unwrap(), read(Path::new(SAMPLE)).unwrap());
    }
    fs::write(dir.join("projector_0.safetensors"), &module[..module.len() - 1]).unwrap();
    let given = full(&dir).unwrap_err();
    assert!(matches!(given, CheckpointError::Weights(WeightsError::Container(_))), "{given}");
}

#[test]
fn checkpoints_say_what_is_wrong_with_them() {
    let dir = copy("wrong");
    let (config, json) = (dir.join("projector_config.json"), dir.join("projector_0.json"));
    let texts = [&config, &json].map(|path| fs::read_to_string(path).unwrap());
    for (path, text, expected) in [
        (&config, "{}", "several pairs"),
        (
            &config,
            "{\"0\": {\"1\": {\"0\": [[0, 0]]}, \"2\": {\"0\": [[0, 0]]}}}",
            "1 to 0, 2 to 0",
        ),
        (&config, "{\"0\": {\"1\": {\"0\": []}}}", "no source for layer 0"),
        (&config, "{\"0\": {\"1\": {\"0\": [[0, 1]]}}}", "neither projector_1.safetensors nor"),
        (&config, "{\"0\": {\"1\": {\"0\": [[0, 1024]]}}}", "numbers above 1024"),
        (&config, "{\"0\": {\"1\": {\"0\": [[0]]}}}", "not as C2C writes it"),
        (&json, "{\"class\": \"Replacer\"}", "only a C2CProjector"),
        (&json, "{\"class\": \"C2CProjector\"}", "KV heads of the source model; give it"),
        (
            &json,
            "{\"class\": \"C2CProjector\", \"init_args\": {\"source_num_heads\": 3}}",
            "source_dim by the heads is 3, and the files say 2",
        ),
        (
            &json,
            "{\"class\": \"C2CProjector\", \"init_args\": {\"source_num_heads\": 1, \"target_dim\": 3}}",
            "target_dim by the heads is 6, and the files say 4",
        ),
    ] {
        fs::write(path, text).unwrap();
        let given = full(&dir).unwrap_err().to_string();
        assert!(given.contains(expected), "{text}: {given}");
        for (path, text) in [&config, &json].into_iter().zip(&texts) {
            fs::write(path, text).unwrap();
        }
    }
    let options = CheckpointOptions { source_layers: Some(1), ..Default::default() };
    let given = read_checkpoint(&dir, Variant::Full, &options).unwrap_err();
    assert!(matches!(given, CheckpointError::Differs { given: 1, found: 2, .. }), "{given}");
    // Names choose one of several pairs; the second source of a layer is not used.
    let several = "{\"t\": {\"s\": {\"1\": [[0, 0], [7, 7]]}, \"other\": {\"0\": [[0, 0]]}}}";
    fs::write(&config, several).unwrap();
    let options = CheckpointOptions { source_model: Some("s".into()), ..Default::default() };
    let (_, identity) = read_checkpoint(&dir, Variant::Full, &options).unwrap();
    assert_eq!((identity.target_model.as_str(), identity.target_layers), ("t", 2));
    fs::write(dir.join("aggregator_config.json"), "{}").unwrap();
    let given = read_checkpoint(&dir, Variant::Full, &options).unwrap_err().to_string();
    assert!(given.contains("aggregator"), "{given}");
    // Without a map there are simplified projectors alone.
    fs::remove_file(&config).unwrap();
    let given = read_checkpoint(&dir, Variant::Full, &options).unwrap_err();
    assert!(matches!(given, CheckpointError::NoCheckpoint { .. }), "{given}");
    let (simple, _) = read_checkpoint(&dir, Variant::Simplified, &options).unwrap();
    assert_eq!(simple.modules(), 1);
}

#[test]
fn tensors_that_are_missing_are_named_as_in_the_file() {
    let dir = copy("missing");
    let only = tensor(b"K\0", b"K\x04\x85", b"K\x01\x85");
    fs::write(dir.join("projector_0.pt"), file(&only)).unwrap();
    let given = full(&dir).unwrap_err();
    let CheckpointError::Weights(WeightsError::Missing { tensor }) = given else {
        panic!("{given}")
    };
    assert_eq!(tensor, "key_in.weight of projector_0");
}

#[test]
fn views_are_read_by_their_strides() {
    let read = |offset: &[u8], shape: &[u8], strides: &[u8]| {
        let file = file(&tensor(offset, shape, strides));
        Ok::<_, TorchError>(open(&file)?.read("x")?.to_f32().unwrap())
    };
    let two = b"K\x02K\x02\x86";
    assert_eq!(read(b"K\0", two, b"K\x02K\x01\x86").unwrap(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(read(b"K\0", two, b"K\x01K\x02\x86").unwrap(), [0.0, 2.0, 1.0, 3.0]);
    assert_eq!(read(b"K\x01", b"K\x02\x85", b"K\x02\x85").unwrap(), [1.0, 3.0]);
    assert_eq!(read(b"K\x03", b")", b")").unwrap(), [3.0]);
    assert_eq!(read(b"K\x04", b"K\0\x85", b"K\x01\x85").unwrap(), [0.0; 0]);
    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    for (offset, shape, strides) in [
        (&b"K\x02"[..], &two[..], &b"K\x02K\x01\x86"[..]),
        (b"K\x01", b"K\x02\x85", b"K\x03\x85"),
        (b"K\x04", b")", b")"),
        (huge, two, b"K\x02K\x01\x86"),
        (b"K\0", b"K\x05\x85", b"K\0\x85"),
        (b"K\0", two, &[&huge[..], huge, b"\x86"].concat()),
        (b"K\0", &[&huge[..], huge, b"\x86"].concat(), b"K\0K\0\x86"),
    ] {
        let given = read(offset, shape, strides).unwrap_err();
        assert!(matches!(given, TorchError::View { .. }), "{given}");
    }
    for (offset, shape, strides) in [
        (&b"J\xff\xff\xff\xff"[..], &two[..], &b"K\x02K\x01\x86"[..]),
        (b"K\0", b"K\x02\x85", b"K\x02K\x01\x86"),
        (b"K\0", b"K\x02", b"K\x02"),
        (b"N", b")", b")"),
    ] {
        let given = read(offset, shape, strides).unwrap_err();
        assert!(matches!(given, TorchError::Pickle { .. }), "{given}");
    }
}

#[test]
fn nothing_but_tensors_is_made() {
    for (pickle, name) in [
        (&b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R."[..], "os.system"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "posix.system"),
        (b"\x80\x02c__builtin__\neval\n.", "__builtin__.eval"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
    ] {
        let given = refusal(pickle);
        assert!(matches!(&given, TorchError::Global { name: other } if other == name), "{given}");
    }
    // Instructions that make objects of classes: INST, OBJ, NEWOBJ, EXT1; and unknown ones.
    for opcode in [b'i', b'o', 0x81, 0x82, b'P', 0xff] {
        let given = refusal(&[0x80, 2, opcode, b'.']);
        assert!(matches!(given, TorchError::Opcode { at: 2, .. }), "{given}");
    }
    for pickle in [
        &b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R."[..],
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n}}}\x87R.",
        b"\x80\x02X\x01\0\0\0a)R.",
        b"\x80\x02)Q.",
        b"\x80\x02X\x07\0\0\0storageK\x01K\x01\x87Q.",
        b"\x80\x01.",
        b"\x80\x02}K\x01s.",
        b"\x80\x02(K\x01s.",
        b"\x80\x02u.",
        b"\x80\x02a.",
        b"\x80\x02h\x07.",
        b"\x80\x02q\0.",
        b"\x80\x02X\x04\0\0\0abc",
        b"\x80\x02X\x01\0\0\0\xff.",
        b"\x80\x02cabc",
        b"\x80",
        b"",
        b".",
    ] {
        let given = refusal(pickle);
        assert!(matches!(given, TorchError::Pickle { .. }), "{pickle:?}: {given}");
    }
    for pickle in
        [&b"\x80\x02K\x01."[..], b"\x80\x02).", b"\x80\x02}K\x01Ns.", b"\x80\x02}X\0\0\0\0Ns."]
    {
        let given = refusal(pickle);
        assert!(matches!(given, TorchError::NotAStateDict { .. }), "{pickle:?}: {given}");
    }
    assert_eq!(open(&file(b"\x80\x02}.")).unwrap().names().count(), 0);
}

#[test]
fn pickles_are_bounded() {
    let begin = Instant::now();
    let repeated = |start: &[u8], part: &[u8], times: usize, end: &[u8]| {
        [&[0x80, 2], start, &part.repeat(times), end].concat()
    };
    for (pickle, what) in [
        // Deep nesting, which is no nesting here, and a stack without end.
        (repeated(b")", b"\x85", 2 << 20, b"."), "instructions"),
        (repeated(b"", b"N", 1 << 17, b"."), "values on its stack"),
        (repeated(b"", b"(", 1 << 17, b"."), "values on its stack"),
        // Each list has the last one twice.
        (repeated(b"]q\0", b"]q\x01h\0ah\0aq\0", 1 << 17, b"."), "values on its stack"),
        (b"\x80\x02Nr\xff\xff\xff\xff.".to_vec(), "a memo"),
        (b"\x80\x02X\xff\xff\xff\xff.".to_vec(), "a name with bytes"),
        (repeated(b"c", b"x", 1 << 20, b"\nx\n."), ""),
        (b"\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\0.".to_vec(), "a number with bytes"),
        (vec![0; (16 << 20) + 1], "a pickle with bytes"),
    ] {
        let given = refusal(&pickle);
        match &given {
            TorchError::Limit { what: other, .. } => assert_eq!(*other, what),
            TorchError::Pickle { .. } => assert_eq!(what, "", "{given}"),
            _ => panic!("{given}"),
        }
    }
    // Within the limits all of these end: a thousand levels, and as many names of one list.
    for pickle in [
        repeated(b")", b"\x85", 1000, b"."),
        repeated(b"]q\0", b"]q\x01h\0ah\0aq\0", 1000, b"."),
        repeated(b"}q\0", b"h\0", 1000, b"."),
    ] {
        let _ = open(&file(&pickle)).is_ok();
    }
    // The same tensor by many names has more elements than the file has bytes.
    let one = tensor(b"K\0", b"K\x40\x85", b"K\x01\x85");
    let at = one.windows(4).position(|window| window == b"K\x04tQ").unwrap();
    let head = [&one[..at], b"K\x40", &one[at + 2..one.len() - 2], b"q\x01s"].concat();
    let shared = |names: u32| {
        let name = |number| format!("X\x04\0\0\0{number:04}h\x01s");
        let pickle = [&head, (0..names).map(name).collect::<String>().as_bytes(), b"."].concat();
        let file = zip(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 256])]);
        open(&file).map(|tensors| tensors.names().count())
    };
    assert_eq!(shared(5).unwrap(), 6);
    let given = shared(500).unwrap_err();
    assert!(matches!(given, TorchError::Limit { what: "tensors with elements", .. }), "{given}");
    // A name and a tensor, written once and used many times, would be copied as often.
    let often = b"h\x02h\x01s".repeat(1 << 14);
    let pickle = [&head, &b"X\x01\0\0\0yq\x02h\x01s"[..], &often, b"."].concat();
    let given = open(&zip(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 256])])).unwrap_err();
    assert!(matches!(given, TorchError::Limit { what: "tensors", .. }), "{given}");
    assert!(begin.elapsed() < AT_MOST, "{:?}", begin.elapsed());
}

#[test]
fn archives_are_what_torch_writes() {
    let good = tensor(b"K\0", b"K\x04\x85", b"K\x01\x85");
    let floats = [0; 16];
    let entries = [("a/data.pkl", &good[..]), ("a/data/0", &floats[..])];
    let whole = zip(&entries);
    assert!(open(&whole).is_ok());
    let refused = |file: &[u8]| open(file).unwrap_err();

    assert!(matches!(refused(b"\x80\x02\x8a\x0al\xfc"), TorchError::Legacy));
    for file in [&b""[..], b"P", b"\x1f\x8b", &[0; 4096]] {
        assert!(matches!(refused(file), TorchError::NotAnArchive), "{file:?}");
    }
    for len in 2..whole.len() {
        open(&whole[..len]).unwrap_err();
    }
    assert!(matches!(refused(&[&whole[..], b"x"].concat()), TorchError::Archive { .. }));
    let with = |index: usize, entry: (&'static str, &'static [u8])| {
        let mut entries = entries;
        entries[index] = entry;
        refused(&zip(&entries))
    };
    assert!(matches!(with(1, ("a/data/1", &[0; 16])), TorchError::NoEntry { .. }));
    assert!(matches!(with(0, ("a/other", b"")), TorchError::NoEntry { .. }));
    for len in [15, 17] {
        let given = with(1, ("a/data/0", &[0; 17][..len]));
        assert!(matches!(given, TorchError::StorageLen { expected: 16, .. }), "{given}");
    }
    for name in ["b/data/0", "a", "a/data.pkl"] {
        let given = with(1, (name, &[0; 16]));
        assert!(matches!(given, TorchError::Archive { .. }), "{name}: {given}");
    }
    let big = [&entries[..], &[("a/byteorder", b"big")]].concat();
    assert!(matches!(refused(&zip(&big)), TorchError::BigEndian));

    // The key of a storage is a number, and never a path.
    for key in ["..", "0/../..", "", "/0"] {
        let text = format!("X{}{key}", core::str::from_utf8(&[key.len() as u8, 0, 0, 0]).unwrap());
        let at = good.windows(6).position(|window| window == b"X\x01\0\0\x000").unwrap();
        let pickle = [&good[..at], text.as_bytes(), &good[at + 6..]].concat();
        assert!(matches!(refusal(&pickle), TorchError::Pickle { .. }), "{key}");
    }

    // What the directory says of the second entry: method, flags, lengths, place; and its count.
    let directory = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let second = directory + 46 + "a/data.pkl".len();
    let end = whole.len() - 22;
    let set = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        open(&file).and_then(|mut tensors| tensors.read("x").map(|_| ())).unwrap_err()
    };
    for (at, value) in [(second + 10, 8u8), (second + 8, 1), (second + 20, 1)] {
        let given = set(at, &[value]);
        assert!(matches!(&given, TorchError::Packed { entry } if entry == "data/0"), "{given}");
    }
    for at in [second + 42, second, end + 10, end + 12, end + 16, end] {
        let given = set(at, &[0xff, 0xff]);
        assert!(matches!(given, TorchError::Archive { .. }), "{}: {given}", at - directory);
    }
    let lens = u32::to_le_bytes(u32::MAX - 1).repeat(2);
    assert!(matches!(set(second + 20, &lens), TorchError::StorageLen { .. }));
    assert!(matches!(set(second + 16, &[1]), TorchError::Checksum { .. }));
    // A content that changed after its checksum.
    let content = whole.windows(16).position(|window| window == floats).unwrap();
    assert!(matches!(set(content + 15, &[1]), TorchError::Checksum { .. }));
}

#[test]
fn entries_that_share_their_bytes_are_refused() {
    let mut pickle = b"\x80\x02}".to_vec();
    for number in 0..100 {
        let name = format!("X\x04\0\0\0t{number:03}ctorch._utils\n_rebuild_tensor_v2\n((");
        let kind = "X\x07\0\0\0storagectorch\nByteStorage\n";
        pickle.extend([&name, kind, &format!("X\x04\0\0\0{number:04}N")].concat().bytes());
        // 2000 bytes, of which the tensor is the first.
        pickle.extend(b"M\xd0\x07tQK\0K\x01\x85K\x01\x85\x89}tRs");
    }
    pickle.push(b'.');
    let (names, content): (Vec<String>, _) =
        ((0..100).map(|number| format!("a/data/{number:04}")).collect(), [7u8; 2000]);
    let mut entries = vec![("a/data.pkl", &pickle[..])];
    entries.extend(names.iter().map(|name| (name.as_str(), &content[..])));
    let honest = zip(&entries);
    assert_eq!(open(&honest).unwrap().names().count(), 100);
    // The same directory behind the first content alone.
    let place = |part: &[u8]| honest.windows(part.len()).position(|window| window == part).unwrap();
    let first = place(&content) + content.len();
    let mut shared = [&honest[..first], &honest[place(b"PK\x01\x02")..]].concat();
    let start = shared.len() - 22 + 16;
    shared[start..start + 4].copy_from_slice(&(first as u32).to_le_bytes());
    let given = open(&shared).unwrap_err();
    assert!(matches!(given, TorchError::Limit { what: "storages with bytes", .. }), "{given}");
}

#[test]
fn damage_never_panics_and_never_takes_long() {
    let mut random = Random::seeded("TORCH_DAMAGE_SEED");
    let begin = Instant::now();
    let read_all = |file: &[u8]| {
        let Ok(mut tensors) = open(file) else { return };
        let names: Vec<String> = tensors.names().map(str::to_owned).collect();
        for name in names {
            if let Ok(tensor) = tensors.read(&name) {
                assert!(tensor.bytes.len() <= 8 * MODULE.len());
            }
        }
    };
    let pickle = {
        let at = MODULE.windows(2).position(|window| window == b"\x80\x02").unwrap();
        let end = MODULE.windows(4).position(|window| window == b"PK\x07\x08").unwrap_or(at + 4000);
        MODULE[at..end].to_vec()
    };
    for _ in 0..3000 {
        let mut damaged = MODULE.to_vec();
        for _ in 0..1 + random.below(4) {
            // The directory and the pickle more often than the elements.
            let at = match random.below(3) {
                0 => damaged.len() - 1 - random.below(damaged.len().min(6000)),
                1 => random.below(damaged.len().min(4000)),
                _ => random.below(damaged.len()),
            };
            damaged[at] = random.next_u64() as u8;
        }
        read_all(&damaged);
        // The same in a pickle whose checksum is right.
        let mut damaged = pickle.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(damaged.len());
            damaged[at] = random.next_u64() as u8;
        }
        read_all(&file(&damaged));
    }
    assert!(begin.elapsed() < AT_MOST, "{:?}", begin.elapsed());
}
