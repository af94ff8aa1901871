//! Arguments of calls, checked when they are converted from Python.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mc_store::{ByteSize, MediaType, ObjectKey, Put, ReplicateConfig, SoftPinAction};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyMapping, PyString};

use super::failure::{Failure, Outcome};
use super::value::Value;
use crate::items::gather;
use crate::store::StoreEventInfo;

/// The most bytes of the strings of one argument: a million keys of the maximum length.
const MAX_TEXT: usize = 1 << 30;

/// The longest time that an argument may have.
const MAX_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// A number of bytes, or a text such as `"16MB"`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(super) ByteSize);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_cow()?;
            let size = text.parse().map_err(|error| {
                PyValueError::new_err(format!("{text:?} is not a size: {error}"))
            })?;
            return Ok(Self(size));
        }
        Ok(Self(ByteSize::bytes(object.extract()?)))
    }
}

/// A time in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(pub(super) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = object.extract()?;
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if time <= MAX_TIME => Ok(Self(time)),
            _ => Err(PyValueError::new_err(format!(
                "{seconds} is not a time in seconds; give a number from 0 to {}",
                MAX_TIME.as_secs()
            ))),
        }
    }
}

/// Several strings: any iterable except a string itself, which would be split into
/// characters.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts(pub(super) Vec<String>);

impl Texts {
    pub(super) fn refs(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

impl<'py> FromPyObject<'_, 'py> for Texts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        refuse_text(object)?;
        let mut budget = Budget::default();
        gather(&object, |text| budget.text(&text)).map(Self)
    }
}

/// Parses the id of a `kind`.
pub(super) fn id<T: FromStr>(text: &str, kind: &str) -> Outcome<T> {
    let invalid = |_| Failure::invalid(format!("{text:?} is not a {kind} id, which is a UUID"));
    text.parse().map_err(invalid)
}

/// Several bytes-like objects: any iterable except a bytes-like object itself.
#[derive(Clone, Debug)]
pub(super) struct Parts(pub(super) Vec<Value>);

impl Parts {
    pub(super) fn bytes(&self) -> usize {
        sum(self.0.iter())
    }
}

impl<'py> FromPyObject<'_, 'py> for Parts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        refuse_text(object)?;
        gather(&object, |part| part.extract()).map(Self)
    }
}

/// Pairs of a key and a value, as a mapping or as an iterable of pairs.
#[derive(Clone, Debug)]
pub(super) struct Pairs<T>(pub(super) Vec<(String, T)>);

impl Pairs<Value> {
    pub(super) fn bytes(&self) -> usize {
        sum(self.0.iter().map(|(_, value)| value))
    }

    pub(super) fn into_puts(self) -> (Vec<String>, Vec<mc_store::Source>) {
        self.0.into_iter().map(|(key, value)| (key, value.into())).unzip()
    }
}

impl<'py, T> FromPyObject<'_, 'py> for Pairs<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        refuse_text(object)?;
        let pairs = if let Ok(dict) = object.cast::<PyDict>() {
            // A copy: converting a value may run any code.
            dict.items().into_any()
        } else if object.is_instance_of::<PyMapping>() {
            object.call_method0(intern!(object.py(), "items"))?
        } else {
            object.to_owned()
        };
        let mut budget = Budget::default();
        let pair = |pair: Bound<'py, PyAny>| {
            let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract()?;
            Ok((budget.text(&key)?, value.as_borrowed().extract()?))
        };
        gather(&pairs, pair).map(Self)
    }
}

/// Returns the total length of the values, saturated: the same memory may be given many times.
fn sum<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    values.fold(0, |sum, value| sum.saturating_add(value.len()))
}

/// The memory budget for the strings of one argument. They are copied, and a list may contain the
/// same long string many times.
struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(MAX_TEXT)
    }
}

impl Budget {
    fn text(&mut self, object: &Bound<'_, PyAny>) -> PyResult<String> {
        let text = object.cast::<PyString>()?.to_cow()?;
        self.0 = self.0.checked_sub(text.len()).ok_or_else(|| {
            PyValueError::new_err(format!("the strings have more than {MAX_TEXT} bytes in total"))
        })?;
        Ok(text.into_owned())
    }
}

fn refuse_text(object: Borrowed<'_, '_, PyAny>) -> PyResult<()> {
    let is_one = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    if is_one {
        return Err(PyTypeError::new_err(
            "an iterable of several is required, such as a list, not a single one",
        ));
    }
    Ok(())
}

