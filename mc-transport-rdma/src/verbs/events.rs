//! Events of a device that belong to no request.

use std::mem::MaybeUninit;

use rdma_sys::{ibv_async_event, ibv_event_type};

use super::Device;

/// An event that the transport acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum DeviceEvent {
    /// The port with this number carries data again.
    PortActive(u8),
    /// The port with this number carries no data any more.
    PortDown(u8),
    /// The device works no more, or was removed.
    Fatal,
    /// An event that requests report by themselves.
    Other(u32),
}

impl Device {
    /// Takes the next event; `None` when there is none now.
    pub(in super::super) fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the call fills the event that it is given. The
        // descriptor does not block.
        let taken = unsafe {
            (self.library.ibv_get_async_event)(self.context.as_ptr(), event.as_mut_ptr())
        };
        if taken != 0 {
            return None;
        }
        let raw = event.as_mut_ptr();
        // The kernel may be newer than this enumeration, so its number is read as a number.
        // SAFETY: the event was filled, and no reference to the field is made.
        let field = unsafe { &raw const (*raw).event_type };
        // SAFETY: the field has the size of a C enumeration.
        let number = unsafe { field.cast::<u32>().read() };
        const ACTIVE: u32 = ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
        const DOWN: u32 = ibv_event_type::IBV_EVENT_PORT_ERR as u32;
        const FATAL: u32 = ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
        let port = || {
            // SAFETY: the event was filled.
            let element = unsafe { &(*raw).element };
            // SAFETY: events of ports carry the port's number.
            u8::try_from(unsafe { element.port_num }).unwrap_or(0)
        };
        let seen = match number {
            ACTIVE => DeviceEvent::PortActive(port()),
            DOWN => DeviceEvent::PortDown(port()),
            FATAL => DeviceEvent::Fatal,
            other => DeviceEvent::Other(other),
        };
        // SAFETY: the event was taken above, and is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(raw) };
        Some(seen)
    }
}
