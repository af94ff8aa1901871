//! The files with the profiles of AWS's tools: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Their form is that of the
//! [AWS SDKs](https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html), of which this reads the keys of a
//! user, the region and the endpoint. What stands for keys there and is not supported, such as a role, is an error:
//! another identity would be used without a word.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Longest file.
const MAX_LEN: u64 = 1 << 20;

/// Settings that give a profile an identity by other means than keys.
const OTHER_MEANS: [&str; 6] = [
    "role_arn",
    "credential_process",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
    "source_profile",
];

/// Why the files with the profiles of AWS's tools cannot be used. No variant has a value of theirs.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is longer than any with profiles.
    #[error("{} is longer than {MAX_LEN} bytes; it cannot have profiles", .path.display())]
    TooLong { path: PathBuf },
    /// A line is neither a section, nor a setting, nor a comment.
    #[error("{}:{line}: expected [SECTION] or NAME = VALUE", .path.display())]
    Line {
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
    },
    /// There is no such profile.
    #[error("AWS_PROFILE names the profile {name:?}, which no file has; looked in {}", .searched.join(", "))]
    NoProfile { name: String, searched: Vec<String> },
    /// A profile has one key of two.
    #[error("the profile {name:?} has no {lacks}")]
    Incomplete {
        name: String,
        /// The setting that is missing.
        lacks: &'static str,
    },
    /// A profile's identity does not come from keys.
    #[error(
        "the profile {name:?} has {setting}, which is not supported; give AWS_ACCESS_KEY_ID, \
         AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, such as `aws configure export-credentials` prints them"
    )]
    Unsupported { name: String, setting: &'static str },
}

/// The settings of a profile.
type Settings = Vec<(String, String)>;

/// Returns the settings of the profile that are not among the variables.
pub(super) fn missing(
    variables: &[(String, String)],
    home: Option<&Path>,
) -> Result<Settings, ProfileError> {
    let variable = |name: &str| {
        let found = variables.iter().find(|(there, value)| there == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    };
    let has_identity =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"]
            .iter()
            .any(|name| variable(name).is_some());
    let name = variable("AWS_PROFILE");
    let place = |file: &str, default: &str| -> Option<PathBuf> {
        match (variable(file), home) {
            (Some(path), Some(home)) if path.starts_with("~/") => Some(home.join(&path[2..])),
            (Some(path), _) => Some(path.into()),
            (None, home) => Some(home?.join(".aws").join(default)),
        }
    };
    let files = [
        (place("AWS_SHARED_CREDENTIALS_FILE", "credentials"), false),
        (place("AWS_CONFIG_FILE", "config"), true),
    ];
    let (mut profile, mut searched) = (None::<Settings>, Vec::new());
    for (path, is_config) in files {
        let Some(path) = path else { continue };
        if let Some(text) = read(&path)? {
            let found = section(&text, &path, name.unwrap_or("default"), is_config)?;
            // Of what both say, the first file's counts.
            profile =
                found.map(|found| [profile.take().unwrap_or_default(), found].concat()).or(profile);
        }
        searched.push(path.display().to_string());
    }
    let profile = match (profile, name) {
        (Some(profile), _) => profile,
        (None, Some(name)) if !has_identity => {
            return Err(ProfileError::NoProfile { name: name.to_owned(), searched });
        }
        (None, _) => return Ok(Vec::new()),
    };
    let setting = |name: &str| {
        let found = profile.iter().find(|(there, value)| there == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    };
    let name = name.unwrap_or("default");
    let mut added = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        added.extend(value.map(|value| (name.to_owned(), value)));
    };
    if !has_identity {
        let keys = (setting("aws_access_key_id"), setting("aws_secret_access_key"));
        match keys {
            (Some(id), Some(secret)) => {
                add("AWS_ACCESS_KEY_ID", Some(id));
                add("AWS_SECRET_ACCESS_KEY", Some(secret));
                add("AWS_SESSION_TOKEN", setting("aws_session_token"));
            }
            (None, None) => {
                if let Some(setting) =
                    OTHER_MEANS.into_iter().find(|other| setting(other).is_some())
                {
                    return Err(ProfileError::Unsupported { name: name.to_owned(), setting });
                }
            }
            (id, _) => {
                let lacks =
                    if id.is_none() { "aws_access_key_id" } else { "aws_secret_access_key" };
                return Err(ProfileError::Incomplete { name: name.to_owned(), lacks });
            }
        }
    }
    if variable("AWS_REGION").or(variable("AWS_DEFAULT_REGION")).is_none() {
        add("AWS_REGION", setting("region"));
    }
    let ignores = variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    if variable("AWS_ENDPOINT_URL").or(variable("AWS_ENDPOINT_URL_S3")).is_none()
        && !ignores.is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        add("AWS_ENDPOINT_URL", setting("endpoint_url"));
    }
    Ok(added)
}

