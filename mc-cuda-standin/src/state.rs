//! Everything that the driver knows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;
use std::sync::Arc;

use crate::codes::{
    Answer, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE,
    OUT_OF_MEMORY,
};
use crate::settings::Settings;
use crate::store::{AddressSpace, Store, pages};
use crate::stream::{Action, End, Event, Op, Stream, StreamKind};

/// A GPU.
pub(crate) struct Device {
    /// The number of the card, whatever ordinal it has.
    pub(crate) card: usize,
    /// The handle of the primary context.
    pub(crate) context: u64,
    pub(crate) retained: usize,
    /// The error that the context has died of.
    pub(crate) lost: Option<Code>,
    pub(crate) space: AddressSpace,
    pub(crate) legacy: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Managed,
    /// Physical memory of the virtual-memory functions.
    Mapped,
    /// Memory of another process.
    Imported {
        opened: usize,
        handle: [u8; 64],
    },
}

/// Memory that has a device address.
pub(crate) struct Allocation {
    /// Never used again.
    pub(crate) id: u64,
    pub(crate) device: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) store: Arc<Store>,
    pub(crate) offset: usize,
    pub(crate) is_accessible: bool,
}

/// Pinned memory of the host.
pub(crate) struct HostRange {
    pub(crate) id: u64,
    pub(crate) len: usize,
    pub(crate) device: usize,
    /// The flags of `cuMemHostAlloc`; `None` for memory that was registered.
    pub(crate) allocated: Option<u32>,
    pub(crate) store: Option<Store>,
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) hosts: BTreeMap<u64, HostRange>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) physical: HashMap<u64, (usize, Arc<Store>)>,
    pub(crate) reservations: BTreeMap<u64, usize>,
    pub(crate) thread_streams: HashMap<(u64, usize), u64>,
    /// The ids of allocations and pinned ranges that are there, with the queued work that uses them.
    pub(crate) used: HashMap<u64, usize>,
    pub(crate) violations: Vec<String>,
    pub(crate) calls: HashMap<&'static str, u64>,
    /// Whether the next work that is queued hangs.
    pub(crate) hang_next: bool,
    pub(crate) is_scheduled: bool,
    next: u64,
    seq: u64,
}

