//! Versions, names of errors, and functions by name.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::arguments::Ptr;
use crate::codes::{self, Answer, INVALID_VALUE, NOT_FOUND};
use crate::driver::Locked;

pub(crate) fn version(locked: &mut Locked, version: Ptr<c_int>) -> Answer {
    version.write(locked.settings.version)
}

pub(crate) fn error_name(_: &mut Locked, code: c_int, name: Ptr<*const c_char>) -> Answer {
    write(name, codes::name(code))
}

pub(crate) fn error_string(_: &mut Locked, code: c_int, text: Ptr<*const c_char>) -> Answer {
    write(text, codes::sentence(code))
}

fn write(to: Ptr<*const c_char>, text: Option<&'static CStr>) -> Answer {
    to.write(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    if text.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Functions that have several forms, with the version from which on each is the one of that
/// name. Of the others, the name in the library is that of the form of CUDA 12.
const FORMS: [(&str, c_int, &str); 2] = [
    ("cuMemcpyBatchAsync", 12_080, "cuMemcpyBatchAsync"),
    ("cuMemcpyBatchAsync", 13_000, "cuMemcpyBatchAsync_v2"),
];

/// How a function of the library is found by its name there.
type Find = fn(&str) -> Option<*const c_void>;

fn find(locked: &Locked, name: &str, version: c_int, known: Find) -> Option<*const c_void> {
    let version = version.min(locked.settings.version);
    let forms = FORMS.iter().filter(|(of, _, _)| *of == name);
    let symbol = if forms.clone().count() > 0 {
        let known = forms.filter(|(_, since, _)| *since <= version);
        known.max_by_key(|(_, since, _)| *since)?.2.to_owned()
    } else {
        let newest = ["_v2", ""].map(|suffix| format!("{name}{suffix}"));
        newest.into_iter().find(|symbol| known(symbol).is_some())?
    };
    let is_missing = |missing: &String| *missing == symbol || *missing == name;
    if locked.settings.missing.iter().any(is_missing) {
        return None;
    }
    known(&symbol)
}

/// Finds the newest form of a function that a version of CUDA has.
pub(crate) fn proc_address(
    locked: &Locked,
    name: Ptr<c_char>,
    function: Ptr<*mut c_void>,
    version: c_int,
    status: Ptr<c_int>,
    known: Find,
) -> Answer {
    if name.address() == 0 {
        return Err(INVALID_VALUE);
    }
    let name: *const c_char = std::ptr::with_exposed_provenance(name.address() as usize);
    // SAFETY: the caller gave a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let found = name.to_str().ok().and_then(|name| find(locked, name, version, known));
    status.write_if_wanted(found.is_none().into());
    function.write(found.unwrap_or(std::ptr::null()).cast_mut())?;
    found.map(|_| ()).ok_or(NOT_FOUND)
}
