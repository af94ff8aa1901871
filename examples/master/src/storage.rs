//! Storage below memory, from the command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::ArgAction;
use mc_meta::{LocalDiskConfig, MasterConfig, OffloadFilter, PromotionConfig, SharedTierConfig};
use mc_rpc::StorageSettings;
use mc_tier::{InvalidPlace, SharedPlace};
use mc_types::ByteSize;

/// The flags, with Mooncake's names and defaults.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Storage below memory")]
pub(crate) struct StorageArgs {
    /// Directory that all clients have mounted, such as a distributed file system: clients write each
    /// object to a file in DIR/<cluster_id> after its put. Made if it is missing.
    #[arg(long = "root_fs_dir", value_name = "DIR", default_value = "")]
    root: String,
    /// Place of the objects that all clients reach, in place of --root_fs_dir: dfs:DIR, which is the same, or
    /// s3://BUCKET/PREFIX?endpoint=URL&region=REGION, a bucket; its objects are in PREFIX/<cluster_id>. Without
    /// credentials: each client has its own, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in ~/.aws/credentials, or
    /// by its machine's role. Set --quota_bytes with a bucket: without a quota nothing is deleted from it.
    // A parser of clap's would repeat a password in its error.
    #[arg(long = "shared_tier", value_name = "URL", default_value = "")]
    shared_tier: String,
    /// Bytes that the files may take together [default: infinite].
    #[arg(long = "global_file_segment_size", value_name = "SIZE", value_parser = parse_limit)]
    file_segment_size: Option<Limit>,
    /// Bytes that the files may take together, as --global_file_segment_size; the smaller of both
    /// counts. 0: as many as the file system has, up to 90 %; of a bucket, without a limit.
    #[arg(long = "quota_bytes", value_name = "SIZE", default_value = "0", value_parser = parse_limit)]
    quota_bytes: Limit,
    /// Delete the oldest files when there is no room. Otherwise new objects get no file then.
    #[arg(
        long = "enable_disk_eviction",
        default_value_t = true,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    disk_eviction: bool,
    /// Let clients write objects of up to 8 MiB that they put within a second to one file, of up to 64 MiB. Clients
    /// of older versions cannot read such files: turn it off while there are any.
    #[arg(
        long = "pack_files",
        default_value_t = true,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    pack_files: bool,
    /// Let clients keep objects on their local disks, too; they offer a disk with --enable_ssd_offload.
    #[arg(
        long = "enable_offload",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    offload: bool,
    /// Write an object to a disk when it would be evicted from memory, and not when its put ends.
    #[arg(
        long = "offload_on_evict",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    offload_on_evict: bool,
    /// With --offload_on_evict, evict an object that no disk takes now. Otherwise it stays in memory.
    #[arg(
        long = "offload_force_evict",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    offload_force_evict: bool,
    /// Which objects are written to disks: all, or second_use, those that were read or asked for since
    /// their put. Without --offload_on_evict these are written at their first use, with it the others
    /// are evicted without a copy.
    #[arg(long = "offload_filter", value_name = "FILTER", default_value = "all")]
    offload_filter: OffloadFilter,
    /// Maximum number of objects that wait to be written to one disk.
    #[arg(
        long = "offloading_queue_limit",
        value_name = "N",
        default_value = "50000",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    offload_queue_limit: u64,
    /// Bring an object that is on a disk only back into memory when it is read often.
    #[arg(
        long = "promotion_on_hit",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    promotion: bool,
    /// Reads after which an object is brought back.
    #[arg(
        long = "promotion_admission_threshold",
        value_name = "N",
        default_value = "2",
        value_parser = clap::value_parser!(u8).range(1..=255)
    )]
    promotion_threshold: u8,
    /// Maximum number of objects that wait to be brought back.
    #[arg(
        long = "promotion_queue_limit",
        value_name = "N",
        default_value = "50000",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    promotion_queue_limit: u64,
    /// Maximum number of objects that a client brings back at a time.
    #[arg(
        long = "promotion_max_per_heartbeat",
        value_name = "N",
        default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    promotion_width: u64,
}

/// Bytes, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Bytes(u64),
    None,
}

/// A number of bytes that is none.
#[derive(Debug, thiserror::Error)]
#[error("write a number of bytes such as 1048576 or 10GB, or infinite")]
struct BadLimit;

