//! Rules: which keys they apply to, and which configurations are refused.

use std::error::Error as _;

use mc_c2c::{C2cConfig, ConfigError, Dtype, Layout, Part, Rounding};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The example of Mooncake's manual.
const MANUAL: &str = r#"{
  "buffer_size": 268435456,
  "models": [
    { "model_id": "qwen3-4b", "hf_model": "Qwen/Qwen3-4B" },
    { "model_id": "qwen3-0.6b", "hf_model": "Qwen/Qwen3-0.6B" }
  ],
  "rules": [
    {
      "source_model": "qwen3-4b",
      "target_model": "qwen3-0.6b",
      "source_model_name": "Qwen/Qwen3-4B",
      "target_model_name": "Qwen/Qwen3-0.6B",
      "projector_url": "https://example.com/projector.bin",
      "projector_file": "/local/path/projector.bin"
    }
  ]
}"#;

fn model(id: &str) -> Value {
    json!({"model_id": id, "num_layers": 28, "num_kv_heads": 8, "head_dim": 128})
}

/// A rule between models of these names.
fn rule(source: &str, target: &str) -> Value {
    json!({
        "source_model": "m", "target_model": "m",
        "source_model_name": source, "target_model_name": target, "projector_file": "p.bin",
    })
}

fn with(rules: &[Value]) -> Result<C2cConfig, ConfigError> {
    C2cConfig::from_json(&json!({"models": [model("m")], "rules": rules}).to_string())
}

fn targets(config: &C2cConfig, key: &str) -> Vec<String> {
    config.matching(key).into_iter().map(|found| found.target_key).collect()
}

#[test]
fn the_manuals_example_is_taken_as_it_is() {
    let config = C2cConfig::from_json(MANUAL).unwrap();
    assert_eq!(config.buffer_size, 256 << 20);
    assert_eq!(config.model("qwen3-4b").unwrap().hf_model.as_deref(), Some("Qwen/Qwen3-4B"));
    assert_eq!(config.model("qwen3-4b").unwrap().shape(), None);
    let rule = &config.rules[0];
    assert_eq!((rule.source_dtype, rule.source_layout), (Dtype::Bf16, Layout::PageFirst));
    assert_eq!((rule.target_dtype, rule.target_layout), (Dtype::Bf16, Layout::PageFirst));
    assert_eq!(rule.rounding, Rounding::Nearest);
    assert!(config.unknown_fields().is_empty());
    let found = config.matching("Qwen/Qwen3-4B_9a0b_1_v");
    assert_eq!((found.len(), found[0].part), (1, Part::Value));
    assert_eq!(found[0].target_key, "Qwen/Qwen3-0.6B_9a0b_1_v");
    let defaults = C2cConfig::from_json("{}").unwrap();
    assert_eq!((defaults.buffer_size, defaults.rules.len()), (256 << 20, 0));
}

#[test]
fn a_rule_says_types_layouts_and_rounding() {
    let mut rule = rule("a", "b");
    rule["source_dtype"] = json!("fp16");
    rule["target_dtype"] = json!("fp32");
    rule["source_layout"] = json!("layer_first");
    rule["round"] = json!("truncate");
    rule["target_layuot"] = json!("layer_first");
    let config = with(&[rule.clone()]).unwrap();
    assert_eq!(config.unknown_fields(), ["target_layuot of rule 1"]);
    let read = &config.rules[0];
    assert_eq!((read.source_dtype, read.target_dtype), (Dtype::F16, Dtype::F32));
    assert_eq!((read.source_layout, read.rounding), (Layout::LayerFirst, Rounding::Truncate));
    rule["source_dtype"] = json!("fp8");
    let refused = with(&[rule]).unwrap_err();
    let cause = refused.source().unwrap().to_string();
    assert!(cause.contains("fp8") && cause.contains("bf16"), "{cause}");
}