/// Reads a file; `None` when there is none.
fn read(path: &Path) -> Result<Option<String>, ProfileError> {
    let failure = |source| ProfileError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure(error)),
    };
    let mut text = String::new();
    file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(failure)?;
    if text.len() as u64 > MAX_LEN {
        return Err(ProfileError::TooLong { path: path.to_owned() });
    }
    Ok(Some(text))
}

/// The settings of a profile; `None` when the file does not have it.
fn section(
    text: &str,
    path: &Path,
    profile: &str,
    is_config: bool,
) -> Result<Option<Settings>, ProfileError> {
    let mut settings: Option<Settings> = None;
    let mut is_wanted = false;
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        // An indented line continues the setting above, or is one of a setting's own.
        let is_inner = line.starts_with([' ', '\t']);
        let line = line.trim();
        if is_inner || line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let bad = || ProfileError::Line { path: path.to_owned(), line: number + 1 };
        if let Some(rest) = line.strip_prefix('[') {
            let (name, _) = rest.split_once(']').ok_or_else(bad)?;
            is_wanted = profile_of(name, is_config) == Some(profile);
            if is_wanted {
                settings.get_or_insert_default();
            }
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(bad)?;
        if let Some(settings) = settings.as_mut().filter(|_| is_wanted) {
            let end = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
            let value = value[..end.unwrap_or(value.len())].trim();
            settings.push((name.trim().to_ascii_lowercase(), value.to_owned()));
        }
    }
    Ok(settings)
}

