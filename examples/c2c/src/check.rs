//! `check`: whether rules can be followed.

use std::error::Error;
use std::fs::File;
use std::io::Read as _;

use mc_c2c::{C2cConfig, MAX_CONFIG_BYTES, Projector, load_rule};
use mc_types::ByteSize;

use crate::args::Check;
use crate::error::ToolError;
use crate::{fetch, text};

pub(crate) fn check(args: &Check) -> Result<(), Box<dyn Error>> {
    let unreadable = |source| ToolError::Read { path: args.config.clone(), source };
    let mut json = String::new();
    let file = File::open(&args.config).map_err(unreadable)?;
    file.take(MAX_CONFIG_BYTES as u64 + 1).read_to_string(&mut json).map_err(unreadable)?;
    let config = C2cConfig::from_json(&json)?;
    for field in config.unknown_fields() {
        tracing::warn!(%field, "the field is unknown and has no effect");
    }
    let fetcher = args.network.fetcher();
    let mut rows = Vec::new();
    let mut failed = 0;
    for rule in &config.rules {
        let bar = fetch::bar();
        let loaded =
            load_rule(&config, rule, &fetcher, |done, whole| fetch::show(&bar, done, whole));
        bar.finish_and_clear();
        failed += usize::from(loaded.is_err());
        let outcome = match loaded {
            Ok(converter) => describe(converter.projector()),
            Err(error) => mc_cli::cause_chain(&error),
        };
        let [source, target] = [&rule.source_model_name, &rule.target_model_name];
        rows.push([mc_cli::visible(source), mc_cli::visible(target), outcome]);
    }
    text::print(&mc_cli::table(["SOURCE", "TARGET", "WEIGHTS"], &rows))?;
    match failed {
        0 => Ok(()),
        _ => Err(ToolError::Rules { failed, rules: rows.len() }.into()),
    }
}

fn describe(projector: &Projector) -> String {
    let memory = ByteSize::bytes(projector.memory_bytes() as u64);
    format!("{}, {} layers, {memory}", text::variant(projector), projector.modules())
}
