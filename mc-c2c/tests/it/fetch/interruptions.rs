//! Connections that break and downloads that go on.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mc_c2c::fetch::FetchError;
use mc_testkit::{Program, Random, content, role};

use super::server::{Content, End, Reply, Server};
use super::{Cache, DEADLINE, PARALLEL, assert_is, sum};

/// Attempts of one call.
const ATTEMPTS: usize = 5;

#[test]
fn a_broken_transfer_goes_on_where_it_ended() {
    let bytes = content("some", 100_000);
    let file = Content::new(bytes.clone(), "one");
    let server = Server::start(move |request, number| match number {
        0 => file.reply(request).cut(30_000, End::Close),
        1 => file.reply(request).cut(30_000, End::Close),
        _ => file.reply(request),
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/x")).unwrap(), &bytes);
    let ranges: Vec<_> = server.log().iter().map(|asked| asked.range().unwrap()).collect();
    assert_eq!(ranges, [(0, None), (30_000, Some(100_000)), (60_000, Some(100_000))]);
}

#[test]
fn a_later_call_goes_on_in_each_range() {
    let bytes = content("large", PARALLEL);
    let file = Content::new(bytes.clone(), "one");
    let broken = Arc::new(AtomicUsize::new(1));
    let cut = Arc::clone(&broken);
    let server = Server::start(move |request, _| {
        let reply = file.reply(request);
        match cut.load(Ordering::Relaxed) {
            0 => reply,
            _ => reply.cut(100_000, End::Close),
        }
    });
    let (cache, url) = (Cache::new(), server.url("/x"));
    let refusal = cache.fetch(&url).unwrap_err();
    assert!(matches!(refusal, FetchError::Short { .. }), "{refusal}");
    assert!(refusal.is_retryable());
    assert_eq!(cache.files(), ["x.part"]);

    broken.store(0, Ordering::Relaxed);
    server.log().clear();
    let mut first = None;
    let progress = |done, _| first = first.or(Some(done));
    let path = cache.fetcher().projector(&url, Some(sum(&bytes)), progress).unwrap();
    assert_is(&path, &bytes);
    assert!(first.unwrap() >= 100_000, "{first:?}");
    let asked: u64 = server
        .log()
        .iter()
        .map(|request| {
            let (start, end) = request.range().unwrap();
            end.unwrap() - start
        })
        .sum();
    assert_eq!(asked, bytes.len() as u64 - first.unwrap(), "nothing comes twice");
    assert_eq!(cache.files(), ["x"]);
}

#[test]
fn a_file_that_changed_is_fetched_from_its_beginning() {
    let (old, new) = (content("old", 100_000), content("new", 120_000));
    for server_sends_parts_of_anything in [false, true] {
        let (before, after) = (Content::new(old.clone(), "1"), Content::new(new.clone(), "2"));
        let server = Server::start(move |request, number| {
            if number == 0 {
                return before.reply(request).cut(50_000, End::Close);
            }
            // If-Range is not known to every server.
            let (start, end) = request.range().unwrap();
            if server_sends_parts_of_anything && start > 0 {
                let part = after.bytes[start as usize..end.unwrap() as usize].to_vec();
                let range = format!("Content-Range: bytes {start}-99999/100000");
                let reply = Reply { status: 206, ..Reply::ok(part) };
                return reply.header("ETag: \"2\"").header(&range);
            }
            after.reply(request)
        });
        let cache = Cache::new();
        assert_is(&cache.fetch(&server.url("/x")).unwrap(), &new);
    }
}

#[test]
fn a_file_that_became_shorter_is_fetched_from_its_beginning() {
    let (old, new) = (content("old", 100_000), content("new", 10_000));
    let (before, after) = (Content::new(old, "1"), Content::new(new.clone(), "1"));
    let server = Server::start(move |request, number| match number {
        0 => before.reply(request).cut(50_000, End::Close),
        _ => after.reply(request),
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/x")).unwrap(), &new);
}

#[test]
fn a_file_that_changes_with_each_request_comes_in_one_piece() {
    let bytes = content("large", PARALLEL);
    let expected = bytes.clone();
    let server = Server::start(move |request, number| {
        Content::new(bytes.clone(), &number.to_string()).reply(request)
    });
    let cache = Cache::new();
    assert_is(&cache.fetch(&server.url("/x")).unwrap(), &expected);
    assert_eq!(server.log().last().unwrap().range(), Some((0, None)));
}

#[test]
fn without_a_validator_a_broken_transfer_starts_over() {
    let bytes = content("some", 100_000);
    for validator in [None, Some("ETag: W/\"weak\"".to_owned())] {
        let file = Content { validator, ..Content::new(bytes.clone(), "") };
        let server = Server::start(move |request, number| match number {
            0 => file.reply(request).cut(50_000, End::Close),
            _ => file.reply(request),
        });
        let cache = Cache::new();
        assert_is(&cache.fetch(&server.url("/x")).unwrap(), &bytes);
        assert!(server.log().iter().all(|request| request.range() == Some((0, None))));
    }
}

#[test]
fn servers_in_trouble_are_asked_again_a_few_times() {
    let bytes = content("some", 1000);
    for status in [500, 502, 503, 504, 429, 408] {
        let file = Content::new(bytes.clone(), "one");
        let server = Server::start(move |request, number| match number {
            0 | 1 => Reply::status(status),
            _ => file.reply(request),
        });
        let cache = Cache::new();
        assert_is(&cache.fetch(&server.url("/x")).unwrap(), &bytes);
    }
    let server = Server::start(|_, _| Reply::status(503));
    let cache = Cache::new();
    let refusal = cache.fetch(&server.url("/x")).unwrap_err();
    assert!(matches!(refusal, FetchError::Status { status: 503, .. }), "{refusal}");
    assert_eq!((server.requests(), cache.files().len()), (ATTEMPTS, 0));
    // Closed without a word.
    let server = Server::wrapped(
        |_, _| Reply::status(200),
        |_| Err::<std::net::TcpStream, _>(std::io::ErrorKind::Other.into()),
    );
    let refusal = cache.fetch(&server.url("/x")).unwrap_err();
    assert!(matches!(refusal, FetchError::Network { .. }) && refusal.is_retryable(), "{refusal}");
}

#[test]
fn other_refusals_are_final() {
    for (status, advice) in [
        (404, "there is no such file; check the URL"),
        (401, "set HF_TOKEN"),
        (403, "set HF_TOKEN"),
        (400, "check the URL"),
        (204, "check the URL"),
        (304, "check the URL"),
        (501, "try again later"),
    ] {
        let server = Server::start(move |_, _| Reply::status(status));
        let cache = Cache::new();
        let url = server.url("/x?secret").replace("http://", "http://user:secret@");
        let text = cache.fetch(&url).unwrap_err().to_string();
        let shown = server.url("/x?…");
        assert!(text.starts_with(&format!("{shown} is answered with status {status}")), "{text}");
        assert!(text.contains(advice), "{text}");
        assert_eq!((server.requests(), cache.files().len()), (1, 0));
        assert!(server.log()[0].header("authorization").unwrap().starts_with("Basic "));
    }
}

#[test]
fn a_server_that_stalls_is_given_up() {
    let timeout = Duration::from_millis(300);
    let bytes = content("large", PARALLEL);
    // From the beginning; in the body; in all ranges but the first; by a trickle.
    for case in 0..4 {
        let file = Content::new(bytes.clone(), "one");
        let server = Server::wrapped(
            move |request, _| match case {
                0 => Reply::status(200).end(End::Silent),
                1 => Content { ranges: false, ..file.clone() }.reply(request).cut(1, End::Hang),
                2 if request.range() == Some((0, None)) => file.reply(request),
                2 => file.reply(request).cut(1000, End::Hang),
                _ => Content { ranges: false, ..file.clone() }.reply(request),
            },
            move |stream| {
                let pause = (case == 3).then_some(timeout / 5);
                Ok(Trickle { stream, pause, sent: 0 })
            },
        );
        let cache = Cache::new();
        let begin = Instant::now();
        let fetcher = cache.fetcher().idle_timeout(timeout);
        let refusal = fetcher.projector(&server.url("/x"), None, |_, _| {}).unwrap_err();
        assert!(matches!(refusal, FetchError::Stalled { .. }), "{case}: {refusal}");
        assert!(refusal.is_retryable());
        assert!(begin.elapsed() >= timeout && begin.elapsed() < DEADLINE, "{case}");
        let kept = if case == 0 { &[][..] } else { &["x.part"] };
        assert_eq!(cache.files(), kept, "{case}");
    }
}

/// A connection that sends a byte at a time, behind the first thousand.
struct Trickle {
    stream: std::net::TcpStream,
    pause: Option<Duration>,
    sent: usize,
}

impl std::io::Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl std::io::Write for Trickle {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let Some(pause) = self.pause else { return self.stream.write(buffer) };
        let piece = if self.sent < 1000 { 1000 } else { 1 };
        if piece == 1 {
            // The slowness is what is tested.
            std::thread::sleep(pause);
        }
        let sent = self.stream.write(&buffer[..piece.min(buffer.len())])?;
        self.sent += sent;
        Ok(sent)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_killed_process_leaves_the_file_to_another() {
    const PLAYER: &str = "fetch::interruptions::a_killed_process_leaves_the_file_to_another";
    if let Some(task) = role::role() {
        let (cache, url) = task.split_once(' ').unwrap();
        let fetcher = mc_c2c::fetch::Fetcher::new(cache);
        let _ = fetcher.projector(url, None, |done, _| role::say(done));
        return;
    }
    let bytes = content("some", 100_000);
    let file = Content::new(bytes.clone(), "one");
    let server = Server::start(move |request, number| match number {
        0 => file.reply(request).cut(50_000, End::Hang),
        _ => file.reply(request),
    });
    let (cache, url) = (Cache::new(), server.url("/x"));
    let task = format!("{} {url}", cache.path().display());
    let mut other =
        Program::start(DEADLINE, &mut role::command(PLAYER, &task), mc_testkit::Input::None);
    while other.hear() != "50000" {}
    assert_eq!(cache.files(), ["x.part"]);
    std::thread::scope(|scope| {
        // This one waits for the other, which waits for the server.
        let waiting = scope.spawn(|| cache.fetch(&url).unwrap());
        other.kill();
        assert_is(&waiting.join().unwrap(), &bytes);
    });
    assert_eq!(cache.files(), ["x"]);
}

#[test]
fn whatever_a_server_does_a_file_is_whole_or_not_there() {
    let mut random = Random::seeded("MC_C2C_FETCH_SEED");
    for _ in 0..12 {
        let len = [1000, 300_000, PARALLEL + 17][random.below(3)];
        let versions = [content("first", len), content("second", len + random.below(2))];
        let known = versions.clone();
        let faults = std::sync::Mutex::new(Random::new(random.next_u64()));
        let (validator, ranges) = (random.below(3) > 0, random.below(3) > 0);
        let server = Server::start(move |request, number| {
            let mut random = faults.lock().unwrap();
            let version = usize::from(number >= 3);
            let file = Content::new(known[version].clone(), &version.to_string());
            let validator = file.validator.clone().filter(|_| validator);
            let reply = Content { validator, ranges, ..file }.reply(request);
            match random.below(6) {
                0 => Reply::status(503),
                1 => reply.end(End::Close).header("Content-Length: 5"),
                2 | 3 => {
                    let sent = random.below(reply.body.len() + 1);
                    reply.cut(sent, End::Close)
                }
                _ => reply,
            }
        });
        let (cache, url) = (Cache::new(), server.url("/x"));
        for _ in 0..3 {
            match cache.fetch(&url) {
                Ok(path) => {
                    let file = fs::read(path).unwrap();
                    // A server that announces 5 bytes and sends them is believed.
                    let is_whole = versions.contains(&file);
                    assert!(is_whole || file.len() == 5, "{} bytes", file.len());
                    assert_eq!(cache.files(), ["x"]);
                }
                Err(_) => assert!(cache.files().iter().all(|name| name == "x.part")),
            }
        }
    }
}
