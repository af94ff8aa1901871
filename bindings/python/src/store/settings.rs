//! The settings of `setup`.

use std::fmt::Display;
use std::time::Duration;

use mc_store::{ByteSize, ClientConfig, ConfigError, Protocol};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use super::arguments::{Flag, Size};
use crate::error::Failure;

/// Mooncake's defaults.
pub(super) const SIZE: u64 = 16 << 20;
pub(super) const MASTER: &str = "127.0.0.1:50051";
pub(super) const TENANT: &str = "default";
pub(super) const HTTP_PORT: u16 = 9300;

/// The keys of a dict of settings, in the order of their documentation, with the alternative names
/// of configuration files.
const KEYS: [&str; 15] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "device_name",
    "master_server_addr",
    "master_server_address",
    "ipc_socket_path",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
];

/// Mooncake's settings of a client.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) local_hostname: String,
    pub(super) global_segment_size: u64,
    pub(super) local_buffer_size: u64,
    pub(super) protocol: String,
    /// Names separated by commas.
    pub(super) devices: String,
    pub(super) master_server_addr: String,
    pub(super) enable_ssd_offload: bool,
    /// Empty for the one of the environment.
    pub(super) ssd_offload_path: String,
    pub(super) tenant_id: String,
    pub(super) http_port: Option<u16>,
}

impl Settings {
    /// Converts a dict. Returns `None` if a required key is missing or a size is invalid, for which
    /// Mooncake returns a number.
    ///
    /// # Errors
    /// TypeError and ValueError for other invalid values.
    pub(super) fn from_dict(dict: &Bound<'_, PyDict>) -> PyResult<Option<Self>> {
        for key in dict.keys() {
            let key: String = key.extract()?;
            if !KEYS.contains(&key.as_str()) {
                tracing::warn!("setup ignores the unknown key {key:?}");
            }
        }
        let of = Values(dict);
        let (Some(local_hostname), Some(_)) =
            (of.text("local_hostname")?, of.text("metadata_server")?)
        else {
            tracing::warn!("setup requires local_hostname and metadata_server");
            return Ok(None);
        };
        let either =
            |key, other| of.text(key)?.map_or_else(|| of.text(other), |text| Ok(Some(text)));
        let master = either("master_server_addr", "master_server_address")?;
        let devices = either("rdma_devices", "device_name")?;
        let sizes = ["global_segment_size", "local_buffer_size"].map(|key| of.size(key));
        let [Ok(global_segment_size), Ok(local_buffer_size)] = sizes else { return Ok(None) };
        let wants_http = of.flag("enable_client_http_server")?;
        Ok(Some(Self {
            local_hostname,
            global_segment_size,
            local_buffer_size,
            protocol: of.text("protocol")?.unwrap_or_else(|| "tcp".into()),
            devices: devices.unwrap_or_default(),
            master_server_addr: master.unwrap_or_else(|| MASTER.into()),
            enable_ssd_offload: of.flag("enable_ssd_offload")?,
            ssd_offload_path: of.text("ssd_offload_path")?.unwrap_or_default(),
            tenant_id: of.text("tenant_id")?.unwrap_or_else(|| TENANT.into()),
            http_port: wants_http.then(|| of.port("client_http_port")).transpose()?,
        }))
    }

    /// Converts the settings for mc-store, with the [`protocol`] of these settings. Of the
    /// environment only variables named `MC_` apply, and the one that Mooncake's client itself reads;
    /// the caller of `setup` reads others named `MOONCAKE_`.
    pub(super) fn into_config(self, protocol: Protocol) -> Result<ClientConfig, ConfigError> {
        let applies = |name: &str| name.starts_with("MC_") || name == "MOONCAKE_STORAGE_ROOT_DIR";
        let variable = |name: &str| applies(name).then(|| std::env::var_os(name)).flatten();
        let mut config = ClientConfig::default().apply_vars(variable)?;
        // Connectors put less after a failure for lack of space, and expect it at once. A put that
        // waits would evict the first objects of a batch for its last.
        config.put_wait.get_or_insert(Duration::ZERO);
        let size = |bytes| Some(ByteSize::bytes(bytes));
        config.master = Some(self.master_server_addr);
        config.protocol = Some(protocol);
        config.device_name = ClientConfig::device_names(&self.devices).or(config.device_name);
        config.local_hostname = Some(self.local_hostname);
        config.global_segment_size = size(self.global_segment_size);
        // A client with none makes no calls at all. Of this one the session refuses those with values.
        config.local_buffer_size = size(self.local_buffer_size.max(1));
        config.tenant_id = Some(self.tenant_id).filter(|tenant| tenant != TENANT);
        config.enable_client_http_server = Some(self.http_port.is_some());
        config.client_http_port = self.http_port;
        if self.enable_ssd_offload {
            use_disk(&mut config, &self.ssd_offload_path)?;
        }
        Ok(config)
    }
}

