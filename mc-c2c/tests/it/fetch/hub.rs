//! Shapes of models from a hub.

use std::fs;

use mc_c2c::ModelShape;
use mc_c2c::fetch::{FetchError, HfConfigError};

use super::Cache;
use super::server::{Reply, Server};

/// Parts of published configurations.
const QWEN3_06B: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "head_dim": 128,
    "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rope_scaling": null, "torch_dtype": "bfloat16"}"#;
const QWEN25_05B: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2}"#;
const LLAMA32_1B: &str = r#"{"head_dim": 64, "hidden_size": 2048, "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8}"#;
/// Without groups of heads, and with a dimension that is there and null.
const LLAMA2_7B: &str = r#"{"hidden_size": 4096, "num_attention_heads": 32, "head_dim": null,
    "num_hidden_layers": 32, "num_key_value_heads": null}"#;
const MULTIMODAL: &str = r#"{"model_type": "mistral3", "text_config": {"head_dim": 128,
    "hidden_size": 5120, "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8}, "vision_config": {"num_hidden_layers": 24, "head_dim": 64}}"#;

const fn shape(layers: usize, kv_heads: usize, head_dim: usize) -> ModelShape {
    ModelShape { layers, kv_heads, head_dim }
}

#[test]
fn shapes_are_read_from_published_configurations() {
    for (config, expected) in [
        (QWEN3_06B, shape(28, 8, 128)),
        (QWEN25_05B, shape(24, 2, 64)),
        (LLAMA32_1B, shape(16, 8, 64)),
        (LLAMA2_7B, shape(32, 32, 128)),
        (MULTIMODAL, shape(40, 8, 128)),
    ] {
        assert_eq!(ModelShape::from_hf_config(config.as_bytes()).unwrap(), expected);
    }
}

#[test]
fn configurations_say_what_is_wrong_with_them() {
    let changed = |from: &str, to: &str| LLAMA32_1B.replace(from, to);
    for (config, refusal) in [
        (changed("\"num_hidden_layers\": 16, ", ""), "it lacks num_hidden_layers"),
        (changed(": 16", ": 0"), "its num_hidden_layers is 0, and 1 to 1024 are possible"),
        (changed(": 16", ": 1025"), "its num_hidden_layers is 1025"),
        (changed(": 16", ": -1"), "its num_hidden_layers is -1"),
        (changed(": 16", ": 16.5"), "its num_hidden_layers is 16.5"),
        (changed(": 16", ": \"16\""), "its num_hidden_layers is \"16\""),
        (changed(": 16", ": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]"), "and 1 to"),
        (changed("\"head_dim\": 64", "\"head_dim\": 65536"), "is 8 × 65536, and 1 to 65536"),
        (changed("\"head_dim\": 64", "\"head_dim\": 18446744073709551615"), "its head_dim is"),
        (
            changed("\"head_dim\": 64, \"hidden_size\": 2048", "\"hidden_size\": 2049"),
            "its hidden_size of 2049 is not divisible by its 32 attention heads",
        ),
        (changed("{", "{\"kv_lora_rank\": 512, "), "the model caches latents (kv_lora_rank)"),
        ("{}".to_owned(), "it lacks num_hidden_layers"),
        ("[]".to_owned(), "it lacks num_hidden_layers"),
        ("7".to_owned(), "it lacks num_hidden_layers"),
        ("{\"text_config\": 7}".to_owned(), "it lacks num_hidden_layers"),
        ("<html>".to_owned(), "it is not JSON"),
        ("[".repeat(1 << 20), "it is not JSON"),
        (" ".repeat((1 << 20) + 1), "it has 1048577 bytes, more than 1048576"),
    ] {
        let given = ModelShape::from_hf_config(config.as_bytes()).unwrap_err().to_string();
        assert!(given.contains(refusal), "{given}, not {refusal}");
        assert!(given.len() < 200, "{given}");
    }
}

