//! The requests that a download makes of a server that does everything right, or less.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;

use mc_c2c::fetch::FetchError;
use mc_testkit::content;

use super::server::{Content, End, Reply, Server};
use super::{Cache, PARALLEL, assert_is, sum};

#[test]
fn a_large_file_comes_in_four_ranges() {
    let bytes = content("large", PARALLEL + 1001);
    let server = Server::of(Content::new(bytes.clone(), "one"));
    let cache = Cache::new();
    let mut seen = vec![(0, None)];
    let url = server.url("/a/projector.bin?token=1");
    let path = cache
        .fetcher()
        .projector(&url, Some(sum(&bytes)), |done, total| seen.push((done, total)))
        .unwrap();
    assert_is(&path, &bytes);
    assert_eq!(cache.files(), ["projector.bin"]);

    let len = bytes.len() as u64;
    assert!(seen.is_sorted(), "progress goes forward");
    assert_eq!(seen.last(), Some(&(len, Some(len))));

    let mut ranges: Vec<_> = server.log().iter().map(|asked| asked.range().unwrap()).collect();
    ranges.sort();
    let (one, two, three) = (len / 4, len / 2, len * 3 / 4);
    let rest = [(one, Some(two)), (two, Some(three)), (three, Some(len))];
    assert_eq!(ranges, [&[(0, None)][..], &rest].concat());
    let log = server.log();
    let others = log.iter().filter(|asked| asked.range() != Some((0, None)));
    assert!(others.into_iter().all(|asked| asked.header("if-range") == Some("\"one\"")));
}

#[test]
fn a_file_comes_in_one_piece_when_it_is_small_or_has_to() {
    let (small, large) = (content("small", PARALLEL - 1), content("large", PARALLEL));
    let plain = |bytes: &Vec<u8>| Content::new(bytes.clone(), "one");
    let no_ranges = Content { ranges: false, ..plain(&large) };
    let no_validator = Content { validator: None, ..plain(&large) };
    for (content, bytes) in [(plain(&small), &small), (no_ranges, &large), (no_validator, &large)] {
        let (server, cache) = (Server::of(content), Cache::new());
        assert_is(&cache.fetch(&server.url("/x")).unwrap(), bytes);
        assert_eq!(server.requests(), 1);
    }
    // One range is what the caller may want.
    let (server, cache) = (Server::of(plain(&large)), Cache::new());
    let fetcher = cache.fetcher().ranges(NonZeroUsize::MIN);
    assert_is(&fetcher.projector(&server.url("/x"), None, |_, _| {}).unwrap(), &large);
    assert_eq!(server.requests(), 1);
    // With a checksum, ranges need no validator.
    let content = Content { validator: None, ..plain(&large) };
    let (server, cache) = (Server::of(content), Cache::new());
    let sum = Some(sum(&large));
    assert_is(&cache.fetcher().projector(&server.url("/x"), sum, |_, _| {}).unwrap(), &large);
    assert_eq!(server.requests(), 4);
}