/// Keeps objects on a disk of this host, too. The directory is the one of the environment when `path`
/// is empty. Engines ask for a disk in places that have none, which is logged.
fn use_disk(config: &mut ClientConfig, path: &str) -> Result<(), ConfigError> {
    let variable = |name: &str| {
        name.starts_with("MOONCAKE_OFFLOAD_").then(|| std::env::var_os(name)).flatten()
    };
    let of_environment = ClientConfig::default().apply_vars(variable)?;
    config.ssd_offload_size = of_environment.ssd_offload_size;
    config.ssd_offload_path = match path {
        "" => of_environment.ssd_offload_path,
        path => Some(path.into()),
    };
    let holds_nothing = config.global_segment_size.is_none_or(|size| size.as_u64() == 0);
    if config.ssd_offload_path.is_none() {
        tracing::warn!(
            "enable_ssd_offload has no effect: give ssd_offload_path, or set \
             MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
        );
    } else if holds_nothing {
        tracing::info!("enable_ssd_offload has no effect in a client that contributes no memory");
    } else {
        config.enable_ssd_offload = Some(true);
    }
    Ok(())
}

/// Returns the protocol of this name, or logs that it is unknown. "rpc_only", for a client without
/// transfers, means TCP.
pub(super) fn protocol(name: &str) -> Option<Protocol> {
    if name == "rpc_only" {
        return Some(Protocol::Tcp);
    }
    let protocol = name.parse();
    if let Err(error) = protocol {
        tracing::error!("protocol {name:?} is unknown: {error}");
    }
    protocol.ok()
}

/// Mooncake's limits of a size that is not 0: `setup` returns a number for others.
const SMALLEST: u64 = 1 << 10;
const LARGEST_BUFFER: u64 = 1 << 40;

/// Parses an argument of `setup`: a size in bytes, or a string such as "16MB".
///
/// # Errors
/// TypeError for what is neither.
pub(super) fn parse_size(value: &Bound<'_, PyAny>) -> PyResult<Result<u64, Failure>> {
    let Ok(text) = value.extract::<String>() else {
        return value.extract::<Size>().map(|Size(bytes)| Ok(bytes as u64));
    };
    let size = text.parse::<ByteSize>().map(ByteSize::as_u64);
    Ok(size.map_err(|error| Failure::refuse(format_args!("{text:?} is not a size: {error}"))))
}

/// Checks the sizes of a segment and a local buffer.
pub(super) fn check_sizes(segment: u64, local_buffer: u64) -> Result<(), Failure> {
    if (1..SMALLEST).contains(&segment) {
        let why = format_args!("global_segment_size {segment} is less than {SMALLEST} and not 0");
        return Err(Failure::refuse(why));
    }
    if local_buffer > LARGEST_BUFFER {
        let why = format_args!("local_buffer_size {local_buffer} is more than {LARGEST_BUFFER}");
        return Err(Failure::refuse(why));
    }
    Ok(())
}

/// Typed access to the values of a dict.
struct Values<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Values<'_, 'py> {
    fn value(&self, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(key)?.filter(|value| !value.is_none()))
    }

    fn text(&self, key: &str) -> PyResult<Option<String>> {
        self.value(key)?.map(|value| value.extract().map_err(|_| wrong(key, "a str"))).transpose()
    }

    /// A size; logs what is wrong with another value.
    fn size(&self, key: &str) -> Result<u64, Failure> {
        let refuse = |why: &dyn Display| Failure::refuse(format_args!("{key}: {why}"));
        let value = self.value(key).map_err(|error| refuse(&error))?;
        let Some(value) = value else { return Ok(SIZE) };
        let is_number = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
        if !is_number && !value.is_instance_of::<PyString>() {
            return Err(refuse(&"a number of bytes, or a str such as '16MB', is required"));
        }
        let size = parse_size(&value).map_err(|error| refuse(&error))??;
        if (1..SMALLEST).contains(&size) {
            return Err(refuse(&format_args!("{size} is less than {SMALLEST} and not 0")));
        }
        Ok(size)
    }

    fn flag(&self, key: &str) -> PyResult<bool> {
        let Some(value) = self.value(key)? else { return Ok(false) };
        if let Ok(text) = value.extract::<String>() {
            return match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Ok(true),
                "false" | "0" | "no" | "off" | "" => Ok(false),
                _ => Err(wrong(key, "true or false")),
            };
        }
        value.extract::<Flag>().map(|Flag(yes)| yes).map_err(|_| wrong(key, "a bool"))
    }

    fn port(&self, key: &str) -> PyResult<u16> {
        let Some(value) = self.value(key)? else { return Ok(HTTP_PORT) };
        let number = match value.extract::<String>() {
            Ok(text) => text.parse().ok(),
            Err(_) => value.extract().ok(),
        };
        number.ok_or_else(|| {
            PyValueError::new_err(format!("{key} must be a whole number from 0 to 65535"))
        })
    }
}

fn wrong(key: &str, expected: &str) -> PyErr {
    PyTypeError::new_err(format!("{key} must be {expected}"))
}
