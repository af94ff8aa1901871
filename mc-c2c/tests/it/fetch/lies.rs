//! Servers that say what is not so.

use mc_c2c::fetch::FetchError;
use mc_testkit::content;

use super::server::{Content, End, Reply, Server};
use super::{Cache, assert_is, sum};

#[test]
fn a_length_that_is_too_large_is_seen() {
    let bytes = content("some", 1000);
    let server = Server::start(move |_, _| {
        Reply::ok(bytes.clone()).header("Content-Length: 1001").end(End::Close)
    });
    let cache = Cache::new();
    let refusal = cache.fetch(&server.url("/x")).unwrap_err();
    assert!(
        matches!(refusal, FetchError::Short { announced: 1001, received: 1000, .. }),
        "{refusal}"
    );
    assert!(cache.files().is_empty());
}

#[test]
fn a_length_that_is_too_small_fails_the_checksum() {
    let bytes = content("some", 1000);
    let body = bytes.clone();
    let server = Server::start(move |_, _| {
        Reply::ok(body.clone()).header("Content-Length: 999").end(End::Close)
    });
    let cache = Cache::new();
    let refusal =
        cache.fetcher().projector(&server.url("/x"), Some(sum(&bytes)), |_, _| {}).unwrap_err();
    assert!(matches!(refusal, FetchError::Checksum { .. }), "{refusal}");
    assert!(cache.files().is_empty());
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_a_byte_comes() {
    let cache = Cache::new();
    for headers in [
        &["Content-Length: 18446744073709551615"][..],
        &["Content-Range: bytes 0-99/18446744073709551614", "Content-Length: 100"],
    ] {
        let status = if headers.len() == 1 { 200 } else { 206 };
        let server = Server::start(move |_, _| {
            let reply = Reply::status(status).end(End::Hang);
            headers.iter().fold(reply, |reply, line| reply.header(line))
        });
        let refusal = cache.fetch(&server.url("/x")).unwrap_err();
        assert!(matches!(refusal, FetchError::TooLarge { .. }), "{refusal}");
        assert!(cache.files().is_empty());
    }
}

#[test]
fn a_part_that_was_not_asked_for_is_refused() {
    let bytes = content("some", 1000);
    for (range, length) in [
        ("bytes 1-999/1000", 999),
        ("bytes 0-998/1000", 1000),
        ("bytes 0-999/999", 1000),
        ("bytes 0-999/*", 1000),
        ("bytes */1000", 1000),
        ("lines 0-999/1000", 1000),
        ("", 1000),
    ] {
        let body = bytes.clone();
        let server = Server::start(move |_, _| {
            let reply = Reply { status: 206, ..Reply::ok(&body[..length]) };
            reply.header("ETag: \"one\"").header(&format!("Content-Range: {range}"))
        });
        let cache = Cache::new();
        let refusal = cache.fetch(&server.url("/x")).unwrap_err();
        assert!(matches!(refusal, FetchError::Range { start: 0, .. }), "{range}: {refusal}");
        assert_eq!((server.requests(), cache.files().len()), (1, 0));
    }
    // After a beginning that was right.
    let file = Content::new(bytes, "one");
    let server = Server::start(move |request, number| match number {
        0 => file.reply(request).cut(500, End::Close),
        _ => {
            let reply = Reply { status: 206, ..Reply::ok(&file.bytes[..500]) };
            reply.header("ETag: \"one\"").header("Content-Range: bytes 0-499/1000")
        }
    });
    let cache = Cache::new();
    let refusal = cache.fetch(&server.url("/x")).unwrap_err();
    assert!(matches!(refusal, FetchError::Range { start: 500, .. }), "{refusal}");
    assert!(cache.files().is_empty());
}

#[test]
fn a_file_with_another_checksum_is_deleted() {
    let server = Server::of(Content::new(content("some", 1000), "one"));
    let cache = Cache::new();
    let expected = sum(b"other");
    let fetcher = cache.fetcher();
    let refusal = fetcher.projector(&server.url("/x"), Some(expected), |_, _| {}).unwrap_err();
    assert!(refusal.to_string().contains(&format!("and {expected} is expected")), "{refusal}");
    assert!(!refusal.is_retryable());
    assert_eq!((server.requests(), cache.files().len()), (1, 0));
}

#[test]
fn an_encoding_that_was_not_asked_for_is_refused() {
    let server =
        Server::start(|_, _| Reply::ok("x").header("Content-Encoding: gzip").end(End::Keep));
    let cache = Cache::new();
    let refusal = cache.fetch(&server.url("/x")).unwrap_err();
    assert!(matches!(refusal, FetchError::Encoding { .. }), "{refusal}");
    assert_eq!(server.log()[0].header("accept-encoding"), Some("identity"));
}

#[test]
fn redirects_are_followed_to_their_end_or_to_a_limit() {
    let bytes = content("some", 1000);
    let file = Content::new(bytes.clone(), "one");
    let other = Server::of(file);
    let elsewhere = other.url("/x?signature=secret");
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/a/b" => Reply::redirect("c?d"),
        "/a/c?d" => Reply::redirect("/e"),
        "/e" => Reply::redirect(&elsewhere),
        "/file" => Reply::redirect("file:///etc/passwd"),
        "/nowhere" => Reply::status(302),
        // An endless body is not read.
        "/endless" => Reply::redirect("/e").header("Content-Length: 1000000000000").end(End::Hang),
        _ => Reply::redirect(&request.path),
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/a/b")).unwrap(), &bytes);
    assert_is(&cache.fetch(&server.url("/endless")).unwrap(), &bytes);
    assert_eq!(cache.files(), ["b", "endless"], "the name is of the URL that was given");
    server.log().clear();
    let refusal = cache.fetch(&server.url("/loop")).unwrap_err();
    assert!(matches!(refusal, FetchError::Redirects { limit: 10, .. }), "{refusal}");
    assert_eq!(server.requests(), 11);
    let refusal = cache.fetch(&server.url("/file")).unwrap_err();
    assert!(matches!(refusal, FetchError::Scheme { .. }), "{refusal}");
    let refusal = cache.fetch(&server.url("/nowhere")).unwrap_err();
    assert!(matches!(refusal, FetchError::Status { status: 302, .. }), "{refusal}");
}

#[test]
fn what_is_not_http_is_refused() {
    use std::io::Write;
    let cache = Cache::new();
    let endless = format!("HTTP/1.1 200 x\r\n{}", "X-Y: z\r\n".repeat(100_000));
    for says in ["SSH-2.0-x\r\n\r\n", "HTTP/9 200 x\r\n\r\n", "HTTP/1.1 2x0\r\n\r\n", &endless] {
        let says = says.to_owned();
        let server = Server::wrapped(
            |_, _| Reply::status(200),
            move |mut stream| {
                stream.write_all(says.as_bytes())?;
                Ok(stream)
            },
        );
        let refusal = cache.fetch(&server.url("/x")).unwrap_err();
        assert!(matches!(refusal, FetchError::Network { .. }), "{refusal}");
        assert!(cache.files().is_empty());
    }
}
