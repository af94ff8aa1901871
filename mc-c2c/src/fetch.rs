//! Weights from a URL and shapes of models from a hub, kept in a cache.

mod checksum;
mod error;
mod hf_config;
mod http;
mod part;
mod transfer;
mod url;

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use checksum::{ParseSha256Error, Sha256Sum};
pub use error::FetchError;
pub use hf_config::HfConfigError;

use crate::shape::ModelShape;
use hf_config::MAX_CONFIG;
use http::Settings;
use part::{MAX_SPANS, Part};
use transfer::{Progress, Transfer};
use url::Url;

/// The hub where models are looked up.
const HUB: &str = "https://huggingface.co";
/// The cache, from the home directory.
const CACHE: &str = ".cache/mooncake/c2c";
/// The longest name of a model.
const MAX_MODEL_NAME: usize = 128;

/// Checks a file and returns why it is not the right one.
type Check<'a> = &'a mut dyn FnMut(&File) -> Result<(), FetchError>;

/// Fetches files over HTTP and keeps them in a cache directory.
///
/// All calls block the thread, and may take as long as a file takes to arrive. Several threads and
/// processes may use one cache: of those that want the same file one fetches it, and the others
/// wait until it is there. A file appears in the cache when it is complete and checked, at once.
/// Until then it has the ending `.part`, and a later call continues it when the server says that
/// the file is still the same.
///
/// Proxies are those of the environment (`ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`);
/// there is none for the host itself.
#[derive(Clone)]
pub struct Fetcher {
    cache: Option<PathBuf>,
    settings: Settings,
    offline: bool,
    max_bytes: u64,
    parallel: usize,
}

