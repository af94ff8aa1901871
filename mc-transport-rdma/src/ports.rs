//! The ports that a transport uses.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_transport::topology::{Discovery, SelectedRdmaPort, Topology};

use super::config::RdmaConfig;
use super::verbs::{self, Channel, CompletionQueue, Device, PathAddress, VerbsError, devices};
use super::wire::PortOffer;

/// Ports of one transport; more are left out.
pub(super) const MAX_PORTS: usize = 16;

/// The highest service level of InfiniBand.
const MAX_SERVICE_LEVEL: u8 = 15;

/// GIDs of a port that peers are told.
pub(super) const MAX_GIDS: usize = 4;

/// Completions that a queue of the serving side may hold: it posts nothing, so there are none.
const SERVING_COMPLETIONS: u32 = 16;

/// The devices and ports of a transport, the best port first.
pub(super) struct Ports {
    pub(super) devices: Vec<OpenDevice>,
    pub(super) ports: Vec<Port>,
}

/// A device that is open, and what its queue pairs share.
pub(super) struct OpenDevice {
    pub(super) device: Arc<Device>,
    pub(super) channel: Arc<Channel>,
    /// For queue pairs that only serve peers.
    pub(super) serving: Arc<CompletionQueue>,
    /// Cleared when the device failed for good.
    works: AtomicBool,
}

/// One port.
pub(super) struct Port {
    /// The place of its device in [`Ports::devices`].
    pub(super) device: usize,
    pub(super) number: u8,
    /// Its GIDs by index, those to try first at the front.
    pub(super) gids: Vec<(u8, [u8; 16])>,
    is_active: AtomicBool,
}

/// Why no port can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortsError {
    /// libibverbs, or a device.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The devices asked for cannot be used.
    #[error(transparent)]
    Topology(#[from] mc_transport::topology::TopologyError),
    /// No port has an address.
    #[error("no RDMA port has a GID: give its network interface an address and bring it up")]
    NoGid,
    /// No port has an address at [`RdmaConfig::gid_index`].
    #[error(
        "no RDMA port has a GID at index {index}: see `show_gids` for those that there are, or name \
         none, so that one is chosen"
    )]
    NoGidAt {
        /// The index.
        index: u8,
    },
    /// No port has a partition key at [`RdmaConfig::pkey_index`].
    #[error(
        "RDMA port {port} has {count} partition keys, so that none is at index {index}: see \
         /sys/class/infiniband/*/ports/*/pkeys"
    )]
    NoPartition {
        /// The last port that was looked at.
        port: String,
        /// Entries of its table.
        count: u16,
        /// The index.
        index: u16,
    },
    /// [`RdmaConfig::service_level`] is above 15.
    #[error("the RDMA service level is {given}; it must be from 0 to 15")]
    ServiceLevel {
        /// The level.
        given: u8,
    },
}

impl Ports {
    /// Opens the devices that the settings name, or all; those near their NUMA node first.
    pub(super) fn open(config: &RdmaConfig) -> Result<Self, PortsError> {
        if config.service_level > MAX_SERVICE_LEVEL {
            return Err(PortsError::ServiceLevel { given: config.service_level });
        }
        // The library's answer says most when there is none.
        devices()?;
        let topology = Topology::read()?;
        let mut all = Self { devices: Vec::new(), ports: Vec::new() };
        let mut discovery = Discovery::of_devices(&config.devices);
        discovery.near = config.near_numa_node;
        let selected = discovery.select_rdma(&topology)?;
        let mut obstacle = PortsError::NoGid;
        for port in selected.into_iter().take(MAX_PORTS) {
            let number = port.port.number;
            let place = all.device(&port.device.name, config.relaxed_ordering)?;
            let opened = &all.devices[place].device;
            let state = opened.port(number)?;
            match usable_gids(opened, &port, &state, config) {
                Ok(gids) => {
                    let is_active = AtomicBool::new(state.is_active);
                    all.ports.push(Port { device: place, number, gids, is_active });
                }
                Err(error) => {
                    tracing::warn!(%port, error = &error as &dyn Error, "an RDMA port is not used");
                    obstacle = error;
                }
            }
        }
        if all.ports.is_empty() { Err(obstacle) } else { Ok(all) }
    }