/// A soft pin: whether there is one, or for how many seconds.
fn soft_pin(value: &Bound<'_, PyAny>) -> PyResult<SoftPinAction> {
    let ttl = match value.cast::<PyBool>() {
        Ok(yes) if yes.is_true() => None,
        Ok(_) => return Ok(SoftPinAction::Preserve),
        Err(_) => Some(value.extract::<Seconds>()?.0),
    };
    Ok(SoftPinAction::Enable { ttl })
}

/// The keyword arguments that all puts take: replicas, pins, segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Placement(pub(super) ReplicateConfig);

impl<'py> FromPyObject<'_, 'py> for Placement {
    type Error = PyErr;

    /// From keyword arguments.
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut config = ReplicateConfig::default();
        for (name, value) in &*object.cast::<PyDict>()? {
            let name = name.cast::<PyString>()?.to_cow()?;
            let taken = match &*name {
                "replicas" => value.extract().map(|number| config.replica_num = number),
                "soft_pin" => soft_pin(&value).map(|action| config.soft_pin = action),
                "hard_pin" => value.extract().map(|yes| config.with_hard_pin = yes),
                "group" => text(&value).map(|group| config.group = group),
                "parent" => parent(&value).map(|parent| config.parent = parent),
                "preferred_segments" => {
                    boxed(&value).map(|names| config.preferred_segments = names)
                }
                "medium" => medium(&value).map(|medium| config.medium = medium),
                "excluded_segments" => boxed(&value).map(|names| config.excluded_segments = names),
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "unexpected keyword argument '{name}'"
                    )));
                }
            };
            taken.map_err(|error| named(value.py(), &name, error))?;
        }
        Ok(Self(config))
    }
}

fn text(value: &Bound<'_, PyAny>) -> PyResult<Option<Box<str>>> {
    Ok(value.extract::<Option<String>>()?.map(String::into_boxed_str))
}

fn parent(value: &Bound<'_, PyAny>) -> PyResult<Option<ObjectKey>> {
    let parent = text(value)?.map(ObjectKey::new).transpose();
    parent.map_err(|error| PyValueError::new_err(error.to_string()))
}

fn medium(value: &Bound<'_, PyAny>) -> PyResult<Option<MediaType>> {
    let name = value.extract::<Option<String>>()?;
    let medium = name.map(|name| name.parse::<MediaType>()).transpose();
    medium.map_err(|error| PyValueError::new_err(format!("medium: {error}")))
}

fn boxed(value: &Bound<'_, PyAny>) -> PyResult<Vec<Box<str>>> {
    Ok(value.extract::<Texts>()?.0.into_iter().map(String::into_boxed_str).collect())
}

/// Adds the argument's name to a `TypeError`, as PyO3 does for other arguments.
pub(super) fn named(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let text = format!("argument '{name}': {}", error.value(py));
    let named = PyTypeError::new_err(text);
    named.set_cause(py, error.cause(py));
    named
}

/// The result of a get when the object is missing.
#[derive(Debug)]
pub(super) enum Fallback {
    /// An exception.
    None,
    /// This object.
    Is(Py<PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Fallback {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Is(object.to_owned().unbind()))
    }
}

/// Metadata of an object for the subscribers of events.
#[derive(Clone, Debug)]
pub(super) struct EventInfo(pub(super) Arc<mc_store::StoreEventInfo>);

impl<'py> FromPyObject<'_, 'py> for EventInfo {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let info = object.cast::<StoreEventInfo>()?.try_borrow()?.checked();
        info.map(Self).map_err(|error| PyValueError::new_err(format!("event info: {error}")))
    }
}

/// Metadata, or `None`, of each object of a call.
#[derive(Clone, Debug)]
pub(super) struct EventInfos(Vec<Option<EventInfo>>);

impl<'py> FromPyObject<'_, 'py> for EventInfos {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        gather(&object, |info| info.extract()).map(Self)
    }
}

/// Returns puts of the sources under the keys.
///
/// # Errors
/// When `infos` are not as many as the keys.
pub(super) fn puts(
    keys: &[String],
    sources: Vec<mc_store::Source>,
    infos: Option<EventInfos>,
) -> Outcome<Vec<Put<'_>>> {
    let mut puts: Vec<_> =
        keys.iter().zip(sources).map(|(key, source)| Put::new(key, source)).collect();
    if let Some(EventInfos(infos)) = infos {
        let (given, count) = (infos.len(), puts.len());
        if given != count {
            return Err(Failure::invalid(format!("{given} event_infos for {count} items")));
        }
        for (put, info) in puts.iter_mut().zip(infos) {
            put.event_info = info.map(|info| info.0);
        }
    }
    Ok(puts)
}
