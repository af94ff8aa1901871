//! Facts that only system calls tell.

use std::io;
use std::net::IpAddr;

/// The addresses of all interfaces, by the interface's name.
#[cfg(target_os = "linux")]
pub(super) fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let list = AddressList::read()?;
    let mut addresses = Vec::new();
    let mut next = list.first;
    // SAFETY: the pointer is null, or names a record of the list, which lives.
    while let Some(record) = unsafe { next.as_ref() } {
        next = record.ifa_next;
        if let Some(address) = address_of(record) {
            // SAFETY: every record has a name that ends with a zero byte.
            let name = unsafe { std::ffi::CStr::from_ptr(record.ifa_name) };
            addresses.push((name.to_string_lossy().into_owned(), address));
        }
    }
    Ok(addresses)
}

/// The list that `getifaddrs` allocated.
#[cfg(target_os = "linux")]
struct AddressList {
    first: *mut libc::ifaddrs,
}

#[cfg(target_os = "linux")]
impl AddressList {
    fn read() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the call stores a pointer where it is told.
        let done = unsafe { libc::getifaddrs(&raw mut first) };
        if done == 0 { Ok(Self { first }) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: `getifaddrs` made the list, and nothing refers to it any more.
        unsafe { libc::freeifaddrs(self.first) };
    }
}

/// The internet address of a record; `None` when it is of another family.
#[cfg(target_os = "linux")]
fn address_of(record: &libc::ifaddrs) -> Option<IpAddr> {
    let address = record.ifa_addr;
    // SAFETY: the pointer is null, or names an address, which begins with its
    // family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is such a structure, and reading
            // it needs no alignment.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// The addresses of no interface: without `/sys` there is none to have them.
#[cfg(not(target_os = "linux"))]
pub(super) fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    Ok(Vec::new())
}

/// The processor that runs this thread now.
#[cfg(target_os = "linux")]
pub(super) fn current_cpu() -> Option<u32> {
    // SAFETY: the call only asks for a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The processor that runs this thread now, which this system does not tell.
#[cfg(not(target_os = "linux"))]
pub(super) fn current_cpu() -> Option<u32> {
    None
}
