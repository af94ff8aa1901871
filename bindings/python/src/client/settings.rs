//! Settings of clients: keyword arguments, a file or a mapping, the environment.

use std::path::PathBuf;

use mc_store::{ByteSize, ClientBuilder, ClientConfig};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};

use super::arguments::{Seconds, Size, named};
use super::failure::{Failure, Outcome};

/// The default segment size of a cluster in one process.
const LOCAL_SEGMENT: ByteSize = ByteSize::mib(64);

/// The settings of a client. Later sources override earlier ones: the environment, the
/// configuration, the keyword arguments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    environment: bool,
    config: Option<Given>,
    arguments: ClientConfig,
}

/// The configuration, whose keys are those of configuration files.
#[derive(Clone, Debug)]
enum Given {
    /// A mapping, as JSON.
    Text(String),
    File(PathBuf),
}

impl Settings {
    /// Adds the settings of the environment.
    pub(super) fn and_environment(self) -> Self {
        Self { environment: true, ..self }
    }

    pub(super) fn master(mut self, address: Option<String>) -> Self {
        self.arguments.master = address.or(self.arguments.master);
        self
    }

    /// Sets the segment of a cluster in this process. It is served at a free port of the loopback
    /// address unless `listen` is given.
    pub(super) fn near(mut self, segment: Option<Size>) -> Self {
        let segment = segment.map_or(LOCAL_SEGMENT, |size| size.0);
        self.arguments.global_segment_size = Some(segment);
        let any = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        self.arguments.listen.get_or_insert(any);
        self
    }

    /// Returns whether the client may have to serve peers; true if a file or the environment,
    /// which have not been read yet, may say so.
    pub(super) fn may_serve(&self) -> bool {
        let arguments = &self.arguments;
        arguments.global_segment_size.is_some()
            || arguments.listen.is_some()
            || self.config.is_some()
            || self.environment
    }

    /// Reads files and resolves host names, which may block.
    pub(super) fn builder(self) -> Outcome<ClientBuilder> {
        let mut config = match self.environment {
            true => ClientConfig::from_env()?,
            false => ClientConfig::default(),
        };
        if let Some(given) = self.config {
            config = config.overridden_by(match given {
                Given::Text(json) => ClientConfig::from_json(&json)?,
                Given::File(path) => ClientConfig::from_file(path)?,
            });
        }
        let builder = ClientBuilder::from_config(&config.overridden_by(self.arguments))?;
        Ok(builder.software(crate::software::SOFTWARE))
    }
}

impl<'py> FromPyObject<'_, 'py> for Settings {
    type Error = PyErr;

    /// Converts keyword arguments; ignores those that are `None`.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut settings = Self::default();
        for (name, value) in &*object.cast::<PyDict>()? {
            if value.is_none() {
                continue;
            }
            let name = name.cast::<PyString>()?.to_cow()?;
            settings.take(&name, &value).map_err(|error| named(value.py(), &name, error))?;
        }
        Ok(settings)
    }
}

impl Settings {
    fn take(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let arguments = &mut self.arguments;
        match name {
            "segment_size" => arguments.global_segment_size = Some(value.extract::<Size>()?.0),
            "local_buffer" => arguments.local_buffer_size = Some(value.extract::<Size>()?.0),
            "hot_cache" => arguments.local_hot_cache_size = Some(value.extract::<Size>()?.0),
            "put_wait" => arguments.put_wait = Some(value.extract::<Seconds>()?.0),
            "segment_name" => arguments.segment_name = Some(value.extract()?),
            "listen" => {
                let text: String = value.extract()?;
                let address = text.parse().map_err(|_| {
                    Failure::invalid(format!(
                        "listen is {text:?}; it must be an address and a port, such as \
                         \"10.0.0.7:50053\" or \"0.0.0.0:0\""
                    ))
                })?;
                arguments.listen = Some(address);
            }
            "config" => self.config = Some(given(value)?),
            _ => return Err(PyTypeError::new_err("unknown keyword argument")),
        }
        Ok(())
    }
}

fn given(value: &Bound<'_, PyAny>) -> PyResult<Given> {
    let py = value.py();
    if let Ok(mapping) = value.cast::<PyMapping>() {
        // The module json accepts no mapping but a dict.
        let dict = PyDict::new(py);
        dict.update(mapping)?;
        let json = py.import(intern!(py, "json"))?.call_method1(intern!(py, "dumps"), (dict,))?;
        return Ok(Given::Text(json.extract()?));
    }
    value.extract().map(Given::File).map_err(|_| {
        PyTypeError::new_err(
            "the configuration must be the path of a file, or a mapping of settings",
        )
    })
}
