//! Functions for tests, which NVIDIA's driver lacks.

use std::ffi::{CStr, c_char, c_void};

use crate::api::memory::bytes;
use crate::arguments::Ptr;
use crate::codes::{Answer, INVALID_VALUE};
use crate::driver::Locked;
use crate::stream::{End, transfer};

/// Applies settings to the running driver.
pub(crate) fn inject(locked: &mut Locked, text: Ptr<c_char>) -> Answer {
    if text.address() == 0 {
        return Err(INVALID_VALUE);
    }
    let text: *const c_char = std::ptr::with_exposed_provenance(text.address() as usize);
    // SAFETY: the caller gave a C string.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| INVALID_VALUE)?;
    // Calls are counted from here on, and failures that were ordered before are not played any more.
    locked.calls.clear();
    locked.settings.fails.clear();
    locked.settings.hangs.clear();
    locked.settings.blocks.clear();
    locked.settings.apply(text).map_err(|_| INVALID_VALUE)?;
    locked.changed();
    Ok(())
}

/// Copies the list of violations, one in each line, and returns their number.
pub(crate) fn violations(locked: &Locked, text: Ptr<c_char>, len: usize) -> usize {
    let list = locked.violations.join("\n");
    if text.address() != 0 && len > 0 {
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        let _ = super::device::write_text(text, len, &list);
    }
    locked.violations.len()
}

/// The numbers of allocations, pinned ranges, streams, events and contexts.
pub(crate) fn live(locked: &mut Locked, numbers: Ptr<u64>) -> Answer {
    let streams = locked.streams.values().filter(|stream| stream.is_own && !stream.is_destroyed);
    let contexts = locked.devices.iter().filter(|device| device.retained > 0);
    let counts = [
        locked.allocations.len() + locked.physical.len(),
        locked.hosts.len(),
        streams.count(),
        locked.events.len(),
        contexts.count(),
    ];
    for (at, count) in counts.into_iter().enumerate() {
        numbers.element(at).write(count as u64)?;
    }
    Ok(())
}

/// How often a function was called, since the last settings.
pub(crate) fn calls(locked: &Locked, name: Ptr<c_char>) -> u64 {
    if name.address() == 0 {
        return 0;
    }
    let name: *const c_char = std::ptr::with_exposed_provenance(name.address() as usize);
    // SAFETY: the caller gave a C string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(|name| locked.calls.get(name).copied()).unwrap_or(0)
}

/// Reads memory of a GPU past all streams.
pub(crate) fn peek(locked: &mut Locked, address: u64, to: Ptr<c_void>, len: usize) -> Answer {
    let from = bytes(locked, address, len)?;
    transfer(&from, &End::Host(to.address()), len);
    Ok(())
}

/// Writes memory of a GPU past all streams.
pub(crate) fn poke(locked: &mut Locked, address: u64, from: Ptr<c_void>, len: usize) -> Answer {
    let to = bytes(locked, address, len)?;
    transfer(&End::Host(from.address()), &to, len);
    Ok(())
}
