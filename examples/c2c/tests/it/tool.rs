//! The real binary, on samples that the library's tests have.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Finished, Input, Program};
use serde_json::Value;

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../mc-c2c/tests/data");

fn run(args: &[&str]) -> Finished {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_mc-c2c"));
    Program::start(DEADLINE, command.args(args), Input::None).finish()
}

/// Runs the binary, which must succeed; returns what it printed.
#[track_caller]
fn out(args: &[&str]) -> String {
    let ended = run(args);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{args:?}");
    String::from_utf8(ended.out).unwrap()
}

/// Runs the binary, which must refuse with one line that contains `says`.
#[track_caller]
fn assert_refused(args: &[&str], code: i32, says: &str) {
    let ended = run(args);
    let text = &ended.err;
    assert_eq!((ended.code, ended.out.as_slice()), (Some(code), &b""[..]), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    assert!(text.starts_with("error: ") && text.contains(says), "{args:?}: {text}");
}

/// An empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mc-c2c").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn data(name: &str) -> String {
    format!("{DATA}/{name}")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn checkpoints_become_files_of_both_variants() {
    let dir = folder("convert");
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let checkpoint = data("checkpoint");
    let convert = |output: &str, more: &[&str]| {
        let args = ["convert", "--checkpoint", &checkpoint, "--output", &path(output)];
        out(&[&args, more].concat())
    };
    let said = convert("full.safetensors", &["--source_model=a/b", "--target-model=c"]);
    assert!(said.contains("full.safetensors: full, 2 layers, 2 → 4 → 4, "), "{said}");
    convert("simple.safetensors", &["--variant=simplified"]);
    convert("simple.bin", &["--variant=simplified"]);
    assert_eq!(names(&dir), ["full.safetensors", "simple.bin", "simple.safetensors"]);

    let inspect = |name: &str| -> Value {
        serde_json::from_str(&out(&["inspect", &path(name), "--json"])).unwrap()
    };
    let full = inspect("full.safetensors");
    assert_eq!(full["variant"], "full");
    assert_eq!(full["models"]["source_model"], "a/b");
    assert_eq!(full["models"]["target_kv_heads"], 2);
    assert_eq!((&full["source_dim"], &full["hidden_dim"]), (&2.into(), &4.into()));
    assert_eq!(full["layers"][1]["source"], 1);
    assert_eq!(full["layers"][1]["key_open"], true);
    assert_eq!(full["memory_bytes"], 4 * 2 * 167);
    assert_eq!(full["gflop_per_token"], 4.0 * 2.0 * 144.0 / 1e9);
    let bin = inspect("simple.bin");
    assert_eq!((&bin["models"], &bin["layers"][0]["source"]), (&Value::Null, &Value::Null));
    assert_eq!(bin["bytes"], fs::metadata(dir.join("simple.bin")).unwrap().len());
    let sha256 = bin["files"][0]["sha256"].as_str().unwrap();
    assert_eq!(sha256.len(), 64);

    // From one file to the other and back nothing changes.
    let args = ["convert", "--input", &path("simple.safetensors"), "--output", &path("again.bin")];
    out(&args);
    assert_eq!(fs::read(path("again.bin")).unwrap(), fs::read(path("simple.bin")).unwrap());
    let args = ["convert", "--input", &path("simple.bin"), "--output", &path("again.safetensors")];
    assert_refused(&args, 2, "add --source_layers, --source_kv_heads and --target_kv_heads");
    let more = ["--source_layers=2", "--source_kv_heads=1", "--target_kv_heads=2"];
    out(&[&args[..], &more].concat());
    let again = inspect("again.safetensors");
    assert_eq!(again["models"], inspect("simple.safetensors")["models"]);
    assert_eq!(again["layers"], inspect("simple.safetensors")["layers"]);

    let shown = out(&["inspect", &checkpoint]);
    for line in ["variant  full", "layers   2 → 2, 2 mapped", "open for 2 keys and 2 values of 2"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(shown.contains("projector_0.pt"), "{shown}");
    assert!(out(&["inspect", &path("simple.bin")]).contains("pair     not in the file"));
}

#[test]
fn outputs_are_never_half_written_and_not_replaced_unasked() {
    let dir = folder("output");
    let output = dir.join("out.bin").to_str().unwrap().to_owned();
    let bin = data("projector.bin");
    let args = ["convert", "--input", &bin, "--output", &output];
    out(&args);
    assert_eq!(fs::read(&output).unwrap(), fs::read(&bin).unwrap());
    fs::write(&output, "mine").unwrap();
    assert_refused(&args, 1, "exists; name another file, or replace it with --force");
    assert_eq!(fs::read(&output).unwrap(), b"mine");
    out(&[&args[..], &["--force"]].concat());
    assert_eq!(fs::read(&output).unwrap(), fs::read(&bin).unwrap());

    let full = ["convert", "--checkpoint", &data("checkpoint"), "--output"];
    let other = dir.join("full.bin").to_str().unwrap().to_owned();
    assert_refused(&[&full[..], &[&other]].concat(), 2, "add --variant=simplified");
    let nowhere = dir.join("no/such/out.safetensors").to_str().unwrap().to_owned();
    assert_refused(&[&full[..], &[&nowhere]].concat(), 1, "cannot write");
    // A directory in the place of the file.
    fs::create_dir(dir.join("dir.safetensors")).unwrap();
    let taken = dir.join("dir.safetensors").to_str().unwrap().to_owned();
    assert_refused(&[&full[..], &[&taken, "--force"]].concat(), 1, "cannot write");
    assert_eq!(names(&dir), ["dir.safetensors", "out.bin"]);
}

#[test]
fn what_is_wrong_is_one_line() {
    let (bin, checkpoint) = (data("projector.bin"), data("checkpoint"));
    assert_refused(&["convert", "--output=x.bin"], 2, "--checkpoint");
    assert_refused(
        &["convert", "--input", &bin, "--output=x.pt"],
        2,
        "end in .safetensors or .bin",
    );
    assert_refused(&["convert", "--checkpoint", &bin, "--output=x.bin"], 1, "cannot read");
    let both = ["convert", "--checkpoint", &checkpoint, "--input", &bin, "--output=x.bin"];
    assert_refused(&both, 2, "--input");
    assert_refused(&["inspect", "/no/such.bin"], 1, "No such file");
    assert_refused(&["inspect", &bin, "--variant=full"], 2, "--variant is for checkpoints");
    assert_refused(&["inspect", &bin, "--variant=half"], 2, "full, simplified");
    assert_refused(&["inspect", &checkpoint, "--source_kv_heads=2"], 1, "the files say 1");
    assert_refused(&["inspect", DATA], 1, "no projector_config.json");
    assert_refused(&["fetsch"], 2, "fetsch");

    let dir = folder("wrong");
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    fs::write(path("cut.bin"), &fs::read(&bin).unwrap()[..100]).unwrap();
    assert_refused(&["inspect", &path("cut.bin")], 1, "the file has 100 bytes");
    fs::write(path("text.safetensors"), "text").unwrap();
    assert_refused(&["inspect", &path("text.safetensors")], 1, "no container of safetensors");
    // A pickle alone, which older versions wrote.
    for name in ["projector_config.json", "projector_0.json"] {
        fs::copy(format!("{checkpoint}/{name}"), dir.join(name)).unwrap();
    }
    fs::write(path("projector_0.pt"), b"\x80\x02cos\nsystem\n.").unwrap();
    assert_refused(&["inspect", dir.to_str().unwrap()], 1, "PyTorch's old format");
    let given = ["inspect", &data("checkpoint"), "--source_layers=1"];
    assert_refused(&given, 1, "source layers is 1, and the files say 2");
}

#[test]
fn quality_compares_layers_with_what_the_target_model_has() {
    let (bin, source) = (data("projector.bin"), data("src.bf16"));
    let (key, value) = (data("tgt_key.bf16"), data("tgt_value.bf16"));
    let simple = ["quality", &bin, "--source_layers=3", "--source", &source];
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&out(&[args, &["--json"]].concat())).unwrap()
    };
    // The golden vector is what it converts to, bit for bit; the values are something else.
    let more = ["--target", &key, "--part=key", "--rounding=truncate"];
    let exact = json(&[&simple[..], &more].concat());
    assert_eq!((&exact["part"], &exact["tokens"]), (&"key".into(), &5.into()));
    for layer in 0..2 {
        let layer = &exact["layers"][layer];
        assert!((layer["converted"]["cosine_min"].as_f64().unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(layer["converted"]["relative_l2"], 0.0);
        // Rows of 8 elements are nothing for a model with 6.
        assert_eq!(layer["unconverted"], Value::Null);
    }
    assert_eq!(exact["layers"][1]["source"], 2);
    // The same objects, layer after layer.
    let dir = folder("quality");
    let by_layer = |name: &str, layers: usize, row: usize| {
        let object = fs::read(data(name)).unwrap();
        let rows = |layer: usize| object.chunks(row).skip(layer).step_by(layers).flatten().copied();
        let path = dir.join(name);
        fs::write(&path, (0..layers).flat_map(rows).collect::<Vec<u8>>()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (sources, targets) = (by_layer("src.bf16", 3, 16), by_layer("tgt_key.bf16", 2, 12));
    let other = [
        &["quality", &bin, "--source_layers=3", "--source", &sources][..],
        &["--target", &targets, "--layout=layer_first"],
        &["--part=key", "--rounding=truncate"],
    ];
    assert_eq!(json(&other.concat()), exact);
    let wrong = json(&[&simple[..], &["--target", &value, "--part=key"]].concat());
    assert!(wrong["layers"][0]["converted"]["relative_l2"].as_f64().unwrap() > 0.1);
    let table = out(&[&simple[..], &more].concat());
    let cells: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[1], ["0", "1", "1.0000", "1.0000", "0.0000", "–", "–", "–"], "{table}");

    // The full projector has the target's own object as an input, and may be compared with another.
    let checkpoint = data("checkpoint");
    let of = |name: &str| format!("{checkpoint}/{name}.bf16");
    let (source, target, expected) = (of("source"), of("target"), of("key"));
    let full = ["quality", &checkpoint, "--part=key", "--source", &source, "--target", &target];
    let moved = json(&full);
    assert!(moved["layers"][0]["converted"]["relative_l2"].as_f64().unwrap() > 0.01);
    let met = json(&[&full[..], &["--expected", &expected]].concat());
    assert!(met["layers"][0]["converted"]["relative_l2"].as_f64().unwrap() < 0.01);
    // Two samples have twice the tokens.
    let twice = json(&[&full[..], &["--source", &source, "--target", &target]].concat());
    assert_eq!((&moved["tokens"], &twice["tokens"]), (&3.into(), &6.into()));

    assert_refused(&[&full[..], &["--source", &source]].concat(), 2, "2 --source, 1 --target");
    assert_refused(
        &[&full[..], &["--expected", &source]].concat(),
        2,
        "the object of the same tokens",
    );
    assert_refused(&[&full[..], &["--dtype=fp32"]].concat(), 1, "not a whole number of tokens");
    assert_refused(&[&simple[..2], &simple[3..], &more].concat(), 2, "add --source_layers");
}

/// A server of one file; returns its URL.
fn serve(file: Vec<u8>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/p/projector.bin?version=1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", file.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&file));
        }
    });
    url
}

