//! Objects are converted for other models by the rules that the master passes on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mc_c2c::Part;
use mc_cluster_testkit::Cluster;
use mc_store::{
    ByteSize, C2cError, C2cMetrics, C2cSettings, C2cSkip, Client, ErrorCode, GetError, Master, Put,
    PutOutcome, ReplicateConfig,
};
use mc_testkit::eventually_async;
use serde_json::{Value, json};

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(60);

const PROJECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mc-c2c/tests/data/projector.bin");
const SOURCE: &[u8] = include_bytes!("../../../mc-c2c/tests/data/src.bf16");
const KEYS: &[u8] = include_bytes!("../../../mc-c2c/tests/data/tgt_key.bf16");
const VALUES: &[u8] = include_bytes!("../../../mc-c2c/tests/data/tgt_value.bf16");

/// A rule of the golden vector: from models of this name to models of that one.
fn rule(source: &str, target: &str) -> Value {
    json!({
        "source_model": "source", "source_model_name": source,
        "target_model": "target", "target_model_name": target,
        "projector_file": PROJECTOR, "round": "truncate",
    })
}

fn rules(rules: &[Value]) -> Value {
    json!({
        "buffer_size": 1 << 20,
        "models": [
            {"model_id": "source", "num_layers": 3, "num_kv_heads": 2, "head_dim": 4},
            {"model_id": "target", "num_layers": 2, "num_kv_heads": 3, "head_dim": 2},
        ],
        "rules": rules,
    })
}

async fn cluster(rules: &Value) -> Cluster {
    let settings = C2cSettings::new(2, rules.to_string());
    Cluster::of(Master::builder().c2c(settings), &[ByteSize::mib(64)]).await
}

fn figures(client: &Client) -> C2cMetrics {
    client.metrics().c2c.unwrap()
}

/// Waits until nothing waits to be converted.
async fn idle(client: &Client) -> C2cMetrics {
    eventually_async(DEADLINE, "conversions", async || {
        let figures = figures(client);
        (figures.queued == 0).then_some(figures)
    })
    .await
}