fn parse_limit(text: &str) -> Result<Limit, BadLimit> {
    match text.trim() {
        "infinite" => Ok(Limit::None),
        text => match text.parse::<ByteSize>().map_err(|_| BadLimit)?.as_u64() {
            // Mooncake's default, which means that there is none.
            bytes if bytes >= i64::MAX as u64 => Ok(Limit::None),
            bytes => Ok(Limit::Bytes(bytes)),
        },
    }
}

/// Why storage below memory cannot be used as it is asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("--root_fs_dir={root}: cannot find out where that is; give an absolute path")]
    Relative {
        root: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "--cluster_id={id:?} cannot name a directory; use letters, digits, '_', '-' and '.', at most \
         128 of them"
    )]
    ClusterId { id: String },
    #[error("--{flag} has no effect without --{needs}")]
    NoEffect { flag: &'static str, needs: &'static str },
    #[error("--root_fs_dir and --shared_tier both say where files are; leave one out")]
    Twice,
    #[error("--shared_tier: {0}")]
    Place(#[from] InvalidPlace),
    #[error("--root_fs_dir={} is no text that clients can be told; use a path in UTF-8", path.display())]
    NotText { path: PathBuf },
}

impl StorageArgs {
    /// Changes the settings of the state machine.
    pub(crate) fn apply(&self, config: &mut MasterConfig) {
        let limits = [self.file_segment_size.unwrap_or(Limit::None), self.quota()];
        let bytes = limits.into_iter().filter_map(|limit| match limit {
            Limit::Bytes(bytes) => Some(bytes),
            Limit::None => None,
        });
        let capacity = bytes.min();
        if self.has_files() {
            let mut disk =
                capacity.map_or_else(SharedTierConfig::default, SharedTierConfig::with_capacity);
            disk.packs = self.pack_files;
            config.shared_tier = Some(disk);
        }
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        if self.offload {
            let mut disks = LocalDiskConfig::default();
            disks.on_evict = self.offload_on_evict;
            disks.force_evict = self.offload_force_evict;
            disks.filter = self.offload_filter;
            disks.offload.queue_limit = number(self.offload_queue_limit);
            config.local_disk = Some(disks);
        }
        if self.promotion {
            let mut promotion = PromotionConfig::default();
            promotion.admission_threshold = self.promotion_threshold;
            promotion.queue_limit = number(self.promotion_queue_limit);
            promotion.max_per_heartbeat = number(self.promotion_width);
            config.promotion = Some(promotion);
        }
    }

    fn has_files(&self) -> bool {
        !self.root.is_empty() || !self.shared_tier.is_empty()
    }

    fn quota(&self) -> Limit {
        match self.quota_bytes {
            Limit::Bytes(0) => Limit::None,
            limit => limit,
        }
    }

    /// Checks that the flags go together, and that the shared tier can have this cluster. Makes nothing.
    pub(crate) fn check(&self, cluster_id: Option<&str>) -> Result<(), StorageError> {
        for (is_given, flag, needs) in [
            (self.offload_on_evict && !self.offload, "offload_on_evict", "enable_offload"),
            (
                self.offload_filter != OffloadFilter::All && !self.offload,
                "offload_filter",
                "enable_offload",
            ),
            (
                self.offload_force_evict && !self.offload_on_evict,
                "offload_force_evict",
                "offload_on_evict",
            ),
        ] {
            if is_given {
                return Err(StorageError::NoEffect { flag, needs });
            }
        }
        if !self.has_files() {
            return Ok(());
        }
        let default = StorageSettings::default().cluster_id;
        let cluster_id = cluster_id.unwrap_or(&default);
        check_cluster_id(cluster_id)?;
        if let SharedPlace::Bucket(bucket) = self.place()? {
            // Its names are those of a directory's files, which fit into every prefix but the longest.
            bucket.within(cluster_id)?;
        }
        Ok(())
    }