impl Fetcher {
    /// A fetcher with this cache directory, which is created when it is needed. Of the
    /// environment it reads the proxies alone.
    #[must_use]
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        let settings = Settings {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            hub: HUB.to_owned(),
            token: None,
            authorities: None,
        };
        let cache = Some(cache.into());
        Self { cache, settings, offline: false, max_bytes: 16 << 30, parallel: 4 }
    }

    /// A fetcher with the cache directory `~/.cache/mooncake/c2c`, which is also Mooncake's, and
    /// the settings of the environment for the hub: its URL in `HF_ENDPOINT`, a token in `HF_TOKEN`,
    /// and [offline mode](Self::offline) with `HF_HUB_OFFLINE=1`. Empty variables are ignored.
    #[must_use]
    pub fn from_env() -> Self {
        let mut fetcher = Self::new("").variables(|name| env::var(name).ok());
        fetcher.cache = env::home_dir().filter(|home| home.is_absolute());
        fetcher.cache = fetcher.cache.map(|home| home.join(CACHE));
        fetcher
    }

    fn variables(mut self, get: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name| Some(get(name)?.trim().to_owned()).filter(|value| !value.is_empty());
        if let Some(hub) = given("HF_ENDPOINT") {
            self = self.hub(hub);
        }
        self.settings.token = given("HF_TOKEN").or(self.settings.token);
        // The values that the hub's own programs take.
        let yes = ["1", "on", "yes", "true"];
        self.offline |= given("HF_HUB_OFFLINE")
            .is_some_and(|value| yes.iter().any(|yes| value.eq_ignore_ascii_case(yes)));
        self
    }

    /// Keeps files in this directory.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Looks models up at this URL. The default is Hugging Face.
    #[must_use]
    pub fn hub(mut self, url: impl Into<String>) -> Self {
        self.settings.hub = url.into();
        self
    }

    /// Shows the hub this token. No other server gets it: it is sent where scheme, host and port
    /// are the hub's.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.settings.token = Some(token.into());
        self
    }

    /// Trusts servers with certificates of the authorities in this PEM file, in place of those
    /// that browsers trust.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.authorities = Some(file.into());
        self
    }

    /// With `true`, uses what is in the cache and no network.
    #[must_use]
    pub const fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Gives up on a server that takes longer to connect, or to be found. The default is 10 s.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Gives up on a server that sends nothing, or less than 4 KiB, for so long. The default is
    /// 30 s.
    #[must_use]
    pub const fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout = timeout;
        self
    }

    /// Refuses files of more bytes. The default is 16 GiB.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Fetches files of 8 MiB and more in so many ranges at a time, at most 16, where the server
    /// can send ranges. The default is 4.
    #[must_use]
    pub fn ranges(mut self, ranges: NonZeroUsize) -> Self {
        self.parallel = ranges.get().min(MAX_SPANS);
        self
    }

    /// Returns the path of the file at `url`, which is in the cache then. A file that is there
    /// already is used without a request, if it has the checksum, and replaced otherwise.
    ///
    /// `progress` is called on this thread each time bytes arrive, with the bytes that are there
    /// and the file's length if it is known. There are fewer than before when the file has to be
    /// fetched from its beginning again.
    ///
    /// Without a checksum, a file that a server sends by mistake stays in the cache: delete it when
    /// its format is refused.
    ///
    /// # Errors
    /// [`FetchError`]; the file is not in the cache then, or has another checksum.
    pub fn projector(
        &self,
        url: &str,
        sha256: Option<Sha256Sum>,
        mut progress: impl FnMut(u64, Option<u64>),
    ) -> Result<PathBuf, FetchError> {
        let url = Url::parse(url)?;
        let path = self.cache_path(&url)?;
        let mut check = |file: &File| {
            let Some(expected) = sha256 else { return Ok(()) };
            match Sha256Sum::of_reader(file).map_err(FetchError::io(&path))? {
                actual if actual == expected => Ok(()),
                actual => Err(FetchError::Checksum { url: url.shown(), expected, actual }),
            }
        };
        let (is_verified, limit) = (sha256.is_some(), self.max_bytes);
        self.obtain(&url, &path, limit, is_verified, &mut check, &mut progress)?;
        Ok(path)
    }

    /// Returns the shape of a model's KV cache, by the `config.json` of the model at the hub or in
    /// the cache.
    ///
    /// # Errors
    /// [`FetchError`] when the name is malformed, the file cannot be had, or does not tell the
    /// shape.
    pub fn model_shape(&self, model: &str) -> Result<ModelShape, FetchError> {
        if !is_model_name(model) {
            let name = model.chars().take(MAX_MODEL_NAME).collect();
            return Err(FetchError::ModelName { name });
        }
        let hub = self.settings.hub.trim_end_matches('/');
        let url = Url::parse(&format!("{hub}/{model}/resolve/main/config.json"))?;
        let path = self.cache_path(&url)?;
        let mut shape = None;
        let mut check = |file: &File| {
            let mut json = Vec::new();
            let mut bounded = file.take(MAX_CONFIG as u64 + 1);
            bounded.read_to_end(&mut json).map_err(FetchError::io(&path))?;
            let read = ModelShape::from_hf_config(&json);
            shape = Some(read.map_err(|source| FetchError::Config { url: url.shown(), source })?);
            Ok(())
        };
        self.obtain(&url, &path, MAX_CONFIG as u64, true, &mut check, &mut |_, _| {})?;
        Ok(shape.expect("a file is checked before it is used"))
    }

    fn cache_path(&self, url: &Url) -> Result<PathBuf, FetchError> {
        Ok(self.cache.as_ref().ok_or(FetchError::NoHome)?.join(url.cache_name()))
    }

    /// Makes the file be at `path`, of at most `limit` bytes and passing `check`.
    fn obtain(
        &self,
        url: &Url,
        path: &Path,
        limit: u64,
        is_verified: bool,
        check: Check<'_>,
        progress: Progress<'_>,
    ) -> Result<(), FetchError> {
        match is_cached(path, check) {
            Ok(true) => return Ok(()),
            Ok(false) if self.offline => {
                return Err(FetchError::Offline { url: url.shown(), path: path.to_owned() });
            }
            Err(error) if self.offline => return Err(error),
            Ok(false) | Err(_) => {}
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(FetchError::io(directory))?;
        }
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = Part::lock(part.into())?;
        // Another process may have fetched it while this one waited.
        if is_cached(path, check).unwrap_or(false) {
            part.remove();
            return Ok(());
        }
        let (settings, parallel) = (&self.settings, self.parallel);
        let transfer = Transfer { settings, url, part: &part, limit, parallel, is_verified };
        let outcome = transfer.run(progress).and_then(|len| {
            part.truncate(len)?;
            part.check(check)
        });
        match outcome {
            Ok(()) => part.publish(path),
            Err(error) => {
                // A disk that is full is not left so, and what is wrong is not continued.
                let is_lost = matches!(
                    error,
                    FetchError::DiskFull { .. }
                        | FetchError::Io { .. }
                        | FetchError::Range { .. }
                        | FetchError::TooLarge { .. }
                );
                if is_lost || part.saved(limit).is_none_or(|plan| plan.done() == 0) {
                    part.remove();
                }
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Fetcher {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher")
            .field("cache", &self.cache)
            .field("hub", &url::shown(&self.settings.hub))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// Returns whether there is a file, which passes the check.
fn is_cached(path: &Path, check: Check<'_>) -> Result<bool, FetchError> {
    let failed = FetchError::io(path);
    match File::open(path) {
        Ok(file) => check(&file).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Returns whether this is `OWNER/NAME`, as the hub allows it.
fn is_model_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !part.is_empty() && part != "." && !part.contains("..") && part.chars().all(allowed)
    };
    name.len() <= MAX_MODEL_NAME
        && name.split_once('/').is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_where_the_hub_is() {
        let with = |variables: &[(&str, &str)]| {
            Fetcher::new("x").variables(|wanted| {
                let found = variables.iter().find(|(name, _)| *name == wanted)?;
                Some(found.1.to_owned())
            })
        };
        let fetcher = with(&[
            ("HF_ENDPOINT", "http://mirror/ "),
            ("HF_TOKEN", "secret\n"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(fetcher.settings.hub, "http://mirror/");
        assert_eq!(fetcher.settings.token.as_deref(), Some("secret"));
        assert!(fetcher.offline);
        assert!(!format!("{fetcher:?}").contains("secret"));

        let fetcher = with(&[("HF_ENDPOINT", ""), ("HF_TOKEN", " "), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!((fetcher.settings.hub.as_str(), &fetcher.settings.token), (HUB, &None));
        assert!(!fetcher.offline);
        assert!(Fetcher::from_env().cache.is_none_or(|cache| cache.ends_with(CACHE)));
    }

    #[test]
    fn names_of_models_cannot_leave_the_hub() {
        for name in ["Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B", "a/b", "_a/.b"] {
            assert!(is_model_name(name), "{name}");
        }
        let long = format!("a/{}", "b".repeat(MAX_MODEL_NAME));
        for name in [
            "", "a", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a/.", "a/b?c", "a/b#c", "a /b",
            "a/ü", "a/b\n", &long,
        ] {
            assert!(!is_model_name(name), "{name}");
        }
    }
}
