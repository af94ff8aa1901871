//! A node says in its log which address it tells peers when it does not answer there.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::fmt::{Debug, Write as _};
use std::io::Read as _;
use std::time::{Duration, Instant};

use mc_cluster_testkit::node;
use mc_store::{ByteSize, Master};
use mc_testkit::role::{self, say};
use mc_testkit::{Input, Program};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const DEADLINE: Duration = Duration::from_secs(60);

/// Tells the parent of each warning, on one line.
struct Warnings;

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        say(format_args!("warning {}", words.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The node's process; a test that returns at once in a run of all of them.
#[test]
fn process() {
    let Some(text) = role::role() else { return };
    let (advertised, master) = text.split_once(' ').unwrap();
    tracing::subscriber::set_global_default(Warnings).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let node = node(&master).advertise(advertised.parse().unwrap());
        let node = node.segment_size(ByteSize::mib(4)).connect().await.unwrap();
        say("ready");
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        let _ = ended.await;
        node.shutdown().await;
        say("over");
    });
}

/// The warnings about its own data port of a node that is told to advertise this. It ends after the
/// first.
fn warnings(master: &Master, advertised: &str) -> Vec<String> {
    let text = format!("{advertised} {}", master.local_addr());
    let mut command = role::command("own_address::process", &text);
    let mut node = Program::start(DEADLINE, &mut command, Input::Open);
    let begun = Instant::now();
    let mut warnings = Vec::new();
    loop {
        let heard = node.hear();
        if heard.contains("does not reach its own data port") {
            eprintln!("after {:.1?}: {heard}", begun.elapsed());
            warnings.push(heard);
            node.close_input();
        } else if heard == "over" {
            return warnings;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_which_address_nobody_reaches() {
    let master = Master::builder().start().await.unwrap();
    // Reserved for documentation, and a host of this machine where nobody listens.
    for advertised in ["192.0.2.1", "127.0.0.3"] {
        let begun = Instant::now();
        let said = tokio::task::block_in_place(|| warnings(&master, advertised));
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        assert_eq!(said.len(), 1, "{said:?}");
        let endpoint = format!("tcp://{advertised}:");
        assert!(said[0].contains(&endpoint) && said[0].contains("--host"), "{said:?}");
    }
    master.shutdown().await;
}
