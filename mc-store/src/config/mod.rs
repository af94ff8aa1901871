//! Settings of a client as data: from code, from files, from the environment.

mod builder;
mod error;
mod etcd;
mod settings;
mod value;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

pub use error::{ConfigError, ConfigSource};
use serde_json::Value;
use settings::SETTINGS;
pub use settings::{ClientConfig, Setting};
use tracing::warn;
use value::{Entries, described, shown};

/// Largest file, or text, of settings, in bytes.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The variable that names a file of settings.
const FILE_VARIABLE: &str = "MOONCAKE_CONFIG_PATH";

/// How bytes travel between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP; encrypted if there are certificates.
    #[default]
    Tcp,
    /// QUIC, which is always encrypted. Needs certificates, and the feature `quic`.
    Quic,
    /// RDMA to peers that have it too, and TCP to the others. Needs the feature `rdma`; without it,
    /// and on a host without a device, bytes travel over TCP, and a warning says so.
    Rdma,
}

impl FromStr for Protocol {
    type Err = ParseProtocolError;

    fn from_str(name: &str) -> Result<Self, ParseProtocolError> {
        match name.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "quic" => Ok(Self::Quic),
            "rdma" => Ok(Self::Rdma),
            _ => Err(ParseProtocolError),
        }
    }
}

/// A text names no [`Protocol`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected tcp, quic or rdma")]
pub struct ParseProtocolError;

impl Protocol {
    /// Logs a warning, once in a process, for [`Rdma`](Self::Rdma) in a build without it.
    pub fn warn_if_missing(self) {
        // Not a `Once`: a child forked during its call would wait for it forever.
        static IS_WARNED: AtomicBool = AtomicBool::new(false);
        let is_missing = cfg!(not(all(feature = "rdma", target_os = "linux")));
        if self == Self::Rdma && is_missing && !IS_WARNED.swap(true, Ordering::Relaxed) {
            warn!(
                "protocol rdma is not part of this build: bytes travel over TCP; build with the \
                 feature rdma on Linux"
            );
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    Toml,
}

impl Format {
    /// The one that the file's name says.
    fn of(path: &Path) -> Result<Self, ConfigError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(json) if json.eq_ignore_ascii_case("json") => Ok(Self::Json),
            Some(toml) if toml.eq_ignore_ascii_case("toml") => Ok(Self::Toml),
            _ => Err(ConfigError::UnknownFormat { path: path.to_owned() }),
        }
    }

    fn parse(self, text: &str, source_name: ConfigSource) -> Result<ClientConfig, ConfigError> {
        if text.len() as u64 > MAX_FILE_LEN {
            return Err(ConfigError::TooLarge { source_name });
        }
        let (format, entries) = match self {
            Self::Json => ("JSON", serde_json::from_str(text).map_err(Into::into)),
            Self::Toml => ("TOML", toml::from_str(text).map_err(Into::into)),
        };
        match entries {
            Ok(Entries(entries)) => ClientConfig::from_entries(entries, &source_name),
            Err(source) => Err(ConfigError::Syntax { source_name, format, source }),
        }
    }
}

