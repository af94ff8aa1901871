//! Masters by a name that has several addresses.

use mc_rpc::{ClientConfig, MasterClient, ServerConfig, blocking};
use mc_testkit::{Input, Program, SilentAddress, role, where_a_name_has_two_addresses};

use crate::common::{DEADLINE, key, master, serve_at};

#[test]
fn a_master_is_reached_though_the_first_address_of_its_name_swallows_packets() {
    const PLAYER: &str =
        "names::a_master_is_reached_though_the_first_address_of_its_name_swallows_packets";
    if role::role().is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let silent = SilentAddress::take();
        let other = silent.other().to_string();
        let _server = runtime.block_on(serve_at(&other, &master(), ServerConfig::default()));
        runtime.block_on(async {
            let client = MasterClient::connect(&silent.name(), ClientConfig::default()).await;
            assert!(!client.unwrap().exist(key("k")).await.unwrap());
        });
        role::say("async");
        let client = blocking::MasterClient::connect(&silent.name(), ClientConfig::default());
        assert!(!client.unwrap().exist(key("k")).unwrap());
        return role::say("blocking");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "client") else {
        eprintln!("NOT RUN: a name with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(DEADLINE, &mut command, Input::None);
    assert_eq!(program.hear(), "async");
    assert_eq!(program.hear(), "blocking");
}
