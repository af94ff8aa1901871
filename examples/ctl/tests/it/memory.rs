//! Memory that servers use for a while returns to the system.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use mc_rpc::Method;
use mc_rpc::frame::{
    ClientPreface, DEFAULT_MAX_PAYLOAD, FrameHeader, HEADER_LEN, Hello, Kind, SERVER_PREFACE_LEN,
};
use mc_testkit::{Program, content, eventually_blocking};

use crate::support::{DEADLINE, Master, Node};

/// The most memory that a server may have more than before.
const SLACK: u64 = 20 << 20;

/// A connection that is welcome.
fn connect(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a master that answers");
    stream
        .write_all(&ClientPreface::with(DEFAULT_MAX_PAYLOAD, &Hello::default()))
        .expect("a master that answers");
    let mut answer = [0; SERVER_PREFACE_LEN];
    stream.read_exact(&mut answer).expect("a master that answers");
    let words = u16::from_le_bytes([answer[10], answer[11]]);
    stream.read_exact(&mut vec![0; words.into()]).expect("a master that answers");
    stream
}

/// Makes a call with a payload that means nothing, and waits for the refusal.
fn call(stream: &mut TcpStream, payload: &[u8]) {
    let header = FrameHeader::new(7, Method::ExistKey.number(), Kind::Request);
    let header = FrameHeader { payload_len: payload.len() as u32, ..header };
    stream.write_all(&header.encode()).expect("a master that answers");
    stream.write_all(payload).expect("a master that answers");
    let mut answer = [0; HEADER_LEN];
    stream.read_exact(&mut answer).expect("a master that answers");
    let answer = FrameHeader::parse(&answer, DEFAULT_MAX_PAYLOAD).expect("a master that answers");
    assert_eq!((answer.id, answer.kind), (7, Kind::Error));
    stream.read_exact(&mut vec![0; answer.payload_len as usize]).expect("a master that answers");
}

/// Waits until the program has less than `least` bytes.
fn assert_settles(program: &Program, least: u64) {
    let most = program.private_memory();
    println!("{} KiB, to be less than {}", most >> 10, least >> 10);
    let now = eventually_blocking(DEADLINE, "freed memory is back at the system", || {
        Some(program.private_memory()).filter(|&now| now < least)
    });
    println!("{} KiB in the end", now >> 10);
}

#[test]
fn what_huge_requests_took_goes_back() {
    const CONNECTIONS: usize = 12;
    let master = Master::start(0, &[]);
    call(&mut connect(&master.address), b"\xff");
    let before = master.program.private_memory();
    let payload = vec![0xff; DEFAULT_MAX_PAYLOAD as usize];
    // They stay open, as those of clients do.
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(&master.address)).collect();
    thread::scope(|scope| {
        for stream in &mut streams {
            let payload = &payload;
            scope.spawn(move || (0..3).for_each(|_| call(stream, payload)));
        }
    });
    assert_settles(&master.program, before + SLACK);
}

#[test]
fn what_keys_took_goes_back_with_them() {
    let master = Master::start(0, &[]);
    let _node = Node::start(&master.address, "a", 0, "64MB");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = mc_store::Client::builder().master(&*master.address);
    runtime.block_on(async {
        let client = client.connect().await.unwrap();
        let value = bytes::Bytes::from(content("value", 16));
        let before = master.program.private_memory();
        for batch in 0..200 {
            let keys: Vec<String> = (0..1000).map(|n| format!("{batch:020}/{n:020}")).collect();
            let puts = keys.iter().map(|key| mc_store::Put::new(key, value.clone())).collect();
            let outcomes = client.batch_put(puts, &mc_store::ReplicateConfig::default()).await;
            assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes[0]);
        }
        let full = master.program.private_memory();
        assert!(full > before + SLACK, "{before} and {full} bytes");
        assert_eq!(client.remove_all(true).await.unwrap(), 200_000);
        // Some is kept for the next keys, and what was answered for a minute.
        assert_settles(&master.program, before + (full - before) / 3 * 2);
    });
}