#[test]
fn a_model_is_looked_up_once() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/hub/Qwen/Qwen3-0.6B/resolve/main/config.json" => Reply::ok(QWEN3_06B),
        _ => Reply::status(404),
    });
    let cache = Cache::new();
    let fetcher = cache.fetcher().hub(server.url("/hub/"));
    let offline = fetcher.clone().offline(true);
    let refusal = offline.model_shape("Qwen/Qwen3-0.6B").unwrap_err();
    assert!(matches!(refusal, FetchError::Offline { .. }), "{refusal}");
    for _ in 0..2 {
        assert_eq!(fetcher.model_shape("Qwen/Qwen3-0.6B").unwrap(), shape(28, 8, 128));
    }
    assert_eq!(offline.model_shape("Qwen/Qwen3-0.6B").unwrap(), shape(28, 8, 128));
    assert_eq!((server.requests(), cache.files()), (1, vec!["config.json".to_owned()]));

    let refusal = fetcher.model_shape("Qwen/Other").unwrap_err();
    assert!(matches!(refusal, FetchError::Status { status: 404, .. }), "{refusal}");
    for name in ["", "Qwen", "../../etc/passwd", "a/..", "a/b/c", "a/b?x", "http://h/x"] {
        let refusal = fetcher.model_shape(name).unwrap_err();
        assert!(matches!(refusal, FetchError::ModelName { .. }), "{refusal}");
    }
    assert_eq!(server.requests(), 2);
}

#[test]
fn what_is_no_configuration_is_not_cached() {
    let server = Server::start(|request, _| match request.path.split('/').nth(1).unwrap() {
        "login" => Reply::ok("<html>please log in</html>"),
        "long" => Reply::ok(vec![b' '; (1 << 20) + 1]),
        _ => Reply::ok("{\"num_hidden_layers\": 0}"),
    });
    let cache = Cache::new();
    let fetcher = cache.fetcher().hub(server.url(""));
    let refusal = fetcher.model_shape("login/x").unwrap_err();
    assert!(
        matches!(refusal, FetchError::Config { source: HfConfigError::Json(_), .. }),
        "{refusal}"
    );
    let refusal = fetcher.model_shape("zero/x").unwrap_err();
    assert!(matches!(refusal, FetchError::Config { .. }), "{refusal}");
    let refusal = fetcher.model_shape("long/x").unwrap_err();
    assert!(matches!(refusal, FetchError::TooLarge { limit: 1_048_576, .. }), "{refusal}");
    assert!(cache.files().is_empty());
}

#[test]
fn a_damaged_configuration_is_fetched_again() {
    let server = Server::start(|_, _| Reply::ok(LLAMA32_1B));
    let cache = Cache::new();
    let fetcher = cache.fetcher().hub(server.url(""));
    fetcher.model_shape("a/b").unwrap();
    let file = fs::read_dir(cache.path()).unwrap().next().unwrap().unwrap().path();
    fs::write(&file, "{").unwrap();
    let refusal = fetcher.clone().offline(true).model_shape("a/b").unwrap_err();
    assert!(matches!(refusal, FetchError::Config { .. }), "{refusal}");
    assert_eq!(fetcher.model_shape("a/b").unwrap(), shape(16, 8, 64));
    assert_eq!(fs::read_to_string(&file).unwrap(), LLAMA32_1B);
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let other = Server::start(|_, _| Reply::ok(LLAMA32_1B));
    let elsewhere = other.url("/x");
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/old/name/resolve/main/config.json" => Reply::redirect("/new"),
        "/new" => Reply::redirect(&elsewhere),
        _ => Reply::ok("x"),
    });
    let cache = Cache::new();
    let fetcher = cache.fetcher().hub(server.url("")).token("hf_secret");
    fetcher.model_shape("old/name").unwrap();
    fetcher.projector(&server.url("/weights"), None, |_, _| {}).unwrap();
    for request in server.log().iter() {
        assert_eq!(request.header("authorization"), Some("Bearer hf_secret"), "{request:?}");
    }
    assert_eq!((server.requests(), other.requests()), (3, 1));
    assert_eq!(other.log()[0].header("authorization"), None);
    fetcher.projector(&other.url("/weights"), None, |_, _| {}).unwrap();
    assert_eq!(other.log()[1].header("authorization"), None);

    let refusal = fetcher.token("two\nlines").model_shape("a/b").unwrap_err();
    assert!(matches!(refusal, FetchError::Token), "{refusal}");
    assert!(!refusal.to_string().contains("lines"));
}
