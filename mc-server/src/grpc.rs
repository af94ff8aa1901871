//! gRPC on the ports of masters.

use mc_rpc::Server;

/// The same server, which answers over gRPC, too, where this crate is built with it.
pub(crate) fn with_grpc(server: Server) -> Server {
    #[cfg(feature = "grpc")]
    let server = server.with_guest(std::sync::Arc::new(mc_rpc_grpc::Grpc::new()));
    server
}
