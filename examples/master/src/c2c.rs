//! Conversion of objects between models, from the command line.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use clap::ArgAction;
use mc_c2c::{C2cConfig, ConfigError, MAX_CONFIG_BYTES};
use mc_rpc::C2cSettings;

/// The flags, with Mooncake's names and defaults.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Conversion between models (C2C)")]
pub(crate) struct C2cArgs {
    /// Have clients convert the objects that they put for other models, by the rules of
    /// --c2c_config_file.
    #[arg(
        long = "enable_c2c",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    enable_c2c: bool,
    /// Threads for conversions in each client, which leaves at least one processor to others.
    #[arg(
        long = "c2c_workers",
        value_name = "N",
        default_value = "2",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    workers: u32,
    /// The models and rules, as JSON; docs/c2c.md describes it.
    #[arg(long = "c2c_config_file", value_name = "FILE", default_value = "")]
    config_file: String,
}

impl C2cArgs {
    /// Returns the settings for clients; `None` when they convert nothing.
    pub(crate) fn settings(&self) -> Result<Option<C2cSettings>, C2cError> {
        if !self.enable_c2c {
            return Ok(None);
        }
        if self.config_file.is_empty() {
            return Err(C2cError::NoFile);
        }
        let path = PathBuf::from(&self.config_file);
        let read = |source| C2cError::Read { path: path.clone(), source };
        let mut text = String::new();
        let file = File::open(&path).map_err(read)?;
        file.take(MAX_CONFIG_BYTES as u64 + 1).read_to_string(&mut text).map_err(read)?;
        let refused = |source| C2cError::Config { path: path.clone(), source };
        let config = C2cConfig::from_json(&text).map_err(refused)?;
        for field in config.unknown_fields() {
            tracing::warn!(%field, file = %path.display(), "a field of the C2C rules is unknown and has no effect");
        }
        tracing::info!(
            models = config.models.len(),
            rules = config.rules.len(),
            workers = self.workers,
            "clients convert objects between models"
        );
        Ok(Some(C2cSettings::new(self.workers, text)))
    }
}

/// The rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum C2cError {
    #[error("--enable_c2c needs rules; give their file with --c2c_config_file")]
    NoFile,
    #[error("cannot read the rules in {}; check --c2c_config_file", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the rules in {} cannot be used", path.display())]
    Config {
        path: PathBuf,
        #[source]
        source: ConfigError,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        c2c: C2cArgs,
    }

    fn settings(args: &[&str]) -> Result<Option<C2cSettings>, C2cError> {
        let args = ["mc-master"].iter().chain(args);
        Only::try_parse_from(args).unwrap().c2c.settings()
    }

    #[test]
    fn rules_are_read_once_and_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.json");
        let file = format!("--c2c_config_file={}", path.display());
        let text = r#"{"buffer_size": 1024, "models": [], "rules": []}"#;
        std::fs::write(&path, text).unwrap();
        assert_eq!(settings(&[&file]).unwrap(), None);
        let given = settings(&["--enable_c2c=true", "--c2c_workers=5", &file]).unwrap();
        assert_eq!(given, Some(C2cSettings::new(5, text)));
        assert_eq!(settings(&["--enable_c2c", &file]).unwrap().unwrap().workers, 2);

        assert!(matches!(settings(&["--enable_c2c"]), Err(C2cError::NoFile)));
        assert!(matches!(settings(&["--enable_c2c", "--c2c_config_file="]), Err(C2cError::NoFile)));
        std::fs::write(&path, r#"{"rules": [{}]}"#).unwrap();
        assert!(matches!(settings(&["--enable_c2c", &file]), Err(C2cError::Config { .. })));
        std::fs::write(&path, [0xff; 9]).unwrap();
        assert!(matches!(settings(&["--enable_c2c", &file]), Err(C2cError::Read { .. })));
        std::fs::remove_file(&path).unwrap();
        let refused = settings(&["--enable_c2c", &file]).unwrap_err();
        assert!(refused.to_string().contains("rules.json"), "{refused}");
        for workers in ["0", "257", "-1", "many"] {
            let flag = format!("--c2c_workers={workers}");
            assert!(Only::try_parse_from(["mc-master", &flag]).is_err(), "{workers}");
        }
    }
}
