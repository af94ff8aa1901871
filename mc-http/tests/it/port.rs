//! A port with pages, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mc_http::{BindError, HttpPort, Page, Request, StatusCode, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

async fn ask(address: SocketAddr, request: &str) -> String {
    let asked = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is an end too.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    tokio::time::timeout(DEADLINE, asked).await.expect("an answer in time")
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
}

async fn port() -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = port.local_addr();
    let (stop, stopped) = oneshot::channel();
    let pages = |path: &str| match path {
        "/health" => Some(Page::json("{}")),
        "/down" => Some(Page::text("not now\n").unavailable()),
        "/metrics" => Some(Page::prometheus("x_total 7\n")),
        "/empty" => Some(Page::text("")),
        "/events" => {
            let told = AtomicU32::new(0);
            Some(Page::events(Duration::from_millis(1), move || {
                let number = told.fetch_add(1, Ordering::Relaxed);
                (number < 3).then(|| number.to_string())
            }))
        }
        "/clock" => Some(Page::events(Duration::from_secs(3600), || Some("now".into()))),
        _ => None,
    };
    let server = tokio::spawn(port.serve(pages, async {
        let _ = stopped.await;
    }));
    (address, stop, server)
}

#[tokio::test]
async fn events_come_one_after_the_other() {
    let (address, _stop, _server) = port().await;
    let request = "GET /events HTTP/1.0\r\n\r\n";
    let events = ask(address, request).await;
    assert!(events.contains("content-type: text/event-stream\r\n"), "{events}");
    assert!(events.contains("cache-control: no-store\r\n"), "{events}");
    assert!(events.ends_with("\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n"), "{events}");
    assert!(ask(address, &get("/events")).await.contains("transfer-encoding: chunked"));
}

#[tokio::test]
async fn an_endless_page_does_not_hold_up_the_end() {
    let (address, stop, server) = port().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(get("/clock").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"data: now\n\n\r\n") {
        let read = tokio::time::timeout(DEADLINE, stream.read_buf(&mut answer)).await;
        assert_ne!(read.expect("the first event in time").unwrap(), 0);
    }
    drop(stop);
    tokio::time::timeout(DEADLINE, server).await.expect("an end in time").unwrap();
}

