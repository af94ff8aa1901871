//! Node agents by a name that has several addresses.

use mc_standalone::DummyClient;
use mc_store::{ByteSize, ObjectStore as _};
use mc_testkit::{Input, Program, SilentAddress, role, where_a_name_has_two_addresses};

use crate::support::{DEADLINE, Host};

#[test]
fn a_node_agent_is_reached_though_the_first_address_of_its_name_swallows_packets() {
    const PLAYER: &str =
        "names::a_node_agent_is_reached_though_the_first_address_of_its_name_swallows_packets";
    if role::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(put_by_name());
        return role::say("put");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "application") else {
        eprintln!("NOT RUN: a name with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "put");
}

async fn put_by_name() {
    let silent = SilentAddress::take();
    let other = silent.other();
    let host = Host::with(ByteSize::mib(8), |server| server.listen(other)).await;
    let app = DummyClient::builder().server(silent.name()).local_buffer(ByteSize::mib(1));
    let app = app.connect().await.unwrap();
    app.put("key", "value".into()).await.unwrap();
    assert_eq!(app.get("key").await.unwrap(), "value");
    drop(app);
    host.until_idle().await;
}