impl State {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            devices: Vec::new(),
            allocations: BTreeMap::new(),
            hosts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            physical: HashMap::new(),
            reservations: BTreeMap::new(),
            thread_streams: HashMap::new(),
            used: HashMap::new(),
            violations: Vec::new(),
            calls: HashMap::new(),
            hang_next: false,
            is_scheduled: false,
            next: 1,
            seq: 0,
        }
    }

    /// Makes the GPUs.
    pub(crate) fn start(&mut self) -> Answer {
        let memory = self.settings.memory;
        if self.settings.visible.is_empty() {
            return Err(NO_DEVICE);
        }
        for (ordinal, card) in self.settings.visible.clone().into_iter().enumerate() {
            let len = pages(memory).saturating_mul(4).max(64 << 20);
            let space = AddressSpace::reserve(len).map_err(|_| OUT_OF_MEMORY)?;
            let (context, legacy) = (self.handle(), self.handle());
            self.streams.insert(legacy, Stream::new(ordinal, StreamKind::Legacy, false));
            self.devices.push(Device { card, context, retained: 0, lost: None, space, legacy });
        }
        Ok(())
    }

    /// A number that was not used yet.
    pub(crate) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A handle that was not used yet, and is no address.
    pub(crate) fn handle(&mut self) -> u64 {
        0xcada_0000_0000 + self.id() * 16
    }

    pub(crate) fn violate(&mut self, text: impl Into<String>) {
        let text = text.into();
        eprintln!("mc-cuda-standin: violation: {text}");
        self.violations.push(text);
    }

    pub(crate) fn device(&mut self, ordinal: c_int) -> Result<&mut Device, Code> {
        let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        self.devices.get_mut(ordinal).ok_or(INVALID_DEVICE)
    }

    /// The ordinal of the device of a context.
    pub(crate) fn device_of(&self, context: u64) -> Result<usize, Code> {
        let is_it = |device: &Device| device.context == context && device.retained > 0;
        self.devices.iter().position(is_it).ok_or(INVALID_CONTEXT)
    }

    /// The error of a dead context.
    pub(crate) fn check_lost(&self, device: usize) -> Answer {
        self.devices[device].lost.map_or(Ok(()), Err)
    }

    /// Bytes of a device that are in use.
    pub(crate) fn used_memory(&self, device: usize) -> usize {
        let is_ours = |allocation: &&Allocation| {
            allocation.device == device && matches!(allocation.kind, Kind::Device | Kind::Managed)
        };
        let allocated = self.allocations.values().filter(is_ours);
        let physical = self.physical.values().filter(|(of, _)| *of == device);
        allocated.map(|allocation| pages(allocation.len)).sum::<usize>()
            + physical.map(|(_, store)| store.len()).sum::<usize>()
    }

    /// The lowest free range of a device's addresses: one that was freed is soon used again.
    pub(crate) fn free_address(&self, device: usize, len: usize) -> Result<u64, Code> {
        let space = &self.devices[device].space;
        let (mut at, end) = (space.base, space.base + space.len as u64);
        for (base, allocation) in self.allocations.range(space.base..end) {
            if base - at >= pages(len) as u64 {
                break;
            }
            at = base + pages(allocation.len) as u64;
        }
        if end.saturating_sub(at) < pages(len) as u64 { Err(OUT_OF_MEMORY) } else { Ok(at) }
    }

    /// Adds an allocation, which gets the lowest free address.
    pub(crate) fn add(
        &mut self,
        device: usize,
        kind: Kind,
        store: Arc<Store>,
    ) -> Result<u64, Code> {
        let len = store.len();
        let at = self.free_address(device, len)?;
        let is_host = kind == Kind::Managed;
        self.devices[device].space.show(at, &store, is_host).map_err(|_| OUT_OF_MEMORY)?;
        let id = self.id();
        self.used.insert(id, 0);
        let allocation =
            Allocation { id, device, len, kind, store, offset: 0, is_accessible: true };
        self.allocations.insert(at, allocation);
        Ok(at)
    }

    /// Removes what queued work should not use any more.
    pub(crate) fn forget(&mut self, id: u64, what: &str) {
        if self.used.remove(&id).is_some_and(|pending| pending > 0) {
            self.violate(format!("{what} was freed while queued work used it"));
        }
    }

    pub(crate) fn allocation_at(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (base, allocation) = self.allocations.range(..=address).next_back()?;
        (address - base < allocation.len as u64).then_some((*base, allocation))
    }

    pub(crate) fn host_at(&self, address: u64) -> Option<(u64, &HostRange)> {
        let (base, range) = self.hosts.range(..=address).next_back()?;
        (address - base < range.len as u64).then_some((*base, range))
    }

    /// Finds what is behind an address that a copy is given: memory of a GPU, or pinned memory. `None` for other
    /// memory of the host.
    pub(crate) fn resolve(
        &mut self,
        call: &str,
        address: u64,
        len: usize,
    ) -> Result<Option<(End, u64)>, Code> {
        let found = if let Some((base, allocation)) = self.allocation_at(address) {
            let at = (address - base) as usize;
            let end = if allocation.kind == Kind::Managed {
                End::Host(address)
            } else {
                let offset = allocation.offset + at;
                End::Store { store: Arc::clone(&allocation.store), offset }
            };
            Some((end, allocation.id, allocation.len - at, allocation.is_accessible))
        } else {
            self.host_at(address).map(|(base, range)| {
                let room = range.len - (address - base) as usize;
                (End::Host(address), range.id, room, true)
            })
        };
        let Some((end, id, room, is_accessible)) = found else { return Ok(None) };
        if len > room {
            self.violate(format!("{call}: {len} bytes at {address:#x} leave their allocation"));
            return Err(INVALID_VALUE);
        }
        if !is_accessible {
            self.violate(format!("{call}: {address:#x} was mapped and not made accessible"));
            return Err(INVALID_VALUE);
        }
        Ok(Some((end, id)))
    }

    /// The key of a stream that a program names.
    pub(crate) fn stream(
        &mut self,
        call: &str,
        handle: u64,
        device: usize,
        thread: u64,
    ) -> Result<u64, Code> {
        match handle {
            0 | 1 => {
                if self.settings.forbid_legacy {
                    self.violate(format!("{call} uses the legacy stream"));
                }
                Ok(self.devices[device].legacy)
            }
            2 => {
                if let Some(key) = self.thread_streams.get(&(thread, device)) {
                    return Ok(*key);
                }
                let key = self.handle();
                self.streams.insert(key, Stream::new(device, StreamKind::Blocking, false));
                self.thread_streams.insert((thread, device), key);
                Ok(key)
            }
            _ => match self.streams.get(&handle) {
                Some(stream) if stream.is_own && !stream.is_destroyed => {
                    if stream.device == device { Ok(handle) } else { Err(INVALID_HANDLE) }
                }
                _ => {
                    self.violate(format!("{call}: {handle:#x} is no stream, or was destroyed"));
                    Err(INVALID_HANDLE)
                }
            },
        }
    }

    pub(crate) fn event(&mut self, call: &str, handle: u64) -> Result<&Event, Code> {
        if !self.events.contains_key(&handle) {
            self.violate(format!("{call}: {handle:#x} is no event, or was destroyed"));
        }
        self.events.get(&handle).ok_or(INVALID_HANDLE)
    }

    /// Queues work, and returns its number in the stream.
    pub(crate) fn enqueue(
        &mut self,
        key: u64,
        action: Action,
        latency: std::time::Duration,
        uses: HashSet<u64>,
    ) -> u64 {
        self.seq += 1;
        for id in &uses {
            *self.used.entry(*id).or_default() += 1;
        }
        let hangs = std::mem::take(&mut self.hang_next);
        let uses = uses.into_iter().collect();
        let op = Op { seq: self.seq, action, latency, due: None, hangs, uses };
        let Some(stream) = self.streams.get_mut(&key) else { return 0 };
        stream.queue.push_back(op);
        stream.issued += 1;
        stream.issued
    }
}