impl ClientConfig {
    /// The settings in a file: JSON or TOML, as its name ends. The file is read in one
    /// go, which may block.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the key, its value and what it may be.
    ///
    /// ```
    /// use mc_store::{ByteSize, ClientConfig};
    /// let path = std::env::temp_dir().join(format!("mc-store-{}.toml", std::process::id()));
    /// std::fs::write(&path, "master = '10.0.0.1:50051'\nglobal_segment_size = '4GB'\n")?;
    /// let config = ClientConfig::from_file(&path)?;
    /// assert_eq!(config.global_segment_size, Some(ByteSize::gib(4)));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let format = Format::of(path)?;
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_FILE_LEN + 1).read_to_string(&mut text).map_err(failed)?;
        format.parse(&text, ConfigSource::file(path))
    }

    /// The settings in a text that is a table in JSON.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    ///
    /// ```
    /// use mc_store::ClientConfig;
    /// let error = ClientConfig::from_json(r#"{"protokol": "tcp"}"#).unwrap_err();
    /// assert!(error.to_string().ends_with("did you mean protocol?"));
    /// ```
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        Format::Json.parse(text, ConfigSource::Text)
    }

    /// The settings in a text in TOML.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    ///
    /// ```
    /// use mc_store::ClientConfig;
    /// let config = ClientConfig::from_toml("master = '10.0.0.1:50051'\nput_wait_ms = 250")?;
    /// assert_eq!(config.put_wait, Some(std::time::Duration::from_millis(250)));
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Format::Toml.parse(text, ConfigSource::Text)
    }

    /// The settings of this process: those in the file that the variable
    /// `MOONCAKE_CONFIG_PATH` names, if it does, overridden by those in other variables.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    ///
    /// ```
    /// use mc_store::ClientConfig;
    /// let config = ClientConfig::from_env()?;
    /// println!("the master is {:?}", config.master);
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    /// [`from_env`](Self::from_env) with `lookup` in place of [`std::env::var_os`].
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    ///
    /// ```
    /// use mc_store::ClientConfig;
    /// let variables = |name: &str| (name == "MOONCAKE_MASTER").then(|| "10.0.0.1:50051".into());
    /// assert_eq!(ClientConfig::from_vars(variables)?.master.as_deref(), Some("10.0.0.1:50051"));
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn from_vars(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let base = match lookup(FILE_VARIABLE) {
            Some(path) if !path.is_empty() => Self::from_file(Path::new(&path))?,
            _ => Self::default(),
        };
        base.apply_vars(lookup)
    }

    /// The same with the settings in variables of the environment in place of its own. A
    /// variable that is empty is ignored, and `MOONCAKE_CONFIG_PATH` is not looked at.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`].
    ///
    /// ```
    /// use mc_store::ClientConfig;
    /// let config = ClientConfig::from_toml("master = '10.0.0.1:50051'")?.apply_env()?;
    /// assert!(config.master.is_some());
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn apply_env(self) -> Result<Self, ConfigError> {
        self.apply_vars(|name| std::env::var_os(name))
    }

    /// [`apply_env`](Self::apply_env) with `lookup` in place of [`std::env::var_os`].
    ///
    /// # Errors
    /// As [`apply_env`](Self::apply_env).
    ///
    /// ```
    /// use mc_store::{ByteSize, ClientConfig};
    /// let variables =
    ///     |name: &str| (name == "MOONCAKE_GLOBAL_SEGMENT_SIZE").then(|| "16MB".into());
    /// let config = ClientConfig::from_toml("global_segment_size = '1GB'")?;
    /// let config = config.apply_vars(variables)?;
    /// assert_eq!(config.global_segment_size, Some(ByteSize::mib(16)));
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn apply_vars(
        mut self,
        lookup: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        for setting in SETTINGS {
            let Some(raw) = lookup(setting.variable) else { continue };
            // Bytes that are no text are replaced by characters that nothing contains.
            let text = raw.to_string_lossy();
            if text.trim().is_empty() {
                continue;
            }
            let value = Value::from(text.trim());
            let name = setting.variable;
            self.take(setting, name, &value, &ConfigSource::Environment)?;
        }
        Ok(self)
    }

    /// All settings, in the order of `docs/configuration.md`.
    #[must_use]
    pub const fn settings() -> &'static [Setting] {
        SETTINGS
    }

    /// Takes the text of one setting, as its variable would have it. `name` is the key or another name
    /// of the setting in files, and `source_name` is the place that an error names.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] and [`ConfigError::BadValue`]; the other settings stay as they are.
    ///
    /// ```
    /// use mc_store::{ClientConfig, ConfigSource};
    /// let mut config = ClientConfig::default();
    /// config.set_text("master_server_address", "10.0.0.1:50051", &ConfigSource::Text)?;
    /// assert_eq!(config.master.as_deref(), Some("10.0.0.1:50051"));
    /// assert!(config.set_text("put_wait_ms", "soon", &ConfigSource::Text).is_err());
    /// # Ok::<(), mc_store::ConfigError>(())
    /// ```
    pub fn set_text(
        &mut self,
        name: &str,
        text: &str,
        source_name: &ConfigSource,
    ) -> Result<(), ConfigError> {
        self.take(known(name, source_name)?, name, &Value::from(text), source_name)
    }

    /// Returns the network devices of a text that names them with commas in between, for
    /// `device_name`; `None` if it names none.
    ///
    /// ```
    /// let names = mc_store::ClientConfig::device_names("eth0, eth1");
    /// assert_eq!(names, Some(vec!["eth0".to_owned(), "eth1".to_owned()]));
    /// assert_eq!(mc_store::ClientConfig::device_names(""), None);
    /// ```
    #[must_use]
    pub fn device_names(text: &str) -> Option<Vec<String>> {
        let names = value::trimmed(text.split(','));
        (!names.is_empty()).then_some(names)
    }

    fn from_entries(
        entries: Vec<(String, Value)>,
        source_name: &ConfigSource,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut taken: Vec<(&'static str, String)> = Vec::new();
        for (name, value) in entries {
            let setting = known(&name, source_name)?;
            if let Some((key, first)) = taken.iter().find(|(key, _)| *key == setting.key) {
                return Err(ConfigError::Duplicate {
                    source_name: source_name.clone(),
                    key,
                    first: first.clone(),
                    second: name,
                });
            }
            config.take(setting, &name, &value, source_name)?;
            taken.push((setting.key, name));
        }
        Ok(config)
    }

    fn take(
        &mut self,
        setting: &Setting,
        name: &str,
        value: &Value,
        source_name: &ConfigSource,
    ) -> Result<(), ConfigError> {
        self.set(setting.key, value).map_err(|expected| ConfigError::BadValue {
            source_name: source_name.clone(),
            name: name.to_owned(),
            value: described(value),
            expected,
        })
    }
}

/// The setting with this name.
fn known(name: &str, source_name: &ConfigSource) -> Result<&'static Setting, ConfigError> {
    let found = SETTINGS.iter().find(|known| known.names().any(|known| known == name));
    found.ok_or_else(|| ConfigError::UnknownKey {
        source_name: source_name.clone(),
        nearest: nearest_name(name, SETTINGS.iter().flat_map(Setting::names)),
        key: shown(name),
    })
}

/// Returns the most similar of the known names, in lower case, when one is similar enough to be meant.
///
/// ```
/// let known = ["segment_name", "segment_file"];
/// assert_eq!(mc_store::nearest_name("Segment_Nmae", known), Some("segment_name"));
/// assert_eq!(mc_store::nearest_name("colour", known), None);
/// ```
#[must_use]
pub fn nearest_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let all = known.into_iter();
    let near = all.map(|known| (strsim::levenshtein(&name, known), known)).min()?;
    (near.0 <= 1 + near.1.len() / 4).then_some(near.1)
}

#[cfg(test)]
mod tests;