    /// Returns the settings of the shared tier for clients. Makes its directory; when that fails,
    /// the failure is logged, since the directory need not be mounted on the master's host.
    pub(crate) fn settings(
        &self,
        cluster_id: Option<&str>,
    ) -> Result<StorageSettings, StorageError> {
        let mut settings = StorageSettings::default().evicts(self.disk_eviction);
        if let Some(id) = cluster_id {
            settings = settings.cluster_id(id);
        }
        self.check(cluster_id)?;
        if !self.has_files() {
            if self.file_segment_size.is_some() || self.quota() != Limit::None {
                tracing::warn!(
                    "--global_file_segment_size has no effect without --root_fs_dir or --shared_tier"
                );
            }
            return Ok(settings);
        }
        let root = match self.place()? {
            SharedPlace::Directory(root) => root,
            SharedPlace::Bucket(bucket) => {
                tracing::info!(%bucket, "clients write objects to a bucket");
                if self.disk_eviction && self.has_no_limit() {
                    tracing::warn!(
                        "nothing is deleted from the bucket to make room: set --quota_bytes, or give the bucket a \
                         lifecycle rule"
                    );
                }
                settings.shared_tier = Some(bucket.to_string().into());
                return Ok(settings);
            }
        };
        let root = std::path::absolute(&root).map_err(|source| StorageError::Relative {
            root: root.display().to_string(),
            source,
        })?;
        make(&root);
        let text = root.to_str().ok_or_else(|| StorageError::NotText { path: root.clone() })?;
        settings.root = Some(text.into());
        Ok(settings)
    }
}

impl StorageArgs {
    /// Where the files are.
    fn place(&self) -> Result<SharedPlace, StorageError> {
        match (self.root.is_empty(), self.shared_tier.is_empty()) {
            (false, false) => Err(StorageError::Twice),
            (false, true) => Ok(SharedPlace::Directory((&self.root).into())),
            (true, _) => Ok(self.shared_tier.parse()?),
        }
    }

    fn has_no_limit(&self) -> bool {
        let segment_size = self.file_segment_size.unwrap_or(Limit::None);
        segment_size == Limit::None && self.quota() == Limit::None
    }
}

fn make(root: &Path) {
    match std::fs::create_dir_all(root) {
        Ok(()) => tracing::info!(root = %root.display(), "clients write objects to files"),
        Err(error) => tracing::warn!(
            root = %root.display(),
            %error,
            "the directory of the files is not there on this host; clients need it, the master does not"
        ),
    }
}

