//! The master's settings.

use core::time::Duration;

use mc_evict::PolicyKind;
use mc_lease::SoftPinFrom;

use crate::eviction::Class;
use crate::side_tables::local_disk::LocalDiskConfig;
use crate::side_tables::promotion_queue::PromotionConfig;
use crate::side_tables::tasks::TaskConfig;
use crate::space::allocator::MemoryAllocator;
use crate::space::strategy::AllocationStrategy;
use crate::tenant::quota::{DefaultQuota, MAX_QUOTA};
use crate::vocabulary::grant::GrantTime;
use crate::vocabulary::kinds::SharedTierConfig;

/// Settings of a [`Master`](crate::Master). The defaults are the reference
/// system's documented ones.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MasterConfig {
    /// Parts that the objects are divided into, each behind its own lock.
    pub shards: usize,
    /// In which order segments are tried for a new replica.
    pub allocation_strategy: AllocationStrategy,
    /// How the bytes of a segment are divided; decided when it is mounted.
    pub memory_allocator: MemoryAllocator,
    /// How long exist and get protect an object. Default 5 s.
    pub lease_ttl: Duration,
    /// How long an object put with a soft pin keeps it without access, if its put does not say. Default
    /// 30 minutes.
    pub soft_pin_ttl: Duration,
    /// The longest soft pin that a put may ask for. Default 24 hours.
    pub max_soft_pin_ttl: Duration,
    /// Whether soft-pinned objects are evicted when nothing else is left.
    pub allow_evict_soft_pinned_objects: bool,
    /// The part of all bytes in use above which [`tick`](crate::Master::tick)
    /// evicts. Default 0.95.
    pub eviction_high_watermark_ratio: f64,
    /// The part of all bytes freed at a time. Default 0.05.
    pub eviction_ratio: f64,
    /// How long a client may stay silent before its segments are suspended: what they
    /// hold cannot be read, and nothing is put there. Default 10 s.
    pub client_ttl: Duration,
    /// How long suspended segments are kept for their client to come back with their
    /// objects, before they are discarded. Default 10 minutes; zero discards them at
    /// once.
    pub client_return_timeout: Duration,
    /// How long an object stays after it was first read, for stores that hand each object
    /// over once; zero lets one reader have it. No other client finds it afterwards, and its space
    /// comes back when the last lease has ended. Objects put with a pin stay. Default:
    /// none goes for being read.
    pub ttl_after_get: Option<Duration>,
    /// The policy that decides which objects are evicted first. Default: [`PolicyKind::Adaptive`].
    pub eviction_policy: PolicyKind,
    /// The event from which the time of a soft pin is counted. Default: the last access.
    pub soft_pin_from: SoftPinFrom,
    /// Age at which an unfinished put no longer blocks another put of its key.
    /// Default 30 s.
    pub put_start_discard_timeout: Duration,
    /// Age at which the space of an unfinished put is taken back. Default
    /// 10 minutes. Its writer may be slow rather than dead, so this is long.
    pub put_start_release_timeout: Duration,
    /// Whether objects belong to tenants, each of which sees its own only and puts within
    /// its quota of bytes. Default: no; all clients share everything, without limits.
    pub multi_tenant: bool,
    /// The quota of a tenant that was given none. Default: no limit.
    pub default_tenant_quota: DefaultQuota,
    /// Limits and time-outs of copy and move tasks.
    pub tasks: TaskConfig,
    /// The tier of files that every client reaches. `None`, the default, is none.
    pub shared_tier: Option<SharedTierConfig>,
    /// The clients' local disks. `None`, the default, uses none.
    pub local_disk: Option<LocalDiskConfig>,
    /// When objects that are on disks only come back into memory. `None`, the default,
    /// is never.
    pub promotion: Option<PromotionConfig>,
}

