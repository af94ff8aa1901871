//! Streams, events and host functions.

use std::collections::HashSet;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::arguments::{HostFunction, Ptr};
use crate::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY};
use crate::driver::Locked;
use crate::store::Store;
use crate::stream::{Action, Event, EventState, Stream, StreamKind};

/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
pub(super) const SHARED: c_uint = 6;

fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

pub(crate) fn create(locked: &mut Locked, stream: Ptr<*mut c_void>, flags: c_uint) -> Answer {
    create_with_priority(locked, stream, flags, 0)
}

pub(crate) fn create_with_priority(
    locked: &mut Locked,
    stream: Ptr<*mut c_void>,
    flags: c_uint,
    _: c_int,
) -> Answer {
    let device = locked.usable()?;
    let kind = match flags {
        0 => StreamKind::Blocking,
        1 => StreamKind::NonBlocking,
        _ => return Err(INVALID_VALUE),
    };
    let key = locked.handle();
    stream.write(handle(key))?;
    locked.streams.insert(key, Stream::new(device, kind, true));
    Ok(())
}

pub(crate) fn destroy(locked: &mut Locked, stream: Ptr<c_void>) -> Answer {
    let device = locked.current()?;
    let key = stream.address();
    if key <= 2 {
        return Err(INVALID_HANDLE);
    }
    let call = locked.call;
    let key = locked.stream(call, key, device, 0)?;
    if let Some(stream) = locked.streams.get_mut(&key) {
        stream.is_destroyed = true;
        if stream.queue.is_empty() {
            locked.streams.remove(&key);
        }
    }
    locked.check_lost(device)
}

pub(crate) fn synchronize(locked: &mut Locked, stream: Ptr<c_void>) -> Answer {
    let (device, key) = locked.named_stream(stream.address())?;
    let number = locked.streams.get(&key).map_or(0, |stream| stream.issued);
    locked.wait_stream(device, key, number)
}

pub(crate) fn query(locked: &mut Locked, stream: Ptr<c_void>) -> Answer {
    let (_, key) = locked.named_stream(stream.address())?;
    let is_idle = locked.streams.get(&key).is_none_or(|stream| stream.queue.is_empty());
    if is_idle { Ok(()) } else { Err(NOT_READY) }
}

pub(crate) fn wait_event(
    locked: &mut Locked,
    stream: Ptr<c_void>,
    event: Ptr<c_void>,
    flags: c_uint,
) -> Answer {
    let (_, key) = locked.named_stream(stream.address())?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let call = locked.call;
    let event = Arc::clone(&locked.event(call, event.address())?.state);
    let generation = event.recorded();
    locked.enqueue(key, Action::Wait { event, generation }, Duration::ZERO, HashSet::new());
    locked.changed();
    Ok(())
}

pub(crate) fn event_create(locked: &mut Locked, event: Ptr<*mut c_void>, flags: c_uint) -> Answer {
    let device = locked.usable()?;
    if flags & !7 != 0 || flags & SHARED == 4 {
        return Err(INVALID_VALUE);
    }
    let page = if flags & SHARED == SHARED {
        Some(Store::new(4096).map_err(|_| OUT_OF_MEMORY)?)
    } else {
        None
    };
    let state = Arc::new(EventState::new(page));
    state.clear();
    let key = locked.handle();
    event.write(handle(key))?;
    locked.events.insert(key, Event { device, state });
    Ok(())
}

pub(crate) fn event_record(locked: &mut Locked, event: Ptr<c_void>, stream: Ptr<c_void>) -> Answer {
    let (device, key) = locked.named_stream(stream.address())?;
    let call = locked.call;
    let event = locked.event(call, event.address())?;
    if event.device != device {
        return Err(INVALID_HANDLE);
    }
    let event = Arc::clone(&event.state);
    let generation = event.begin();
    locked.enqueue(key, Action::Record { event, generation }, Duration::ZERO, HashSet::new());
    locked.changed();
    Ok(())
}

pub(crate) fn event_query(locked: &mut Locked, event: Ptr<c_void>) -> Answer {
    locked.usable()?;
    let call = locked.call;
    let event = locked.event(call, event.address())?;
    let is_over = event.state.is_complete(event.state.recorded());
    if is_over { Ok(()) } else { Err(NOT_READY) }
}

pub(crate) fn event_synchronize(locked: &mut Locked, event: Ptr<c_void>) -> Answer {
    let device = locked.usable()?;
    let call = locked.call;
    let event = Arc::clone(&locked.event(call, event.address())?.state);
    let generation = event.recorded();
    locked
        .wait_until(|state| event.is_complete(generation) || state.devices[device].lost.is_some());
    locked.check_lost(device)
}

pub(crate) fn event_destroy(locked: &mut Locked, event: Ptr<c_void>) -> Answer {
    let device = locked.current()?;
    let call = locked.call;
    locked.event(call, event.address())?;
    locked.events.remove(&event.address());
    locked.check_lost(device)
}

pub(crate) fn launch_host_function(
    locked: &mut Locked,
    stream: Ptr<c_void>,
    function: Option<HostFunction>,
    data: Ptr<c_void>,
) -> Answer {
    let (_, key) = locked.named_stream(stream.address())?;
    let function = function.ok_or(INVALID_VALUE)?;
    let action = Action::Call { function, data: data.address() };
    locked.enqueue(key, action, Duration::ZERO, HashSet::new());
    locked.changed();
    Ok(())
}
