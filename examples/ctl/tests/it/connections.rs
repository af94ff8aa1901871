//! Limits of connections, as the flags say them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use mc_rpc::frame::{ClientPreface, DEFAULT_MAX_PAYLOAD, Hello, SERVER_PREFACE_LEN};
use mc_testkit::eventually_blocking;

use serde_json::Value;

use crate::support::{DEADLINE, Master, Node, ctl, get, page, run, start};

/// Places of one address; more connections than that idle.
const PLACES: usize = 8;

/// A connection that has shaken hands with a master, and asks nothing.
fn shaken(master: &Master) -> TcpStream {
    shaken_as(master, &Hello::default())
}

fn shaken_as(master: &Master, hello: &Hello) -> TcpStream {
    let mut stream = TcpStream::connect(&master.address).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    let preface = ClientPreface::with(DEFAULT_MAX_PAYLOAD, hello);
    stream.write_all(&preface).expect("a reader");
    stream.read_exact(&mut [0; SERVER_PREFACE_LEN]).expect("an answer");
    stream
}

/// The value of a figure on a page.
pub(crate) fn figure(page: &str, name: &str) -> u64 {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().expect("a number")
}

#[test]
fn a_full_address_still_reaches_the_master() {
    let limit = format!("--rpc_max_connections_per_address={PLACES}");
    let master = Master::start(0, &[&limit, "--offer_local_socket=false"]);
    let mut crowd = Vec::new();
    for _ in 0..3 {
        for _ in 0..=PLACES {
            crowd.push(TcpStream::connect(&master.address).unwrap());
            crowd.push(shaken(&master));
        }
        ctl(&master.address, &["stat"]).assert_ok();
    }
    let figures = page(&master.metrics, "/metrics");
    let yielded = figure(&figures, "master_rpc_yielded_connections_total");
    assert!(yielded >= (crowd.len() - PLACES) as u64, "{yielded} of {}", crowd.len());
    assert_eq!(figure(&figures, "master_rpc_turned_away_connections_total"), 0);
    eventually_blocking(DEADLINE, "those that were told to go are gone", || {
        let figures = page(&master.metrics, "/metrics");
        (figure(&figures, "master_rpc_connections") <= PLACES as u64).then_some(())
    });
}

#[test]
fn a_full_master_still_takes_connections() {
    let limit = format!("--rpc_max_connections={PLACES}");
    let master = Master::start(0, &[&limit, "--offer_local_socket=false"]);
    let crowd: Vec<TcpStream> = (0..=PLACES).map(|_| shaken(&master)).collect();
    ctl(&master.address, &["stat"]).assert_ok();
    let yielded =
        figure(&page(&master.metrics, "/metrics"), "master_rpc_yielded_connections_total");
    assert!(yielded >= (crowd.len() - PLACES) as u64, "{yielded} of {}", crowd.len());
}

#[test]
fn a_silent_connection_is_closed_after_the_time_that_the_flag_says() {
    let master = Master::start(0, &["--rpc_idle_timeout=1", "--offer_local_socket=false"]);
    let mut rest = Vec::new();
    // It is told to go away, and then closed.
    shaken(&master).read_to_end(&mut rest).expect("the end before the deadline");
    ctl(&master.address, &["stat"]).assert_ok();
}