impl Default for MasterConfig {
    fn default() -> Self {
        Self {
            shards: 64,
            allocation_strategy: AllocationStrategy::default(),
            memory_allocator: MemoryAllocator::default(),
            lease_ttl: Duration::from_secs(5),
            soft_pin_ttl: Duration::from_secs(30 * 60),
            max_soft_pin_ttl: Duration::from_secs(24 * 60 * 60),
            allow_evict_soft_pinned_objects: true,
            eviction_high_watermark_ratio: 0.95,
            eviction_ratio: 0.05,
            client_ttl: Duration::from_secs(10),
            client_return_timeout: Duration::from_secs(10 * 60),
            ttl_after_get: None,
            eviction_policy: PolicyKind::default(),
            soft_pin_from: SoftPinFrom::default(),
            put_start_discard_timeout: Duration::from_secs(30),
            put_start_release_timeout: Duration::from_secs(10 * 60),
            multi_tenant: false,
            default_tenant_quota: DefaultQuota::default(),
            tasks: TaskConfig::default(),
            shared_tier: None,
            local_disk: None,
            promotion: None,
        }
    }
}

impl MasterConfig {
    /// How long the space of a grant is its client's own.
    pub(crate) const fn grant_time(&self) -> GrantTime {
        GrantTime(self.put_start_release_timeout)
    }

    /// The classes of objects that an eviction may take, each when those before it made no room: a
    /// soft-pinned object may be evicted only where the
    /// [settings](Self::allow_evict_soft_pinned_objects) allow it and no ordinary object makes room. One
    /// whose pin has lapsed is an ordinary object again.
    pub(crate) const fn evictable(&self) -> &'static [Class] {
        match self.allow_evict_soft_pinned_objects {
            true => &[Class::Ordinary, Class::SoftPinned],
            false => &[Class::Ordinary],
        }
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// [`ConfigError`] names the first that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let outside = |name, value: f64| ConfigError::RatioOutOfRange { name, value };
        if !(1..=65_536).contains(&self.shards) {
            return Err(ConfigError::ShardCount { shards: self.shards });
        }
        for (name, value) in [
            ("eviction_high_watermark_ratio", self.eviction_high_watermark_ratio),
            ("eviction_ratio", self.eviction_ratio),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(outside(name, value));
            }
        }
        for (name, duration) in [("client_ttl", self.client_ttl), ("lease_ttl", self.lease_ttl)] {
            if duration.is_zero() {
                return Err(ConfigError::ZeroDuration { name });
            }
        }
        if self.tasks.max_finished == 0 {
            return Err(ConfigError::ZeroLimit { name: "tasks.max_finished" });
        }
        if let DefaultQuota::Bytes(bytes) = self.default_tenant_quota
            && !(1..=MAX_QUOTA).contains(&bytes)
        {
            return Err(ConfigError::DefaultQuota { bytes });
        }
        if self.soft_pin_ttl > self.max_soft_pin_ttl {
            return Err(ConfigError::SoftPinTtl {
                ttl: self.soft_pin_ttl,
                max: self.max_soft_pin_ttl,
            });
        }
        if self.put_start_release_timeout < self.put_start_discard_timeout {
            return Err(ConfigError::ReleaseBeforeDiscard);
        }
        Ok(())
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The number of shards is not between 1 and 65,536.
    #[error("{shards} shards; choose between 1 and 65536")]
    ShardCount {
        /// The number given.
        shards: usize,
    },
    /// A ratio is not between 0 and 1.
    #[error("{name} is {value}; it is a part of the whole, between 0 and 1")]
    RatioOutOfRange {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: f64,
    },
    /// A duration that must pass is zero.
    #[error("{name} is zero; give it at least a millisecond")]
    ZeroDuration {
        /// The setting.
        name: &'static str,
    },
    /// A limit that leaves nothing.
    #[error("{name} is zero; allow at least one")]
    ZeroLimit {
        /// The setting.
        name: &'static str,
    },
    /// The default quota of tenants is zero or above the limit.
    #[error("a default quota of {bytes} bytes for tenants; choose between 1 and {MAX_QUOTA}")]
    DefaultQuota {
        /// The bytes given.
        bytes: u64,
    },
    /// Soft pins would last longer than the longest that a put may ask for.
    #[error(
        "soft_pin_ttl is {ttl:?}, and max_soft_pin_ttl {max:?}; raise the maximum or lower the other"
    )]
    SoftPinTtl {
        /// The duration of a pin whose put gives none.
        ttl: Duration,
        /// The longest.
        max: Duration,
    },
    /// Space would be taken back before the put stops blocking its key.
    #[error("put_start_release_timeout is shorter than put_start_discard_timeout")]
    ReleaseBeforeDiscard,
}