/// The profile that a section is of: `[profile NAME]` in the configuration, `[NAME]` among the credentials.
fn profile_of(section: &str, is_config: bool) -> Option<&str> {
    let section = section.trim();
    let name = match section.strip_prefix("profile") {
        Some(rest) if is_config && rest.starts_with([' ', '\t']) => rest.trim(),
        _ if !is_config || section == "default" => section,
        _ => return None,
    };
    let quoted = |quote: char| name.strip_prefix(quote).and_then(|name| name.strip_suffix(quote));
    Some(quoted('"').or_else(|| quoted('\'')).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(credentials: &str, config: &str) -> Self {
            let home = tempfile::tempdir().unwrap();
            std::fs::create_dir(home.path().join(".aws")).unwrap();
            for (name, text) in [("credentials", credentials), ("config", config)] {
                if !text.is_empty() {
                    std::fs::write(home.path().join(".aws").join(name), text).unwrap();
                }
            }
            Self(home)
        }

        fn missing(&self, variables: &[(&str, &str)]) -> Result<Vec<String>, ProfileError> {
            let variables: Vec<_> =
                variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let added = missing(&variables, Some(self.0.path()))?;
            Ok(added.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
        }
    }

    const CREDENTIALS: &str = "\u{feff}# mine\n[default]\naws_access_key_id = id\n\
        AWS_SECRET_ACCESS_KEY=se/cr=et+ ; a comment\n\n[other]\naws_access_key_id=id2\n\
        aws_secret_access_key = secret2\naws_session_token = token2\n";

    const CONFIG: &str = "[default]\nregion = eu-1\ns3 =\n  addressing_style = path\n  a line\n\
        [profile \"other\"]\nregion=us-2 # there\nendpoint_url = https://host\n[other]\nregion = wrong\n\
        [profile role]\nrole_arn = arn\nsource_profile = other\n[services s]\n[profile half]\naws_access_key_id = x\n";

    #[test]
    fn a_profile_gives_what_the_variables_do_not() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let default =
            ["AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=se/cr=et+", "AWS_REGION=eu-1"];
        assert_eq!(home.missing(&[]).unwrap(), default);
        assert_eq!(home.missing(&[("AWS_PROFILE", "")]).unwrap(), default);
        let other = [
            "AWS_ACCESS_KEY_ID=id2",
            "AWS_SECRET_ACCESS_KEY=secret2",
            "AWS_SESSION_TOKEN=token2",
            "AWS_REGION=us-2",
            "AWS_ENDPOINT_URL=https://host",
        ];
        assert_eq!(home.missing(&[("AWS_PROFILE", "other")]).unwrap(), other);
        // Keys and an identity of the environment are not mixed with those of a file.
        for name in ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"] {
            assert_eq!(home.missing(&[(name, "x")]).unwrap(), ["AWS_REGION=eu-1"]);
        }
        let region = home.missing(&[("AWS_DEFAULT_REGION", "r"), ("AWS_ACCESS_KEY_ID", "x")]);
        assert!(region.unwrap().is_empty());
        let endpoint = [("AWS_PROFILE", "other"), ("AWS_ENDPOINT_URL", "http://x")];
        assert_eq!(home.missing(&endpoint).unwrap(), other[..4]);
        let ignored = [("AWS_PROFILE", "other"), ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(home.missing(&ignored).unwrap(), other[..4]);
    }

    #[test]
    fn files_may_be_elsewhere_or_nowhere() {
        let home = Home::new("", "");
        assert!(home.missing(&[]).unwrap().is_empty());
        let missing = home.missing(&[("AWS_PROFILE", "p")]).unwrap_err();
        assert!(
            matches!(&missing, ProfileError::NoProfile { searched, .. } if searched.len() == 2)
        );
        std::fs::write(home.0.path().join("c"), CREDENTIALS).unwrap();
        let there = home.missing(&[("AWS_SHARED_CREDENTIALS_FILE", "~/c")]).unwrap();
        assert_eq!(there.len(), 2, "{there:?}");
        let path = home.0.path().join("c");
        let path = [("AWS_SHARED_CREDENTIALS_FILE", path.to_str().unwrap())];
        assert_eq!(home.missing(&path).unwrap(), there);
    }

    #[test]
    fn what_cannot_be_used_is_told_without_any_value() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let role = home.missing(&[("AWS_PROFILE", "role")]).unwrap_err();
        assert!(matches!(role, ProfileError::Unsupported { setting: "role_arn", .. }), "{role}");
        let half = home.missing(&[("AWS_PROFILE", "half")]).unwrap_err();
        let lacks = "aws_secret_access_key";
        assert!(matches!(half, ProfileError::Incomplete { lacks: l, .. } if l == lacks), "{half}");
        for (text, line) in [("[default]\nthe-secret\n", 2), ("[default\n", 1), ("the-secret", 1)] {
            let bad = Home::new(text, "").missing(&[]).unwrap_err();
            assert!(matches!(bad, ProfileError::Line { line: l, .. } if l == line), "{bad}");
            assert!(!format!("{bad} {bad:?}").contains("the-secret"), "{bad:?}");
        }
        let long = Home::new(&"#\n".repeat(1 << 20), "").missing(&[]).unwrap_err();
        assert!(matches!(long, ProfileError::TooLong { .. }), "{long}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let unread = home.missing(&[("AWS_CONFIG_FILE", path)]).unwrap_err();
        assert!(matches!(unread, ProfileError::Read { .. }), "{unread}");
    }
}
