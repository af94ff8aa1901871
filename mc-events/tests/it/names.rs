//! Publishers by a name that has several addresses.

use mc_events::subscribe::{EventSubscriber, SubscriberConfig};
use mc_events::{Encoding, EventSystem, PublisherConfig};
use mc_testkit::{Input, Program, SilentAddress, role, where_a_name_has_two_addresses};

use crate::common::{LIMIT, config, replay_endpoint};

#[test]
fn a_publisher_is_reached_though_the_first_address_of_its_name_swallows_packets() {
    const PLAYER: &str =
        "names::a_publisher_is_reached_though_the_first_address_of_its_name_swallows_packets";
    if role::role().is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(subscribe_by_name());
        return role::say("subscribed");
    }
    let Some(mut command) = where_a_name_has_two_addresses(PLAYER, "subscriber") else {
        eprintln!("NOT RUN: a name with two addresses, because nothing can be mounted here");
        return;
    };
    let mut program = Program::start(2 * LIMIT, &mut command, Input::None);
    assert_eq!(program.hear(), "subscribed");
}

async fn subscribe_by_name() {
    let silent = SilentAddress::take();
    let endpoint = format!("tcp://{}", silent.other());
    let config = PublisherConfig { endpoint, ..config(Encoding::S4) };
    let events = EventSystem::start(config).await.unwrap();
    let subscriber = SubscriberConfig {
        endpoint: format!("tcp://{}", silent.name()),
        replay_endpoint: replay_endpoint(&events).to_owned(),
        ..SubscriberConfig::default()
    };
    EventSubscriber::connect(subscriber).await.unwrap();
}