async fn batch_put(client: &Client, puts: &[(&str, &'static [u8])]) {
    let puts = puts.iter().map(|&(key, value)| Put::new(key, Bytes::from_static(value))).collect();
    for outcome in client.batch_put(puts, &ReplicateConfig::default()).await {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_model_puts_another_gets() {
    let cluster = cluster(&rules(&[rule("org/A", "org/B"), rule("org/A", "C")])).await;
    let (prefill, decode) = (cluster.app().await, cluster.app().await);
    batch_put(&prefill, &[("org/A_7f_0_k", SOURCE), ("org/A_7f_0_v", SOURCE), ("other", b"x")])
        .await;
    let figures = idle(&prefill).await;
    assert_eq!((figures.converted, figures.read_bytes), (4, 4 * SOURCE.len() as u64));
    assert_eq!(figures.stored_bytes, 2 * (KEYS.len() + VALUES.len()) as u64);
    assert_eq!(figures.latency.count(), 4);
    // 5 tokens, 2 layers, 8 → 16 → 16 → 6.
    assert_eq!(figures.flop, 4 * 5 * 2 * 2 * (8 * 16 + 16 * 16 + 16 * 6));
    assert!(figures.skipped.iter().all(|(_, count)| *count == 0));
    for target in ["org/B", "C"] {
        assert_eq!(decode.get(&format!("{target}_7f_0_k")).await.unwrap(), KEYS);
        assert_eq!(decode.get(&format!("{target}_7f_0_v")).await.unwrap(), VALUES);
    }
    assert!(matches!(decode.get("other_k").await, Err(GetError::NotFound)));
    let page = prefill.metrics().prometheus();
    assert!(page.contains("mooncake_client_c2c_converted_total 4\n"), "{page}");
    assert!(page.contains("mooncake_client_c2c_skipped_total{cause=\"weights\"} 0\n"), "{page}");
    assert!(prefill.metrics().summary().contains("c2c 4 converted, 0 skipped, 0 waiting"));
    // Only what was converted counts: the decoding client had nothing to do.
    assert_eq!(figures_of(&decode), 0);
}

fn figures_of(client: &Client) -> u64 {
    figures(client).converted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_put_is_converted_once_and_upserts_again() {
    let cluster = cluster(&rules(&[rule("A", "B")])).await;
    let app = cluster.app().await;
    app.put("A_1_0_k", SOURCE).await.unwrap();
    idle(&app).await;
    assert_eq!(app.get("B_1_0_k").await.unwrap(), KEYS);
    // A second put stores nothing, so nothing is converted.
    assert_eq!(app.put("A_1_0_k", SOURCE).await.unwrap(), PutOutcome::Existing);
    assert_eq!(idle(&app).await.converted, 1);

    // Another value: the tokens in reverse order.
    let token = SOURCE.len() / 5;
    let reversed: Vec<u8> = SOURCE.chunks(token).rev().flatten().copied().collect();
    app.upsert("A_1_0_k", reversed).await.unwrap();
    assert_eq!(idle(&app).await.converted, 2);
    let expected: Vec<u8> = KEYS.chunks(KEYS.len() / 5).rev().flatten().copied().collect();
    assert_eq!(app.get("B_1_0_k").await.unwrap(), expected);

    // The target model was here first.
    app.put("B_2_0_k", "its own").await.unwrap();
    app.put("A_2_0_k", SOURCE).await.unwrap();
    let figures = idle(&app).await;
    assert_eq!((figures.converted, figures.skipped(C2cSkip::Existing)), (2, 1));
    assert_eq!(app.get("B_2_0_k").await.unwrap(), "its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_wrong_is_ever_stored() {
    let mut no_file = rule("no-file", "x");
    no_file["projector_file"] = json!("/nowhere/projector.bin");
    let mut swapped = rule("swapped", "x");
    (swapped["source_model"], swapped["target_model"]) = (json!("target"), json!("source"));
    let cluster = cluster(&rules(&[rule("A", "x"), no_file, swapped])).await;
    let app = cluster.app().await;
    let skipped = async |key: &str, value: Vec<u8>, cause: C2cSkip| {
        let before = figures(&app).skipped(cause);
        app.put(key, value).await.unwrap();
        let figures = idle(&app).await;
        assert_eq!(figures.skipped(cause), before + 1, "{key}: {figures:?}");
        assert_eq!(figures.converted, 0);
    };
    skipped("A_1_0_k", SOURCE[1..].to_vec(), C2cSkip::WrongLength).await;
    let mut infinite = SOURCE.to_vec();
    // The last element of the last layer, which the projector reads.
    let end = infinite.len() - 2;
    infinite[end..].copy_from_slice(&[0x80, 0x7f]);
    skipped("A_3_0_v", infinite, C2cSkip::NotFinite).await;
    skipped("no-file_1_0_k", SOURCE.to_vec(), C2cSkip::Weights).await;
    skipped("swapped_1_0_k", SOURCE.to_vec(), C2cSkip::Weights).await;
    for key in ["x_1_0_k", "x_3_0_v"] {
        assert!(matches!(app.get(key).await, Err(GetError::NotFound)), "{key}");
    }
    // The store goes on.
    app.put("A_4_0_k", SOURCE).await.unwrap();
    assert_eq!(idle(&app).await.converted, 1);
    assert_eq!(app.get("x_4_0_k").await.unwrap(), KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_puts_is_not_delayed_and_fills_no_memory() {
    let cluster = cluster(&rules(&[rule("A", "B")])).await;
    let app = cluster.app().await;
    let keys: Vec<String> = (0..10_000).map(|number| format!("A_{number}_0_k")).collect();
    for chunk in keys.chunks(2500) {
        let puts = chunk.iter().map(|key| Put::new(key, Bytes::from_static(SOURCE))).collect();
        for outcome in app.batch_put(puts, &ReplicateConfig::default()).await {
            outcome.unwrap();
        }
        assert!(figures(&app).queued <= 2 * 4096 + 64);
    }
    let figures = idle(&app).await;
    let lost: u64 = figures.skipped.iter().map(|(_, count)| count).sum();
    assert_eq!(figures.converted + lost, 10_000, "{figures:?}");
    assert_eq!(lost, figures.skipped(C2cSkip::QueueFull), "{figures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_a_client_cannot_use_leave_it_as_it_is() {
    let cluster = cluster(&json!({"rules": 5})).await;
    let app = cluster.app().await;
    app.put("A_1_0_k", SOURCE).await.unwrap();
    assert!(app.metrics().c2c.is_none());
    let refused = app.convert("A_1_0_k", None, "B_1_0_k").await.unwrap_err();
    assert!(matches!(refused, C2cError::Disabled), "{refused}");
    assert_eq!(refused.code(), ErrorCode::NotSupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_leaves_nothing_half_done() {
    let cluster = cluster(&rules(&[rule("A", "B")])).await;
    for round in 0..20 {
        let app = cluster.app().await;
        let keys: Vec<String> = (0..50).map(|number| format!("A_{round}-{number}_0_v")).collect();
        let puts = keys.iter().map(|key| Put::new(key, Bytes::from_static(SOURCE))).collect();
        app.batch_put(puts, &ReplicateConfig::default()).await;
        app.shutdown().await;
    }
    eventually_async(DEADLINE, "unfinished puts", async || {
        (cluster.master.report().totals.processing == 0).then_some(())
    })
    .await;
}

/// Weights of a full projector whose gates are closed for keys and open for values.
fn write_full(path: &Path) {
    use safetensors::tensor::{Dtype, TensorView};
    let bytes = |count: usize, weight: f32| -> Vec<u8> {
        (0..count).flat_map(|_| weight.to_le_bytes()).collect()
    };
    let (both, hidden, target, heads) = (8 + 6, 4, 6, 3);
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for part in Part::ALL {
        let open = if part == Part::Value { 1.0 } else { -1.0 };
        let mut add = |name: &str, shape: &[usize], weight: f32| {
            let count = shape.iter().product();
            tensors.push((format!("layers.0.{part}.{name}"), shape.to_vec(), bytes(count, weight)));
        };
        add("in.weight", &[hidden, both], 0.1);
        add("in.bias", &[hidden], 0.0);
        add("proj_out.weight", &[target, hidden], 0.5);
        add("proj_out.bias", &[target], 0.25);
        add("scalar_head.weight", &[heads, hidden], 0.0);
        add("scalar_head.bias", &[heads], 0.0);
        add("gate_logit", &[], open);
    }
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        })
        .collect();
    let properties = [
        ("format", "kv-projector"),
        ("version", "1"),
        ("variant", "c2c"),
        ("activation", "gelu_erf"),
        ("gate", "hard"),
        ("source_layers", "3"),
        ("target_layers", "2"),
        ("source_kv_heads", "2"),
        ("target_kv_heads", "3"),
        ("layer_map", "0:1:0,1:2:0"),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    std::fs::write(path, safetensors::serialize(views, Some(properties)).unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_full_projector_takes_the_target_models_own_object() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.safetensors");
    write_full(&path);
    let mut full = rule("A", "B");
    full["projector_file"] = json!(path);
    let cluster = cluster(&rules(&[full, rule("A", "C")])).await;
    let app = cluster.app().await;
    // Two bytes for each of two layers' six elements.
    let own: Vec<u8> = (0..5 * 2 * 6).flat_map(|at: u8| [at, 0x3f]).collect();
    app.put("B_1_0_k", own.clone()).await.unwrap();
    app.put("B_1_0_v", own.clone()).await.unwrap();
    app.put("A_1_0_k", SOURCE).await.unwrap();
    app.put("A_1_0_v", SOURCE).await.unwrap();
    app.put("A_2_0_v", SOURCE).await.unwrap();
    let figures = idle(&app).await;
    // Two are there, and one would need the target's object.
    assert_eq!(figures.skipped(C2cSkip::Existing), 2);
    assert_eq!((figures.skipped(C2cSkip::NeedsTarget), figures.converted), (1, 3));

    let converted = app.convert("A_1_0_k", Some("B_1_0_k"), "fused_k").await.unwrap();
    assert_eq!(converted, PutOutcome::Stored);
    // Its gate is closed.
    assert_eq!(app.get("fused_k").await.unwrap(), own);
    app.convert("A_1_0_v", Some("B_1_0_v"), "fused_v").await.unwrap();
    let fused = app.get("fused_v").await.unwrap();
    assert_eq!(fused.len(), own.len());
    assert_ne!(fused, own);

    // The simplified rule, by the key of its result.
    app.convert("A_2_0_v", None, "C_2_0_v").await.unwrap();
    let wrong = app.convert("A_1_0_k", None, "B_1_0_k").await.unwrap_err();
    assert!(matches!(wrong, C2cError::Convert(_)), "{wrong}");
    let wrong = app.convert("A_1_0_k", None, "D").await.unwrap_err();
    assert!(wrong.to_string().contains("B_1_0_k"), "{wrong}");
    let wrong = app.convert("Z_1_0_k", None, "D").await.unwrap_err();
    assert!(matches!(wrong, C2cError::NoRule { .. }), "{wrong}");
    let wrong = app.convert("A_9_0_k", None, "C_9_0_k").await.unwrap_err();
    assert_eq!(wrong.code(), ErrorCode::ObjectNotFound, "{wrong}");
    app.put("A_3_0_k", SOURCE).await.unwrap();
    let wrong = app.convert("A_3_0_k", Some("B_1_0_v"), "B_3_0_k").await.unwrap_err();
    assert!(matches!(wrong, C2cError::SeveralRules { .. }), "{wrong}");
    assert!(matches!(app.get("D").await, Err(GetError::NotFound)));
    app.shutdown().await;
    let late = app.convert("A_1_0_k", None, "C_1_0_k").await.unwrap_err();
    assert!(matches!(late, C2cError::Closed), "{late}");
}

#[test]
fn conversions_go_on_between_blocking_calls() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(cluster(&rules(&[rule("A", "B")])));
    let builder = cluster.client();
    let app = builder.connect_blocking().unwrap();
    app.put("A_1_0_k", SOURCE).unwrap();
    // No call drives the client while another one waits.
    let reader = runtime.block_on(cluster.app());
    let value = runtime.block_on(eventually_async(DEADLINE, "the converted object", async || {
        reader.get("B_1_0_k").await.ok()
    }));
    assert_eq!(value, KEYS);
    assert_eq!(app.convert("A_1_0_k", None, "again").unwrap(), PutOutcome::Stored);
    app.put("A_2_0_k", SOURCE).unwrap();
    drop(app);
}

/// Two clients replace a value, and the one that converts the older value is slow: its weights arrive
/// late, as they do when they are fetched for the first time.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_conversion_of_an_older_value_does_not_replace_that_of_a_newer_one() {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    const NONBLOCK: i32 = 0o4000;
    let directory = tempfile::tempdir().unwrap();
    let (weights, pipe) = (directory.path().join("projector.bin"), directory.path().join("pipe"));
    assert!(std::process::Command::new("mkfifo").arg(&weights).status().unwrap().success());
    let mut late = rule("A", "B");
    late["projector_file"] = json!(weights);
    // Its checksum is taken first, from a pipe that says nothing yet.
    late["projector_sha256"] =
        json!("5ec19029d20722ed7e9a4f3725a228488e360618676de4dce552fa483941cec8");
    let cluster = cluster(&rules(&[late])).await;
    let (slow, fast) = (cluster.app().await, cluster.app().await);
    slow.upsert("A_1_0_k", SOURCE).await.unwrap();
    let mut writer = eventually_async(DEADLINE, "the slow client waits for weights", async || {
        std::fs::OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&weights).ok()
    })
    .await;
    std::fs::rename(&weights, &pipe).unwrap();
    std::fs::copy(PROJECTOR, &weights).unwrap();

    let token = SOURCE.len() / 5;
    let reversed: Vec<u8> = SOURCE.chunks(token).rev().flatten().copied().collect();
    fast.upsert("A_1_0_k", reversed).await.unwrap();
    assert_eq!(idle(&fast).await.converted, 1);
    let expected: Vec<u8> = KEYS.chunks(KEYS.len() / 5).rev().flatten().copied().collect();
    assert_eq!(fast.get("B_1_0_k").await.unwrap(), expected);

    writer.write_all(&std::fs::read(PROJECTOR).unwrap()).unwrap();
    drop(writer);
    let figures = idle(&slow).await;
    assert_eq!((figures.converted, figures.skipped(C2cSkip::SourceGone)), (0, 1));
    assert_eq!(fast.get("B_1_0_k").await.unwrap(), expected);
}