#[test]
fn the_longest_name_that_is_a_field_wins_and_has_several_targets() {
    let mut anywhere = rule("4B", "any");
    anywhere["match"] = json!("substring");
    let rules = [
        anywhere,
        rule("Qwen3-4B", "short"),
        rule("Qwen/Qwen3-4B", "x"),
        rule("Qwen/Qwen3-4B", "y"),
    ];
    let config = with(&rules).unwrap();
    assert_eq!(targets(&config, "Qwen/Qwen3-4B_h_0_k"), ["x_h_0_k", "y_h_0_k"]);
    assert_eq!(targets(&config, "Qwen3-4B_h_0_k"), ["short_h_0_k"]);
    assert_eq!(targets(&config, "tenant_Qwen3-4B_h_0_k"), ["tenant_short_h_0_k"]);
    // Another model, whose name only begins alike.
    assert_eq!(targets(&config, "Qwen/Qwen3-4B-Base_h_0_k"), ["Qwen/Qwen3-any-Base_h_0_k"]);
    // The first place where the name is a field, not one before.
    assert_eq!(targets(&config, "xQwen3-4B_Qwen3-4B_0_v"), ["xQwen3-4B_short_0_v"]);
    for key in ["Qwen3-4B", "Qwen3-4B_h_0", "Qwen3-4B_h_0_K", "Qwen3-4B::x_h_0_k", "_k", "", "k"] {
        assert!(config.matching(key).is_empty(), "{key}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let refused =
        |config: Value| C2cConfig::from_json(&config.to_string()).unwrap_err().to_string();
    let one = |rule: Value| refused(json!({"models": [model("m")], "rules": [rule]}));
    let mut unknown = rule("a", "b");
    unknown["target_model"] = json!("n");
    let expected = r#"rule 1 names the model "n", which is not among models (m)"#;
    assert_eq!(one(unknown), expected);
    let mut bare = rule("a", "b");
    bare["projector_file"] = Value::Null;
    assert!(one(bare).contains("rule 1 has no projector_url or projector_file"));
    assert!(one(rule("", "b")).contains("rule 1 has no source_model_name"));
    assert!(one(rule("a", "")).contains("rule 1 has no target_model_name"));
    let mut sum = rule("a", "b");
    sum["projector_sha256"] = json!("12");
    assert!(one(sum).contains("64 hexadecimal digits"));
    assert!(one(rule("a", "a")).contains("cycle: a → a"));
    let cycle = with(&[rule("0", "a"), rule("a", "b"), rule("b", "c"), rule("c", "a")]);
    assert!(cycle.unwrap_err().to_string().contains("a → b → c → a"));
    with(&[rule("a", "b"), rule("a", "c"), rule("b", "d"), rule("c", "d")]).unwrap();
    assert!(with(&[rule("a", "b"), rule("a", "b")]).unwrap_err().to_string().contains("two rules"));
    let twice = refused(json!({"models": [model("m"), model("m")]}));
    assert!(twice.contains(r#"the model "m" is there twice"#), "{twice}");
    let mut short = model("m");
    short["head_dim"] = Value::Null;
    assert!(refused(json!({"models": [short]})).contains("has no head_dim"));
    for (name, value) in [("num_layers", 0), ("num_layers", 1025), ("head_dim", 65_536)] {
        let mut model = model("m");
        model[name] = json!(value);
        let why = refused(json!({"models": [model]}));
        assert!(why.contains("are possible"), "{why}");
    }
    assert!(refused(json!({"buffer_size": u64::MAX})).contains("buffer_size"));
    assert!(refused(json!({"models": vec![model("m"); 1025]})).contains("1025 models"));
    assert!(C2cConfig::from_json(&" ".repeat(2 << 20)).unwrap_err().to_string().contains("bytes"));
    for text in ["", "[]", "{", r#"{"rules": 7}"#, r#"{"rules": [{}]}"#, r#"{"buffer_size": -1}"#] {
        assert!(matches!(C2cConfig::from_json(text), Err(ConfigError::Json(_))), "{text}");
    }
}

#[test]
fn many_rules_without_a_cycle_are_checked_quickly() {
    // Two models at each level, each a source of both of the next: 2^249 paths.
    let rules: Vec<_> = (0..1000)
        .map(|at| {
            let (level, sides) = (at / 4, ["ac", "ad", "bc", "bd"][at % 4]);
            let target = ["a", "b"][usize::from(sides.ends_with('d'))];
            rule(&format!("{level}{}", &sides[..1]), &format!("{}{target}", level + 1))
        })
        .collect();
    with(&rules).unwrap();
}

proptest! {
    #[test]
    fn any_key_is_matched_without_a_panic(key in "\\PC{0,40}", name in "\\PC{1,6}") {
        let mut rule = rule(&name, "other");
        rule["match"] = json!("substring");
        if let Ok(config) = with(&[rule]) {
            let key = format!("{key}{name}{key}_k");
            for found in config.matching(&key) {
                prop_assert!(found.target_key.contains("other"));
            }
        }
    }
}