    fn device(&mut self, name: &str, relaxed_ordering: bool) -> Result<usize, VerbsError> {
        if let Some(known) = self.devices.iter().position(|one| **one.device.name() == *name) {
            return Ok(known);
        }
        let device = Device::open(name, relaxed_ordering)?;
        let channel = Channel::new(&device)?;
        let serving = CompletionQueue::new(&device, SERVING_COMPLETIONS, None)?;
        self.devices.push(OpenDevice { device, channel, serving, works: AtomicBool::new(true) });
        Ok(self.devices.len() - 1)
    }

    /// Returns the ports that carry data now, as peers are offered them.
    pub(super) fn offers(&self) -> Vec<PortOffer> {
        let offers = self.ports.iter().enumerate().filter_map(|(index, port)| {
            let state = self.device_of(port).device.port(port.number).ok()?;
            let limits = self.device_of(port).device.limits();
            (state.is_active && self.is_usable(port)).then(|| PortOffer {
                index: index as u8,
                device: port.device as u8,
                is_infiniband: state.is_infiniband,
                mtu: state.mtu,
                lid: state.lid,
                reads_in: limits.reads_in,
                reads_out: limits.reads_out,
                message: state.message,
                gids: port.gids.iter().map(|&(_, gid)| gid).collect(),
            })
        });
        offers.collect()
    }

    pub(super) fn device_of(&self, port: &Port) -> &OpenDevice {
        &self.devices[port.device]
    }

    pub(super) fn is_usable(&self, port: &Port) -> bool {
        port.is_active.load(Ordering::Relaxed) && self.device_of(port).works.load(Ordering::Relaxed)
    }

    /// Notes that a port of a device went up or down; returns the places of the ports.
    pub(super) fn set_active(&self, device: usize, number: u8, is_active: bool) -> Vec<usize> {
        let places = (0..self.ports.len()).filter(|&place| {
            self.ports[place].device == device && self.ports[place].number == number
        });
        let places: Vec<usize> = places.collect();
        for &place in &places {
            self.ports[place].is_active.store(is_active, Ordering::Relaxed);
        }
        places
    }

    /// Notes that a device works no more; returns the places of its ports.
    pub(super) fn set_broken(&self, device: usize) -> Vec<usize> {
        self.devices[device].works.store(false, Ordering::Relaxed);
        (0..self.ports.len()).filter(|&place| self.ports[place].device == device).collect()
    }
}

impl Port {
    /// The address of GID `nth` of the ranked ones.
    pub(super) fn address(&self, nth: usize, lid: u16) -> PathAddress {
        PathAddress { gid: self.gids.get(nth).map_or([0; 16], |&(_, gid)| gid), lid }
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.ports.iter().map(|port| (self.device_of(port).device.name(), port.number));
        f.debug_list().entries(ports).finish()
    }
}

/// The GIDs of the ranking that the device knows by the same index, or the one that the settings
/// name. An InfiniBand port may have none, as long as none is named.
fn usable_gids(
    device: &Device,
    port: &SelectedRdmaPort,
    state: &verbs::Port,
    config: &RdmaConfig,
) -> Result<Vec<(u8, [u8; 16])>, PortsError> {
    let (number, index) = (port.port.number, config.pkey_index);
    // The first is there on every port; some devices say that their table is empty.
    if index > 0 && index >= state.partitions {
        let (port, count) = (port.to_string(), state.partitions);
        return Err(PortsError::NoPartition { port, count, index });
    }
    let known = |index: u8| Some((index, device.gid(number, index).ok()?));
    let is_used = |(_, gid): &(u8, [u8; 16])| *gid != [0; 16];
    if let Some(index) = config.gid_index {
        let gid = known(index).filter(is_used).ok_or(PortsError::NoGidAt { index })?;
        return Ok(vec![gid]);
    }
    let ranked = port.ranked_gids().into_iter().filter_map(|gid| known(gid.index));
    let gids: Vec<_> = ranked.filter(is_used).take(MAX_GIDS).collect();
    if gids.is_empty() && !state.is_infiniband { Err(PortsError::NoGid) } else { Ok(gids) }
}
