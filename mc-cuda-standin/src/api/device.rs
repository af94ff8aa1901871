//! The GPUs of this host.

use std::ffi::{c_char, c_int};

use crate::arguments::Ptr;
use crate::codes::{Answer, INVALID_VALUE};
use crate::driver::Locked;

/// `CU_DEVICE_ATTRIBUTE_*`.
mod attribute {
    pub(super) const MAX_PITCH: i32 = 11;
    pub(super) const PCI_BUS_ID: i32 = 33;
    pub(super) const PCI_DEVICE_ID: i32 = 34;
    pub(super) const ASYNC_ENGINE_COUNT: i32 = 40;
    pub(super) const UNIFIED_ADDRESSING: i32 = 41;
    pub(super) const PCI_DOMAIN_ID: i32 = 50;
    pub(super) const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub(super) const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub(super) const VIRTUAL_MEMORY_MANAGEMENT: i32 = 102;
    pub(super) const POSIX_DESCRIPTORS: i32 = 103;
}

pub(crate) fn count(locked: &mut Locked, count: Ptr<c_int>) -> Answer {
    count.write(locked.devices.len() as c_int)
}

pub(crate) fn get(locked: &mut Locked, device: Ptr<c_int>, ordinal: c_int) -> Answer {
    locked.device(ordinal)?;
    device.write(ordinal)
}

/// Writes a text with its final zero, cut to `len` bytes.
pub(super) fn write_text(to: Ptr<c_char>, len: c_int, text: &str) -> Answer {
    let room = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
    let to = to.cast::<u8>();
    let Some(room) = room.checked_sub(1) else { return Err(INVALID_VALUE) };
    let text = &text.as_bytes()[..text.len().min(room)];
    for (at, byte) in text.iter().chain(&[0]).enumerate() {
        to.element(at).write(*byte)?;
    }
    Ok(())
}

pub(crate) fn name(locked: &mut Locked, name: Ptr<c_char>, len: c_int, device: c_int) -> Answer {
    let card = locked.device(device)?.card;
    write_text(name, len, &format!("Stand-in GPU {card}"))
}

pub(crate) fn pci_bus_id(
    locked: &mut Locked,
    text: Ptr<c_char>,
    len: c_int,
    device: c_int,
) -> Answer {
    let card = locked.device(device)?.card;
    write_text(text, len, &format!("0000:{:02X}:00.0", card + 1))
}

/// The bytes of a card's UUID.
pub(crate) fn uuid_of(card: usize) -> [u8; 16] {
    let mut uuid = *b"mc-cuda-standin\0";
    uuid[15] = card as u8;
    uuid
}

pub(crate) fn uuid(locked: &mut Locked, uuid: Ptr<[u8; 16]>, device: c_int) -> Answer {
    uuid.write(uuid_of(locked.device(device)?.card))
}

pub(crate) fn total_memory(locked: &mut Locked, bytes: Ptr<usize>, device: c_int) -> Answer {
    locked.device(device)?;
    bytes.write(locked.settings.memory)
}

pub(crate) fn attribute(
    locked: &mut Locked,
    value: Ptr<c_int>,
    attribute: c_int,
    device: c_int,
) -> Answer {
    let card = locked.device(device)?.card;
    value.write(match attribute {
        attribute::MAX_PITCH => c_int::MAX,
        attribute::PCI_BUS_ID => card as c_int + 1,
        attribute::PCI_DEVICE_ID | attribute::PCI_DOMAIN_ID => 0,
        attribute::ASYNC_ENGINE_COUNT => 2,
        attribute::COMPUTE_CAPABILITY_MAJOR => 9,
        attribute::COMPUTE_CAPABILITY_MINOR => 0,
        attribute::UNIFIED_ADDRESSING
        | attribute::VIRTUAL_MEMORY_MANAGEMENT
        | attribute::POSIX_DESCRIPTORS => 1,
        _ => return Err(INVALID_VALUE),
    })
}