#[test]
fn a_full_address_still_reads_from_a_node() {
    let master = Master::start(0, &[]);
    let at = &*master.address;
    let node = start(
        "mc-node",
        &[
            "--host=127.0.0.1",
            "--port=0",
            "--http_port=0",
            "--enable_http_server",
            "--global_segment_size=4MB",
            &format!("--master_server_address={at}"),
            &format!("--transfer_max_connections_per_address={PLACES}"),
        ],
    );
    let address = node.wait_out(|line| {
        let rest = &line[line.find("tcp://")? + "tcp://".len()..];
        Some(rest.split(',').next()?.to_owned())
    });
    let metrics = node
        .wait_err(|line| line[line.find("http://")?..].strip_suffix("/metrics").map(str::to_owned));
    let figures = |name: &str| {
        let name = format!("mooncake_client_peer_connections{name}{{path=\"tcp\"}}");
        figure(&page(&metrics, "/metrics"), &name)
    };
    ctl(at, &["put", "k", "value"]).assert_ok();
    assert_eq!(figures("_yielded_total"), 0);
    let mut crowd = Vec::new();
    for round in 0..3 {
        for _ in 0..=PLACES {
            crowd.push(TcpStream::connect(&address).unwrap());
        }
        assert_eq!(ctl(at, &["get", "k"]).assert_ok().out, b"value");
        ctl(at, &["put", &format!("k{round}"), "value"]).assert_ok();
    }
    let yielded = figures("_yielded_total");
    assert!(yielded >= (crowd.len() - PLACES) as u64, "{yielded} of {}", crowd.len());
    assert_eq!(figures("_refused_total"), 0);
    assert!(figures("") <= 2 * PLACES as u64);
    let shared = "mooncake_client_peer_connections_yielded_total{path=\"shared_memory\"}";
    assert_eq!(figure(&page(&metrics, "/metrics"), shared), 0);
}

#[test]
fn limits_that_let_nobody_in_are_refused() {
    for flag in ["--rpc_max_connections=0", "--rpc_max_connections_per_address=0"] {
        run("mc-master", &[flag]).assert_refused(2, "between 1 and 1000000");
    }
    run("mc-master", &["--rpc_idle_timeout=0"]).assert_refused(2, "between 1s and 168h");
    for flag in ["--transfer_max_connections=0", "--transfer_max_connections_per_address=1000001"] {
        run("mc-node", &[flag]).assert_refused(2, "between 1 and 1000000");
    }
    for (program, flags) in [
        (
            "mc-master",
            &["rpc_max_connections", "rpc_max_connections_per_address", "rpc_idle_timeout"][..],
        ),
        ("mc-node", &["transfer_max_connections", "transfer_max_connections_per_address"]),
    ] {
        let help = run(program, &["--help"]).assert_ok();
        for flag in flags {
            assert!(help.text().contains(&format!("--{flag} ")), "{}", help.text());
        }
    }
}

#[test]
fn who_is_connected_is_told_with_the_version() {
    let master = Master::start(0, &["--offer_local_socket=false"]);
    let _node = Node::start(&master.address, "a", 0, "16MB");
    let hello = Hello { software: "engine/7 \u{1b}[2J".into(), ..Hello::default() };
    let mut engine = shaken_as(&master, &hello);
    let mut older = shaken(&master);
    let version = env!("CARGO_PKG_VERSION");
    let named = [format!("mc-node/{version}"), format!("mc-ctl/{version}"), hello.software.into()];

    let said = ctl(&master.address, &["clients", "--json"]).assert_ok();
    let said: Vec<Value> =
        said.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |software: &str| said.iter().filter(|open| open["software"] == software).count();
    assert_eq!([&*named[1], &*named[2], ""].map(of), [1, 1, 1], "{said:?}");
    assert!(of(&named[0]) > 0, "{said:?}");
    for open in &said {
        assert!(open["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{open}");
        assert_eq!((&open["role"], &open["kind"]), (&"admin".into(), &"calls".into()), "{open}");
    }
    // Nothing that a client says reaches the terminal as it is.
    let table = ctl(&master.address, &["clients"]).assert_ok();
    assert!(!table.text().contains('\u{1b}'), "{table:?}");
    let counts = format!(" connections: 1 of engine/7 \\u{{1b}}[2J, 1 of mc-ctl/{version}, ");
    assert!(table.text().contains(&counts), "{}", table.text());

    for stream in [&mut engine, &mut older] {
        stream.shutdown(std::net::Shutdown::Both).expect("an open connection");
    }
    eventually_blocking(DEADLINE, "the node is left", || {
        let open = get(&master, "/api/v1/clients").json();
        let open = open.as_array()?;
        let is_node = |open: &Value| open["software"] == *named[0];
        (!open.is_empty() && open.iter().all(is_node)).then_some(())
    });
}
