//! A client whose bytes take a transport of your own: here nodes of one process, found by name.
//!
//! `cargo run -p mc-store --example own_transport`

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use mc_store::{ByteSize, Client, Master, NodeConfig};
use mc_transport::{
    Access, Capabilities, Completions, ConnectError, Digest, Link, Memory, MemorySlice, Operation,
    Outcome, Region, RegionTable, RegisterError, Source, Sums, Tickets, TransferError, Transferred,
    Transport,
};
use mc_types::Endpoint;

const SCHEME: &str = "village";

/// The nodes that find each other, with the memory that each has opened.
#[derive(Clone, Default)]
struct Village(Arc<Mutex<HashMap<String, RegionTable>>>);

impl Village {
    fn node(&self, name: &str) -> Result<VillageNode, Box<dyn Error>> {
        let (endpoint, regions) = (Endpoint::new(SCHEME, name)?, RegionTable::new());
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(name.to_owned(), regions.clone());
        Ok(VillageNode { village: self.clone(), endpoint, regions })
    }

    fn find(&self, name: &str) -> Option<RegionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

struct VillageNode {
    village: Village,
    endpoint: Endpoint,
    regions: RegionTable,
}

impl Transport for VillageNode {
    type Link = Path;

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Some(&self.endpoint)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.regions.register(memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.regions.register_with_tickets(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<Path>, ConnectError> {
        let found = self.village.find(endpoint.address());
        found.map(|regions| Arc::new(Path { regions })).ok_or_else(|| ConnectError::Unreachable {
            endpoint: endpoint.clone(),
            source: Arc::new(std::io::ErrorKind::NotFound.into()),
        })
    }
}

/// A way to one node.
struct Path {
    regions: RegionTable,
}

impl Link for Path {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let regions = self.regions.clone();
        Completions::inline(batch, move |operation| carry_out(&regions, operation))
    }

    fn is_healthy(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(u64::MAX);
        capabilities.tickets = true;
        capabilities
    }
}

/// Carries out a peer's operation at the owner of the memory: verifies it, and copies.
fn carry_out(regions: &RegionTable, operation: &Operation) -> Outcome {
    operation.validate()?;
    let (span, extent) = (operation.remote(), operation.remote().extent);
    span.check_time()?;
    let (offset, len, access) = (extent.offset(), extent.len(), operation.access());
    let admitted = regions.admit(span.key, offset, len, access, span.ticket.as_ref())?;
    let mut rest = pieces(admitted.memory());
    let mut digest = Digest::new();
    match operation {
        Operation::Read { into, .. } => {
            for piece in into.iter() {
                rest(piece.len())?.copy_to_slice(piece).map_err(|_| uneven())?;
                digest.update_memory(piece);
            }
        }
        Operation::Write { from, .. } => {
            for source in from.iter() {
                let target = rest(source.len())?;
                match source {
                    Source::Bytes(bytes) => target.copy_from(0, bytes).map_err(|_| uneven())?,
                    Source::Memory(slice) => slice.copy_to_slice(&target).map_err(|_| uneven())?,
                }
                digest.update_memory(&target);
            }
        }
    }
    let asked = operation.sums() == Sums::Whole;
    Ok(Transferred::new(asked.then(|| digest.finish())))
}

/// Hands the memory out from its beginning.
fn pieces(memory: &MemorySlice) -> impl FnMut(usize) -> Result<MemorySlice, TransferError> {
    let mut at = 0;
    move |len| {
        at += len;
        memory.part(at - len, len).ok_or_else(uneven)
    }
}

/// Both sides of a valid operation have the same length.
fn uneven() -> TransferError {
    TransferError::Unsupported { what: "pieces longer than the operation" }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let master = Master::builder().start().await?;
    let village = Village::default();
    let join = |name: &str| -> Result<_, Box<dyn Error>> {
        let node = NodeConfig::default().with_transport(Arc::new(village.node(name)?));
        Ok(Client::builder().master(master.local_addr().to_string()).node(node))
    };
    let owner = join("owner")?.segment_size(ByteSize::mib(1)).connect().await?;
    let reader = join("reader")?.connect().await?;
    owner.put("block", b"hello".to_vec()).await?;
    let value = reader.get("block").await?;
    assert_eq!(&value[..], b"hello");
    let path =
        reader.metrics().paths.into_iter().find(|path| path.read > 0).ok_or("it was read")?;
    println!("{} bytes read from {}, path {:?}", path.read, owner_address(&owner)?, path.path);
    reader.shutdown().await;
    owner.shutdown().await;
    master.shutdown().await;
    Ok(())
}

fn owner_address(owner: &Client) -> Result<String, Box<dyn Error>> {
    Ok(owner.endpoint().ok_or("it has a segment")?.to_string())
}
