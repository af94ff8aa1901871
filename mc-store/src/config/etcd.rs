//! From settings to the resolver of masters in etcd.

use super::{ClientConfig, ConfigError};

#[cfg(feature = "etcd")]
pub(super) fn add_resolver(
    config: &ClientConfig,
    rpc: &mut mc_rpc::ClientConfig,
) -> Result<(), ConfigError> {
    rpc.resolver("etcd", std::sync::Arc::new(crate::EtcdResolver::from_config(config)?));
    Ok(())
}

/// Without the feature the settings are refused, and an address in etcd when the client connects.
#[cfg(not(feature = "etcd"))]
pub(super) fn add_resolver(
    config: &ClientConfig,
    rpc: &mut mc_rpc::ClientConfig,
) -> Result<(), ConfigError> {
    let given = [
        ("etcd_user", config.etcd_user.is_some()),
        ("etcd_password_file", config.etcd_password_file.is_some()),
        ("etcd_tls_ca", config.etcd_tls_ca.is_some()),
        ("etcd_tls_cert", config.etcd_tls_cert.is_some()),
        ("etcd_tls_key", config.etcd_tls_key.is_some()),
        ("etcd_tls_server_name", config.etcd_tls_server_name.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(ConfigError::NeedsFeature { key, feature: "etcd" }),
        None => {
            rpc.resolver("etcd", std::sync::Arc::new(LeftOut));
            Ok(())
        }
    }
}

/// Names what to do about an address in etcd, where nothing can look it up.
#[cfg(not(feature = "etcd"))]
struct LeftOut;

#[cfg(not(feature = "etcd"))]
impl mc_rpc::Resolve for LeftOut {
    fn resolve(&self, _: &str) -> Result<Vec<String>, mc_rpc::ResolveError> {
        let text = "this build has no etcd; build it with the feature etcd, or write host:port";
        Err(mc_rpc::ResolveError::new(text).lasting())
    }
}

#[cfg(feature = "etcd")]
impl crate::EtcdResolver {
    /// The resolver that the settings `cluster_id` and `etcd_…` describe. No file is read yet.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] when a setting lacks another one that it needs.
    pub fn from_config(config: &ClientConfig) -> Result<Self, ConfigError> {
        let lacks = |key, needs| {
            let reason = "set both, or neither";
            ConfigError::Missing { key, needs, reason }
        };
        let mut resolver = Self::new();
        if let Some(cluster_id) = &config.cluster_id {
            resolver = resolver.cluster_id(&**cluster_id);
        }
        match (&config.etcd_user, &config.etcd_password_file) {
            (Some(user), Some(file)) => resolver = resolver.credentials(&**user, file),
            (Some(_), None) => return Err(lacks("etcd_user", "etcd_password_file")),
            (None, Some(_)) => return Err(lacks("etcd_password_file", "etcd_user")),
            (None, None) => {}
        }
        if let Some(ca) = &config.etcd_tls_ca {
            resolver = resolver.tls_ca(ca);
        }
        match (&config.etcd_tls_cert, &config.etcd_tls_key) {
            (Some(cert), Some(key)) => resolver = resolver.tls_identity(cert, key),
            (Some(_), None) => return Err(lacks("etcd_tls_cert", "etcd_tls_key")),
            (None, Some(_)) => return Err(lacks("etcd_tls_key", "etcd_tls_cert")),
            (None, None) => {}
        }
        if let Some(name) = &config.etcd_tls_server_name {
            resolver = resolver.tls_server_name(&**name);
        }
        Ok(resolver)
    }
}