#[test]
fn a_server_may_send_less_at_a_time_than_it_is_asked_for() {
    let bytes = content("some", 1000);
    let file = Content::new(bytes.clone(), "one");
    let server = Server::start(move |request, _| {
        let (start, end) = request.range().unwrap();
        let end = end.unwrap_or(1000).min(start + 300);
        let part = file.bytes[start as usize..end as usize].to_vec();
        let range = format!("Content-Range: bytes {start}-{}/1000", end - 1);
        Reply { status: 206, ..Reply::ok(part).header(&range).header("ETag: \"one\"") }
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/x")).unwrap(), &bytes);
    assert_eq!(server.requests(), 4);
}

#[test]
fn a_file_in_the_cache_is_used_without_a_request() {
    let bytes = content("some", 1000);
    let server = Server::of(Content::new(bytes.clone(), "one"));
    let (cache, url) = (Cache::new(), server.url("/x"));
    let path = cache.fetch(&url).unwrap();
    let fetch = |sum| cache.fetcher().projector(&url, sum, |_, _| panic!("nothing is fetched"));
    assert_eq!(fetch(None).unwrap(), path);
    assert_eq!(fetch(Some(sum(&bytes))).unwrap(), path);
    assert_eq!(server.requests(), 1);

    // A file with another checksum is replaced.
    fs::write(&path, "damaged").unwrap();
    let again = cache.fetcher().projector(&url, Some(sum(&bytes)), |_, _| {}).unwrap();
    assert_eq!((server.requests(), &again), (2, &path));
    assert_is(&path, &bytes);

    // Not by one that is not better: what was there stays.
    let other = Some(sum(b"other"));
    let refusal = cache.fetcher().projector(&url, other, |_, _| {}).unwrap_err();
    assert!(matches!(refusal, FetchError::Checksum { .. }), "{refusal}");
    assert_is(&path, &bytes);
    assert_eq!(cache.files(), ["x"]);
}

#[test]
fn offline_there_is_the_cache_alone() {
    let bytes = content("some", 1000);
    let server = Server::of(Content::new(bytes.clone(), "one"));
    let (cache, url) = (Cache::new(), server.url("/x?key=secret"));
    let offline = |sum| cache.fetcher().offline(true).projector(&url, sum, |_, _| {});
    let refusal = offline(None).unwrap_err();
    assert!(matches!(refusal, FetchError::Offline { .. }), "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains("HF_HUB_OFFLINE") && !text.contains("secret"), "{text}");
    assert!(!cache.path().exists());

    let path = cache.fetch(&url).unwrap();
    assert_eq!(offline(None).unwrap(), path);
    let refusal = offline(Some(sum(b"other"))).unwrap_err();
    assert!(matches!(refusal, FetchError::Checksum { .. }), "{refusal}");
    assert_eq!(server.requests(), 1);
    assert_is(&path, &bytes);
}

#[test]
fn many_fetchers_of_one_file_fetch_it_once() {
    let bytes = content("large", PARALLEL);
    let server = Server::of(Content::new(bytes.clone(), "one"));
    let (cache, url, together) = (Cache::new(), server.url("/x"), Barrier::new(8));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                together.wait();
                assert_is(&cache.fetch(&url).unwrap(), &bytes);
            });
        }
    });
    assert_eq!(server.requests(), 4, "the ranges of one download");
    assert_eq!(cache.files(), ["x"]);
}

#[test]
fn many_fetchers_of_a_bad_file_all_fail() {
    let server = Server::start(|_, _| Reply::status(404));
    let (cache, url, together) = (Cache::new(), server.url("/x"), Barrier::new(8));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                together.wait();
                cache.fetch(&url).unwrap_err();
            });
        }
    });
    assert_eq!((server.requests(), cache.files().len()), (8, 0));
}

#[test]
fn a_file_without_a_length_needs_another_sign_of_its_end() {
    let bytes = content("some", 1000);
    let body = bytes.clone();
    let server = Server::start(move |request, _| match request.path.as_str() {
        "/chunked" => {
            let (one, two) = body.split_at(300);
            let mut chunks = Vec::new();
            for chunk in [one, two, &[]] {
                chunks.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunks.extend([chunk, b"\r\n"].concat());
            }
            Reply::ok(chunks).header("Transfer-Encoding: chunked")
        }
        _ => Reply::ok(body.clone()).end(End::Close),
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/chunked")).unwrap(), &bytes);
    let refusal = cache.fetch(&server.url("/closed")).unwrap_err();
    assert!(matches!(refusal, FetchError::NoLength { .. }), "{refusal}");
    let sum = Some(sum(&bytes));
    let path = cache.fetcher().projector(&server.url("/closed"), sum, |_, _| {}).unwrap();
    assert_is(&path, &bytes);

    // A limit holds, announced or not.
    for path in ["/chunked?2", "/closed?2"] {
        let fetcher = cache.fetcher().max_bytes(999);
        let refusal = fetcher.projector(&server.url(path), sum, |_, _| {}).unwrap_err();
        assert!(matches!(refusal, FetchError::TooLarge { limit: 999, .. }), "{refusal}");
    }
    assert_eq!(cache.files(), ["chunked", "closed"]);
}

#[test]
fn hostile_urls_stay_in_the_cache() {
    let server = Server::of(Content::new(b"x".to_vec(), "one"));
    let cache = Cache::new();
    let long = format!("/{}", "x".repeat(3000));
    for path in ["", "/", "/..", "/a/../..", "/%2e%2e%2f%00", "/a:b*|", "/?x/../../y", &long] {
        let path = cache.fetch(&server.url(path)).unwrap();
        assert_eq!(path.parent(), Some(&*cache.path()), "{}", path.display());
    }
    assert_eq!(cache.files().len(), 8);
    for (url, text) in [
        ("file:///etc/passwd", "the scheme file; use https or http"),
        ("ftp://u:secret@h/x", "ftp://h/x has the scheme ftp"),
        ("nothing", "\"nothing\" is no URL: it has no scheme"),
        ("http://h/a b?secret", "\"http://h/a b?…\" is no URL"),
    ] {
        let refusal = cache.fetch(url).unwrap_err();
        let given = refusal.to_string();
        assert!(given.contains(text) && !given.contains("secret"), "{given}");
        assert!(!refusal.is_retryable());
    }
}
