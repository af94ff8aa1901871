//! Peers by a name that has several addresses.

use std::time::Duration;

use mc_testkit::{Input, Program, SilentAddress, role, where_a_name_has_two_addresses};
use mc_transport::{
    Access, Link, Memory, Operation, RemoteSpan, TcpConfig, TcpTransport, Transport,
};
use mc_types::{Endpoint, Extent};

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_peer_is_reached_though_the_first_address_of_its_name_swallows_packets() {
    const PLAYER: &str =
        "names::a_peer_is_reached_though_the_first_address_of_its_name_swallows_packets";
    if role::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(read_by_name());
        return role::say("read");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "reader") else {
        eprintln!("NOT RUN: a name with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "read");
}

async fn read_by_name() {
    let silent = SilentAddress::take();
    let node = TcpTransport::start(TcpConfig::listening(silent.other())).await.unwrap();
    let memory = Memory::allocate(5).unwrap();
    memory.whole().copy_from(0, b"bytes").unwrap();
    let region = node.register(&memory, Access::Read).unwrap();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let endpoint = Endpoint::new("tcp", &silent.name()).unwrap();
    let link = client.connect(&endpoint).await.unwrap();
    let target = Memory::allocate(5).unwrap();
    let span = RemoteSpan::new(region.key(), Extent::new(0, 5).unwrap());
    link.submit(vec![Operation::read(span, target.whole())]).await.remove(0).unwrap();
    assert_eq!(target.whole().to_vec(), b"bytes");
}
