//! The master's calls, each described once; a file for each family.

mod admin;
mod disks;
mod drains;
mod failures;
mod files;
mod leases;
mod patterns;
mod promotion;
mod puts;
mod reads;
mod removal;
mod segments;
mod tasks;
mod tenants;
mod transfers;
mod upserts;

pub use disks::{FoundItem, OffloadItem};
pub use files::EvictDiskItem;
pub use puts::{PutRevokeItem, PutStartItem};

/// Makes a method of every client of each call that is described: its documentation, its
/// arguments and what it answers; then its number, what writes its request, and what reads
/// the answer.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $answer:ty {
            $method:ident,
            $write:expr,
            $read:expr,
        }
    )*) => {
        impl $crate::MasterClient {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = "[`RpcError`]: crate::RpcError"]
                #[doc = ""]
                #[doc = "[`RpcError`]: crate::RpcError"]
                pub async fn $name(
                    &self
                    $(, $argument: $type)*
                ) -> Result<$answer, $crate::RpcError> {
                    self.call($crate::Method::$method, $write, $read).await
                }
            )*
        }

        impl $crate::blocking::MasterClient {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = "[`RpcError`]: crate::RpcError"]
                pub fn $name(
                    &self
                    $(, $argument: $type)*
                ) -> Result<$answer, $crate::RpcError> {
                    self.call($crate::Method::$method, $write, $read)
                }
            )*
        }
    };
}
use calls;