fn check_cluster_id(id: &str) -> Result<(), StorageError> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_name = (1..=128).contains(&id.len()) && id.chars().all(is_letter);
    match is_name && !matches!(id, "." | "..") {
        true => Ok(()),
        false => Err(StorageError::ClusterId { id: id.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        storage: StorageArgs,
    }

    fn parse(flags: &[&str]) -> StorageArgs {
        let flags = std::iter::once("mc-master").chain(flags.iter().copied());
        Only::try_parse_from(flags).unwrap().storage
    }

    fn config(flags: &[&str]) -> MasterConfig {
        let mut config = MasterConfig::default();
        parse(flags).apply(&mut config);
        config
    }

    #[test]
    fn without_flags_there_is_nothing_below_memory() {
        assert_eq!(config(&[]), MasterConfig::default());
        assert_eq!(parse(&[]).settings(None).unwrap(), StorageSettings::default());
        let expected = StorageSettings::default().cluster_id("c");
        assert_eq!(parse(&[]).settings(Some("c")).unwrap(), expected);
    }

    #[test]
    fn a_directory_is_made_and_told_in_full() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("mc_storage");
        let flag = format!("--root_fs_dir={}", inner.display());
        let settings = parse(&[&flag]).settings(None).unwrap();
        assert_eq!(settings.root.as_deref(), inner.to_str());
        assert_eq!(&*settings.cluster_id, "mooncake_cluster");
        assert!(inner.is_dir() && settings.evicts);
        let relative = parse(&["--root_fs_dir=./src", "--enable_disk_eviction=false"]);
        let settings = relative.settings(Some("mc-local-1")).unwrap();
        assert!(Path::new(&*settings.root.unwrap()).is_absolute() && !settings.evicts);
        for id in ["", ".", "..", "a/b", "a b", &"x".repeat(129)] {
            let refused = parse(&[&flag]).settings(Some(id)).unwrap_err();
            assert!(matches!(refused, StorageError::ClusterId { .. }), "{refused}");
        }
    }

    #[test]
    fn a_shared_tier_is_a_directory_or_a_bucket() {
        let root = tempfile::tempdir().unwrap();
        let flags = ["--root_fs_dir=", "--shared_tier=dfs:"]
            .map(|flag| format!("{flag}{}", root.path().display()));
        let settings = flags.each_ref().map(|flag| parse(&[flag]).settings(None).unwrap());
        assert_eq!(settings[0], settings[1]);
        assert_eq!(settings[0].root.as_deref(), root.path().to_str());
        let both = parse(&[&flags[0], &flags[1]]).settings(None).unwrap_err().to_string();
        assert!(both.contains("--root_fs_dir") && both.contains("--shared_tier"), "{both}");

        let url = "s3://kv-cache/prod?endpoint=http://127.0.0.1:8333&region=eu-1";
        let flag = format!("--shared_tier={url}");
        let settings = parse(&[&flag, "--enable_disk_eviction=false"]).settings(Some("c")).unwrap();
        let expected = StorageSettings::in_object_store(url).cluster_id("c").evicts(false);
        assert_eq!(settings, expected);
        assert_eq!(config(&[&flag, "--quota_bytes=2KB"]).shared_tier.unwrap().capacity, Some(2048));
        assert_eq!(config(&[&flag]).shared_tier.unwrap().capacity, None);
        let refused = parse(&[&flag]).settings(Some("a/b")).unwrap_err();
        assert!(matches!(refused, StorageError::ClusterId { .. }), "{refused}");
        for bad in
            ["s3://key:hunter2@kv-cache/prod", "s3://kv-cache?secret_access_key=hunter2", "s3://"]
        {
            let refused = parse(&[&format!("--shared_tier={bad}")]).settings(None).unwrap_err();
            let told = format!("{refused} {refused:?}");
            assert!(told.contains("--shared_tier") && !told.contains("hunter2"), "{told}");
            assert_eq!(told.contains("AWS_ACCESS_KEY_ID"), bad.contains("hunter2"), "{told}");
        }
    }

    #[test]
    fn the_smaller_limit_counts() {
        let capacity = |flags: &[&str]| {
            let flags: Vec<&str> = [&["--root_fs_dir=x"], flags].concat();
            config(&flags).shared_tier.unwrap().capacity
        };
        assert_eq!(capacity(&[]), None);
        assert_eq!(capacity(&["--global_file_segment_size=1048576"]), Some(1 << 20));
        assert_eq!(capacity(&["--global_file_segment_size=infinite"]), None);
        assert_eq!(capacity(&["--global_file_segment_size=9223372036854775807"]), None);
        assert_eq!(capacity(&["--quota_bytes=2KB"]), Some(2048));
        assert_eq!(capacity(&["--quota_bytes=2KB", "--global_file_segment_size=1KB"]), Some(1024));
        assert_eq!(config(&["--quota_bytes=2KB"]).shared_tier, None);
    }

    #[test]
    fn disks_and_promotion_are_set() {
        let flags = [
            "--enable_offload",
            "--offload_on_evict",
            "--offload_force_evict=true",
            "--offload_filter=second_use",
            "--offloading_queue_limit=7",
            "--promotion_on_hit",
            "--promotion_admission_threshold=3",
            "--promotion_queue_limit=5",
            "--promotion_max_per_heartbeat=4",
        ];
        let config = config(&flags);
        let disks = config.local_disk.unwrap();
        assert!(disks.on_evict && disks.force_evict && disks.offload.queue_limit == 7);
        assert_eq!(disks.filter, OffloadFilter::SecondUse);
        let promotion = config.promotion.unwrap();
        assert_eq!((promotion.admission_threshold, promotion.queue_limit), (3, 5));
        assert_eq!(promotion.max_per_heartbeat, 4);
        for (flags, flag) in [
            (&["--offload_on_evict"][..], "offload_on_evict"),
            (&["--offload_filter=second_use"], "offload_filter"),
            (&["--enable_offload", "--offload_force_evict"], "offload_force_evict"),
        ] {
            let refused = parse(flags).settings(None).unwrap_err().to_string();
            assert!(refused.contains(flag), "{refused}");
        }
        for bad in [
            "--global_file_segment_size=much",
            "--quota_bytes=-1",
            "--offloading_queue_limit=0",
            "--offload_filter=some",
            "--promotion_admission_threshold=256",
            "--promotion_max_per_heartbeat=0",
        ] {
            assert!(Only::try_parse_from(["mc-master", bad]).is_err(), "{bad}");
        }
    }
}