#[tokio::test]
async fn pages_and_what_is_no_page() {
    let (address, _stop, _server) = port().await;
    let metrics = ask(address, &get("/metrics?x=y")).await;
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.ends_with("\r\n\r\nx_total 7\n"), "{metrics}");
    assert!(ask(address, &get("/health")).await.contains("application/json"));
    assert!(ask(address, &get("/down")).await.starts_with("HTTP/1.1 503"));
    assert!(ask(address, &get("/empty")).await.contains("content-length: 0\r\n"));
    assert!(ask(address, &get("/other")).await.starts_with("HTTP/1.1 404"));
    let head = ask(address, &get("/metrics").replace("GET", "HEAD")).await;
    assert!(head.contains("content-length: 10\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let post = ask(address, &get("/metrics").replace("GET", "POST")).await;
    assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET, HEAD"), "{post}");
}

#[tokio::test]
async fn pages_that_depend_on_the_query_and_a_header() {
    let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap().max_head(128 << 10);
    let address = port.local_addr();
    let pages = |request: &Request<()>| {
        let asked = request.uri().query().unwrap_or_default().len();
        let knows = request.headers().contains_key(header::AUTHORIZATION);
        let page = Page::text(format!("{asked} {knows}"));
        (request.uri().path() == "/q").then(|| page.header(header::ETAG, "x".parse().unwrap()))
    };
    tokio::spawn(port.serve_queries(pages, std::future::pending()));
    let long = ask(address, &get(&format!("/q?{}", "a".repeat(60_000)))).await;
    assert!(long.starts_with("HTTP/1.1 200") && long.ends_with("\r\n\r\n60000 false"), "{long}");
    assert!(long.contains("etag: x\r\n"), "{long}");
    let known = get("/q").replace("host", "authorization: Bearer y\r\nhost");
    assert!(ask(address, &known).await.ends_with("\r\n\r\n0 true"));
    // Beyond what a target may have, and beyond what a head may have.
    for (target, status) in [("a".repeat(70_000), "414"), ("a".repeat(200_000), "431")] {
        let answer = ask(address, &get(&format!("/q?{target}"))).await;
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    assert!(ask(address, &get("/p?a")).await.starts_with("HTTP/1.1 404"));
    let post = get("/q").replace("GET", "POST").replace("host", "content-length: 9\r\nhost");
    assert!(ask(address, &(post + "123456789")).await.starts_with("HTTP/1.1 405"));
}

#[tokio::test]
async fn neither_nonsense_nor_an_endless_head_disturbs_anybody_else() {
    let (address, _stop, _server) = port().await;
    assert!(!ask(address, "\0\u{1}nonsense\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    let endless = format!("GET /health HTTP/1.1\r\nx: {}", "y".repeat(64 << 10));
    assert!(!ask(address, &endless).await.starts_with("HTTP/1.1 200"));
    assert!(ask(address, &get("/health")).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_taken_port_says_so() {
    let (address, _stop, _server) = port().await;
    let taken = HttpPort::bind(address).await.unwrap_err();
    assert!(matches!(taken, BindError::InUse { .. }), "{taken}");
    let elsewhere = HttpPort::bind("192.0.2.1:0".parse().unwrap()).await.unwrap_err();
    assert!(matches!(elsewhere, BindError::Listen { .. }), "{elsewhere}");
}

#[tokio::test]
async fn connections_that_say_nothing_do_not_hold_the_end_up() {
    let (address, stop, server) = port().await;
    let silent = TcpStream::connect(address).await.unwrap();
    assert!(ask(address, &get("/health")).await.starts_with("HTTP/1.1 200"));
    stop.send(()).unwrap();
    tokio::time::timeout(DEADLINE, server).await.expect("an end in time").unwrap();
    drop(silent);
    // The port is free again.
    HttpPort::bind(address).await.unwrap();
}

#[tokio::test]
async fn requests_with_bodies() {
    let port = HttpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap().max_connections(2);
    let address = port.local_addr();
    let echo = |request: &Request<_>| {
        let what = format!("{} {} {:?}", request.method(), request.uri(), request.body());
        Page::text(what).status(StatusCode::ACCEPTED)
    };
    tokio::spawn(port.serve_requests(10, echo, std::future::pending()));

    let put = |rest: &str| format!("PUT /a?b=c HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{rest}");
    let answer = ask(address, &put("content-length: 10\r\n\r\n0123456789")).await;
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nPUT /a?b=c b\"0123456789\""), "{answer}");
    let chunked = "transfer-encoding: chunked\r\n\r\n6\r\n012345\r\n";
    let answer = ask(address, &put(&format!("{chunked}4\r\n6789\r\n0\r\n\r\n"))).await;
    assert!(answer.ends_with("b\"0123456789\""), "{answer}");
    let answer = ask(address, &put(&format!("{chunked}5\r\n67890\r\n0\r\n\r\n"))).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // What comes after is not read, so the connection cannot be used again.
    let kept = put("content-length: 1099511627776\r\n\r\n").replace("connection: close\r\n", "");
    let answer = ask(address, &kept).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("connection: close"), "{answer}");
    let answer = ask(address, &put("transfer-encoding: chunked\r\n\r\nnonsense\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = ask(address, &get("/?").replace("GET", "DELETE")).await;
    assert!(answer.ends_with("DELETE /? b\"\""), "{answer}");
}

/// Probes are answered at once while connections come and hold on, with nothing, with half a request,
/// or after a whole one.
#[tokio::test]
async fn who_sends_a_large_body_to_its_end_reads_why_it_is_refused() {
    let port = HttpPort::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = port.local_addr();
    let no = |_: &Request<_>| Page::text("");
    tokio::spawn(port.serve_requests(1 << 20, no, std::future::pending()));
    let body = vec![b'x'; 1 << 20];
    for head in ["content-length: 16777216\r\n", "transfer-encoding: chunked\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("PUT / HTTP/1.1\r\nhost: x\r\n{head}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..16 {
            if head.contains("chunked") {
                stream.write_all(b"100000\r\n").await.unwrap();
            }
            stream.write_all(&body).await.unwrap();
            if head.contains("chunked") {
                stream.write_all(b"\r\n").await.unwrap();
            }
        }
        if head.contains("chunked") {
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_holds_up_no_probe() {
    for says in ["", "GET /health HTT", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let (address, _stop, _server) = port().await;
        let mut held = Vec::new();
        let begin = std::time::Instant::now();
        for _ in 0..100 {
            for _ in 0..10 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(says.as_bytes()).await.unwrap();
                held.push(stream);
            }
            assert!(ask(address, &get("/health")).await.starts_with("HTTP/1.1 200"), "{says:?}");
            assert!(ask(address, &get("/metrics")).await.starts_with("HTTP/1.1 200"), "{says:?}");
        }
        assert!(begin.elapsed() < DEADLINE / 2, "{says:?}: {:?}", begin.elapsed());
    }
}
