//! Copies between the host and a GPU, and inside a GPU.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};

use crate::arguments::{Copy2d, CopyAttributes, Ptr};
use crate::codes::{Answer, Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::Locked;
use crate::stream::{Action, End, Transfer, snapshot};

/// Up to so many bytes of other memory, a copy to a GPU returns before they have arrived.
const STAGED: usize = 64 << 10;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_*`.
const DURING_CALL: c_int = 2;
const ANY: c_int = 3;

/// A source or target, found.
struct Side {
    end: End,
    id: Option<u64>,
}

impl Side {
    /// Whether it is memory of the host that is not pinned.
    fn is_pageable(&self) -> bool {
        self.id.is_none()
    }
}

fn find(locked: &mut Locked, address: u64, len: usize) -> Result<Side, Code> {
    let call = locked.call;
    match locked.resolve(call, address, len)? {
        Some((end, id)) => Ok(Side { end, id: Some(id) }),
        None if address == 0 => Err(INVALID_VALUE),
        None => Ok(Side { end: End::Host(address), id: None }),
    }
}

/// The side that must be memory that the driver knows.
fn find_known(locked: &mut Locked, address: u64, len: usize) -> Result<Side, Code> {
    let side = find(locked, address, len)?;
    if side.is_pageable() { Err(INVALID_VALUE) } else { Ok(side) }
}

fn ids(sides: [&Side; 2]) -> HashSet<u64> {
    sides.into_iter().filter_map(|side| side.id).collect()
}

/// Queues one copy. Returns once it is over, if `waits`.
fn queue(
    locked: &mut Locked,
    stream: u64,
    from: Side,
    to: Side,
    len: usize,
    waits: bool,
) -> Answer {
    let (device, key) = locked.named_stream(stream)?;
    let uses = ids([&from, &to]);
    let is_late = to.is_pageable();
    let source = if from.is_pageable() { snapshot(&from.end, len) } else { from.end };
    let action = Action::Copy(vec![Transfer { from: source, to: to.end, len }]);
    let delay = locked.settings.delay;
    let number = locked.enqueue(key, action, delay, uses);
    locked.changed();
    if waits || is_late { locked.wait_stream(device, key, number) } else { Ok(()) }
}

pub(crate) fn to_device(
    locked: &mut Locked,
    target: u64,
    source: Ptr<c_void>,
    len: usize,
) -> Answer {
    locked.usable()?;
    if len == 0 {
        return Ok(());
    }
    let to = find_known(locked, target, len)?;
    let from = find(locked, source.address(), len)?;
    let waits = !from.is_pageable() || len > STAGED;
    queue(locked, 0, from, to, len, waits)
}

pub(crate) fn to_host(locked: &mut Locked, target: Ptr<c_void>, source: u64, len: usize) -> Answer {
    locked.usable()?;
    if len == 0 {
        return Ok(());
    }
    let from = find_known(locked, source, len)?;
    let to = find(locked, target.address(), len)?;
    queue(locked, 0, from, to, len, true)
}

pub(crate) fn inside(locked: &mut Locked, target: u64, source: u64, len: usize) -> Answer {
    inside_async(locked, target, source, len, Ptr::null())
}

pub(crate) fn to_device_async(
    locked: &mut Locked,
    target: u64,
    source: Ptr<c_void>,
    len: usize,
    stream: Ptr<c_void>,
) -> Answer {
    locked.usable()?;
    if len == 0 {
        return Ok(());
    }
    let to = find_known(locked, target, len)?;
    let from = find(locked, source.address(), len)?;
    queue(locked, stream.address(), from, to, len, false)
}

pub(crate) fn to_host_async(
    locked: &mut Locked,
    target: Ptr<c_void>,
    source: u64,
    len: usize,
    stream: Ptr<c_void>,
) -> Answer {
    locked.usable()?;
    if len == 0 {
        return Ok(());
    }
    let from = find_known(locked, source, len)?;
    let to = find(locked, target.address(), len)?;
    queue(locked, stream.address(), from, to, len, false)
}

pub(crate) fn inside_async(
    locked: &mut Locked,
    target: u64,
    source: u64,
    len: usize,
    stream: Ptr<c_void>,
) -> Answer {
    locked.usable()?;
    if len == 0 {
        return Ok(());
    }
    let to = find_known(locked, target, len)?;
    let from = find_known(locked, source, len)?;
    queue(locked, stream.address(), from, to, len, false)
}

/// The first byte of a side of a copy in two dimensions.
fn corner(
    kind: u32,
    host: *const c_void,
    device: u64,
    x: usize,
    y: usize,
    pitch: usize,
) -> Result<u64, Code> {
    let base = match kind {
        1 => host.expose_provenance() as u64,
        2 | 4 => device,
        _ => return Err(NOT_SUPPORTED),
    };
    let at = y.checked_mul(pitch).and_then(|at| at.checked_add(x)).ok_or(INVALID_VALUE)?;
    base.checked_add(at as u64).ok_or(INVALID_VALUE)
}

pub(crate) fn rows(locked: &mut Locked, copy: Ptr<Copy2d>, stream: Ptr<c_void>) -> Answer {
    locked.usable()?;
    let copy = copy.read(0)?;
    let (width, height) = (copy.width, copy.height);
    if width == 0 || height == 0 {
        return Ok(());
    }
    let is_short = |pitch: usize| pitch != 0 && pitch < width;
    if is_short(copy.source_pitch) || is_short(copy.target_pitch) {
        return Err(INVALID_VALUE);
    }
    let span = |pitch: usize| (height - 1).checked_mul(pitch)?.checked_add(width);
    let source = corner(
        copy.source_kind,
        copy.source_host,
        copy.source_device,
        copy.source_x,
        copy.source_y,
        copy.source_pitch,
    )?;
    let target = corner(
        copy.target_kind,
        copy.target_host,
        copy.target_device,
        copy.target_x,
        copy.target_y,
        copy.target_pitch,
    )?;
    // Each side lies in one allocation as a whole.
    let source_span = span(copy.source_pitch).ok_or(INVALID_VALUE)?;
    let target_span = span(copy.target_pitch).ok_or(INVALID_VALUE)?;
    let from = find(locked, source, source_span)?;
    let to = find(locked, target, target_span)?;
    let (device, key) = locked.named_stream(stream.address())?;
    let from_end =
        if from.is_pageable() { snapshot(&from.end, source_span) } else { from.end.clone() };
    let mut transfers = Vec::with_capacity(height);
    for row in 0..height {
        let from = part(&from_end, row * copy.source_pitch, width);
        let to = part(&to.end, row * copy.target_pitch, width);
        transfers.push(Transfer { from, to, len: width });
    }
    let (uses, delay) = (ids([&from, &to]), locked.settings.delay);
    let number = locked.enqueue(key, Action::Copy(transfers), delay, uses);
    locked.changed();
    if to.is_pageable() { locked.wait_stream(device, key, number) } else { Ok(()) }
}

fn part(end: &End, at: usize, len: usize) -> End {
    match end {
        End::Store { store, offset } => End::Store { store: store.clone(), offset: offset + at },
        End::Host(address) => End::Host(address + at as u64),
        End::Bytes(bytes) => End::Bytes(bytes[at..at + len].to_vec().into()),
    }
}

/// `cuMemcpyBatchAsync` of CUDA 12.8.
#[allow(clippy::too_many_arguments, reason = "the driver's function has as many")]
pub(crate) fn batch_failing(
    locked: &mut Locked,
    targets: Ptr<u64>,
    sources: Ptr<u64>,
    sizes: Ptr<usize>,
    count: usize,
    attributes: Ptr<CopyAttributes>,
    starts: Ptr<usize>,
    attribute_count: usize,
    failed: Ptr<usize>,
    stream: Ptr<c_void>,
) -> Answer {
    failed.write_if_wanted(usize::MAX);
    batch(locked, targets, sources, sizes, count, attributes, starts, attribute_count, stream)
}

/// `cuMemcpyBatchAsync` of CUDA 13.
#[allow(clippy::too_many_arguments, reason = "the driver's function has as many")]
pub(crate) fn batch(
    locked: &mut Locked,
    targets: Ptr<u64>,
    sources: Ptr<u64>,
    sizes: Ptr<usize>,
    count: usize,
    attributes: Ptr<CopyAttributes>,
    starts: Ptr<usize>,
    attribute_count: usize,
    stream: Ptr<c_void>,
) -> Answer {
    locked.usable()?;
    if stream.address() <= 1 || count == 0 || attribute_count == 0 || attribute_count > count {
        return Err(INVALID_VALUE);
    }
    let (device, key) = locked.named_stream(stream.address())?;
    let (mut uses, mut transfers, mut waits) = (HashSet::new(), Vec::new(), false);
    let mut attribute = 0;
    for at in 0..count {
        while attribute + 1 < attribute_count && starts.read(attribute + 1)? <= at {
            attribute += 1;
        }
        let order = attributes.read(attribute)?.source_order;
        if !(1..=3).contains(&order) || starts.read(0)? != 0 {
            return Err(INVALID_VALUE);
        }
        let len = sizes.read(at)?;
        let (from, to) =
            (find(locked, sources.read(at)?, len)?, find(locked, targets.read(at)?, len)?);
        uses.extend(ids([&from, &to]));
        waits |= to.is_pageable();
        // A source that may be read at any time is read now or later, by turns.
        let is_now = order == DURING_CALL || order == ANY && at % 2 == 0 || from.is_pageable();
        let source = if is_now { snapshot(&from.end, len) } else { from.end };
        transfers.push(Transfer { from: source, to: to.end, len });
    }
    let delay = locked.settings.delay;
    let number = locked.enqueue(key, Action::Copy(transfers), delay, uses);
    locked.changed();
    if waits { locked.wait_stream(device, key, number) } else { Ok(()) }
}
