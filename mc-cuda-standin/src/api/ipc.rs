//! Memory and events of other processes.
//!
//! A handle names a descriptor of the process that exported it, which is opened through `/proc`:
//! once the process is gone, no other can open it, and those that have keep the memory.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use crate::arguments::{IpcHandle, Ptr};
use crate::codes::{
    Answer, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED,
    NOT_SUPPORTED,
};
use crate::driver::Locked;
use crate::state::Kind;
use crate::store::Store;
use crate::stream::{Event, EventState};

/// The beginning of a handle.
const MAGIC: [u8; 8] = *b"mcstnd01";

struct Contents {
    process: u32,
    fd: u32,
    inode: u64,
    len: u64,
    card: u32,
}

fn encode(contents: &Contents) -> IpcHandle {
    let mut bytes = [0_u8; 64];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&contents.process.to_le_bytes());
    bytes[12..16].copy_from_slice(&contents.fd.to_le_bytes());
    bytes[16..24].copy_from_slice(&contents.inode.to_le_bytes());
    bytes[24..32].copy_from_slice(&contents.len.to_le_bytes());
    bytes[32..36].copy_from_slice(&contents.card.to_le_bytes());
    IpcHandle { reserved: bytes.map(u8::cast_signed) }
}

fn decode(bytes: &[u8; 64]) -> Result<Contents, Code> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|by| bytes[at + by]));
    let number = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if bytes[..8] != MAGIC {
        return Err(INVALID_VALUE);
    }
    let (process, fd, inode) = (word(8), word(12), number(16));
    Ok(Contents { process, fd, inode, len: number(24), card: word(32) })
}

fn describe(file: &OwnedFd, len: usize, card: usize) -> Result<IpcHandle, Code> {
    let inode = file.try_clone().map(File::from).and_then(|file| file.metadata());
    let inode = inode.map_err(|_| INVALID_VALUE)?.ino();
    Ok(encode(&Contents {
        process: std::process::id(),
        fd: file.as_raw_fd().cast_unsigned(),
        inode,
        len: len as u64,
        card: card as u32,
    }))
}

/// Opens what a handle names, if it is still there.
fn open(contents: &Contents) -> Result<Store, Code> {
    let path = format!("/proc/{}/fd/{}", contents.process, contents.fd);
    let file = File::options().read(true).write(true).open(path).map_err(|_| INVALID_HANDLE)?;
    let metadata = file.metadata().map_err(|_| INVALID_HANDLE)?;
    if metadata.ino() != contents.inode || metadata.len() < contents.len {
        return Err(INVALID_HANDLE);
    }
    Store::of(file.into(), contents.len as usize).map_err(|_| MAP_FAILED)
}

pub(crate) fn export_memory(locked: &mut Locked, handle: Ptr<IpcHandle>, address: u64) -> Answer {
    locked.usable()?;
    let (_, allocation) = locked.allocation_at(address).ok_or(INVALID_VALUE)?;
    if allocation.kind != Kind::Device {
        return Err(INVALID_VALUE);
    }
    let card = locked.devices[allocation.device].card;
    handle.write(describe(allocation.store.file(), allocation.len, card)?)
}

pub(crate) fn open_memory(
    locked: &mut Locked,
    address: Ptr<u64>,
    handle: IpcHandle,
    flags: c_uint,
) -> Answer {
    let device = locked.usable()?;
    if flags != 1 {
        return Err(INVALID_VALUE);
    }
    let handle = handle.reserved.map(i8::cast_unsigned);
    let contents = decode(&handle)?;
    if contents.process == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    for (base, allocation) in &mut locked.allocations {
        if let Kind::Imported { opened, handle: of } = &mut allocation.kind
            && *of == handle
            && allocation.device == device
        {
            *opened += 1;
            return address.write(*base);
        }
    }
    if locked.devices[device].card != contents.card as usize {
        return Err(INVALID_DEVICE);
    }
    let store = Arc::new(open(&contents)?);
    let at = locked.add(device, Kind::Imported { opened: 1, handle }, store)?;
    address.write(at)
}

pub(crate) fn close_memory(locked: &mut Locked, address: u64) -> Answer {
    locked.current()?;
    let Some(allocation) = locked.allocations.get_mut(&address) else { return Err(INVALID_VALUE) };
    let Kind::Imported { opened, .. } = &mut allocation.kind else { return Err(INVALID_VALUE) };
    *opened -= 1;
    if *opened > 0 {
        return Ok(());
    }
    if let Some(allocation) = locked.allocations.remove(&address) {
        locked.forget(allocation.id, "memory of another process");
        locked.devices[allocation.device].space.hide(address, allocation.len);
    }
    Ok(())
}

pub(crate) fn export_event(
    locked: &mut Locked,
    handle: Ptr<IpcHandle>,
    event: Ptr<c_void>,
) -> Answer {
    locked.usable()?;
    let call = locked.call;
    let event = locked.event(call, event.address())?;
    let device = event.device;
    let Some(page) = &event.state.page else { return Err(INVALID_HANDLE) };
    let described = describe(page.file(), page.len(), device)?;
    handle.write(described)
}

pub(crate) fn open_event(
    locked: &mut Locked,
    event: Ptr<*mut c_void>,
    handle: IpcHandle,
) -> Answer {
    let device = locked.usable()?;
    let page = open(&decode(&handle.reserved.map(i8::cast_unsigned))?)?;
    let key = locked.handle();
    event.write(std::ptr::without_provenance_mut(key as usize))?;
    let state = Arc::new(EventState::new(Some(page)));
    locked.events.insert(key, Event { device, state });
    Ok(())
}

pub(crate) fn range_handle(
    _: &mut Locked,
    _: Ptr<c_void>,
    _: u64,
    _: usize,
    _: c_int,
    _: c_ulonglong,
) -> Answer {
    Err(NOT_SUPPORTED)
}