#[test]
fn weights_are_fetched_once_and_rules_checked_with_them() {
    let dir = folder("fetch");
    let cache = format!("--cache_dir={}", dir.join("cache").display());
    let bin = data("projector.bin");
    let url = serve(fs::read(&bin).unwrap());
    let path = out(&["fetch", &url, &cache]);
    assert!(path.ends_with("_projector.bin\n"), "{path}");
    assert_eq!(fs::read(path.trim_end()).unwrap(), fs::read(&bin).unwrap());
    assert_eq!(out(&["fetch", &url, &cache, "--offline"]), path);
    let wrong = format!("--sha256={}", "0".repeat(64));
    assert_refused(&["fetch", &url, &cache, &wrong], 1, "SHA-256");
    assert_refused(&["fetch", "http://127.0.0.1:1/p.bin", &cache, "--offline"], 1, "offline");
    assert_refused(&["fetch", &url, "--sha256=12"], 2, "64 hexadecimal digits");

    let rules = |projector: &str| {
        serde_json::json!({
            "models": [
                {"model_id": "a", "num_layers": 3, "num_kv_heads": 2, "head_dim": 4},
                {"model_id": "b", "num_layers": 2, "num_kv_heads": 3, "head_dim": 2},
            ],
            "rules": [
                {"source_model": "a", "source_model_name": "A", "target_model": "b",
                 "target_model_name": "B", "projector_url": url},
                {"source_model": "a", "source_model_name": "A", "target_model": "b",
                 "target_model_name": "C", "projector_file": projector},
            ],
        })
    };
    let file = dir.join("rules.json");
    let check = |rules: &str| {
        fs::write(&file, rules).unwrap();
        let ended = run(&["check", file.to_str().unwrap(), &cache]);
        (ended.code, String::from_utf8(ended.out).unwrap(), ended.err)
    };
    let (code, text, _) = check(&rules(&bin).to_string());
    assert_eq!((code, text.matches("simplified, 2 layers").count()), (Some(0), 2), "{text}");
    let (code, text, error) = check(&rules("/nowhere.bin").to_string());
    assert!(code == Some(1) && error.contains("1 of 2 rules"), "{error}");
    assert!(text.contains("/nowhere.bin cannot be used: ") && text.contains("No such file"));
    let (code, _, error) = check(r#"{"rules": 1}"#);
    assert!(code == Some(1) && error.contains("no JSON of models and rules"), "{error}");
}
