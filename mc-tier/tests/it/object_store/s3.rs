//! A bucket without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mc_testkit::role::{command, role, say};
use mc_testkit::{Input, Program, SeaweedFs, eventually_blocking};
use mc_tier::{
    ObjectId, ObjectStoreSettings, ObjectStoreTier, S3Variables, Tier, TierError, Watermarks,
    conformance,
};
use mc_types::{ByteSize, Generation, ObjectKey};
use object_store::ObjectStoreExt as _;

use super::common::{MIB, id, object};
use super::damage::Client;
use super::server::{LIMIT, SECRET, open, open_at, settings, shared};

#[test]
fn a_bucket_does_what_the_suite_wants() {
    let Some(server) = shared() else { return };
    server.make_bucket("suite");
    let mut number = 0;
    conformance::run(&mut |is_new| {
        number += u32::from(is_new);
        Box::new(open(&server, &format!("suite/a prefix/{number}")))
    });
}

#[test]
fn a_value_of_64_mib_goes_in_parts_and_comes_back() {
    let Some(server) = shared() else { return };
    server.make_bucket("long");
    let tier = open(&server, "long");
    let (id, long) = (id("long"), object("long", 64 * MIB));
    let begin = Instant::now();
    tier.put(&id, &long).unwrap();
    let (put, begin) = (begin.elapsed(), Instant::now());
    let read = tier.get(&id).unwrap();
    println!("64 MiB: put in {put:?}, got in {:?}", begin.elapsed());
    assert!(read.as_ref() == Some(&long));
    let (start, end) = (30 * MIB as u64, 30 * MIB as u64 + 100);
    let part = tier.get_range(&id, start..end).unwrap().unwrap();
    assert!(part == long.slices()[1].bytes().slice(30 * MIB - 10..30 * MIB + 90));
    // S3 marks the tags of multipart uploads with the number of parts.
    let client = Client::new(&server, "long");
    let (name, tag) = client.only();
    assert!(tag.contains("-9"), "{name}: {tag}");
    assert_eq!(server.incomplete_uploads("long"), 0);
    // A shorter one replaces it as a whole.
    tier.put(&id, &object("short", 100)).unwrap();
    assert_eq!(tier.get(&id).unwrap(), Some(object("short", 100)));
    assert!(tier.usage().unwrap().bytes < 1000);
}

#[test]
fn two_clients_share_a_bucket() {
    const LEN: usize = 12 * MIB;
    let Some(server) = shared() else { return };
    server.make_bucket("shared");
    let [one, other] = [(); 2].map(|()| open(&server, "shared/prefix"));
    let elsewhere = open(&server, "shared/pre");
    let id = id("key");
    one.put(&id, &object("one", 5000)).unwrap();
    assert_eq!(other.get(&id).unwrap(), Some(object("one", 5000)));
    assert_eq!(elsewhere.get(&id).unwrap(), None);
    assert_eq!(elsewhere.usage().unwrap().objects, 0);
    // Long enough for several parts: a reader finds the object of one or the other, never both.
    let versions = [object("one", LEN), object("other", LEN)];
    std::thread::scope(|scope| {
        let writers = [(&one, &versions[0]), (&other, &versions[1])].map(|(tier, version)| {
            scope.spawn(|| (0..3).for_each(|_| tier.put(&id, version).unwrap()))
        });
        let mut reads = 0;
        while reads < 5 || writers.iter().any(|writer| !writer.is_finished()) {
            let read = other.get(&id).unwrap().unwrap();
            let is_first = read == object("one", 5000);
            assert!(is_first || versions.contains(&read), "read {reads}");
            reads += 1;
        }
    });
    assert!(other.remove(&id).unwrap());
    assert_eq!(one.get(&id).unwrap(), None, "another has removed it");
    assert!(!one.remove(&id).unwrap());
}

#[test]
fn who_may_not_is_told_and_the_secret_is_not() {
    let Some(server) = shared() else { return };
    server.make_bucket("rights");
    let tier = open(&server, "rights");
    tier.put(&id("key"), &object("key", 100)).unwrap();
    for (user, secret) in [("admin", "a-wrong-secret"), ("nobody", SECRET)] {
        let error = open_at(server.s3(), "rights", user, secret).unwrap_err();
        assert!(matches!(error, TierError::Denied { .. }) && !error.is_retryable(), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
    }
    let reader = open_at(server.s3(), "rights", "reader", "the-secret-of-the-reader").unwrap();
    assert_eq!(reader.get(&id("key")).unwrap(), Some(object("key", 100)));
    for refused in [
        reader.put(&id("key"), &object("other", 100)),
        reader.put(&id("long"), &object("other", 12 * MIB)),
        reader.remove(&id("key")).map(drop),
    ] {
        assert!(matches!(refused, Err(TierError::Denied { .. })), "{refused:?}");
    }
    assert!(!format!("{tier:?}").contains(SECRET));
}

/// Variables of this process that name the authority are those of all its tests: so another process
/// plays the client. That it has no provider for TLS of its own shows that it needs none.
#[test]
fn a_client_over_tls() {
    let Some(place) = role() else { return };
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
    let mut settings = ObjectStoreSettings::default();
    settings.s3.variables = S3Variables::from_env();
    settings.s3.max_retries = 0;
    let tier = match ObjectStoreTier::open(&place, &settings) {
        Ok(tier) => tier,
        Err(error) => return say(format!("{error:?}")),
    };
    tier.put(&id("key"), &object("key", 12 * MIB)).unwrap();
    assert!(tier.get(&id("key")).unwrap() == Some(object("key", 12 * MIB)));
    say("done");
}

#[test]
fn a_bucket_is_reached_over_tls_by_an_authority_that_is_trusted() {
    let Some(server) = shared() else { return };
    server.make_bucket("tls");
    let (address, authority) = server.s3_over_tls();
    let client = |authority: &Path| {
        let mut client = command("object_store::s3::a_client_over_tls", "s3://tls/prefix");
        client
            .env("SSL_CERT_FILE", authority)
            .env("AWS_ENDPOINT_URL", format!("https://{address}"))
            .env("AWS_ACCESS_KEY_ID", "admin")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env_remove("AWS_ALLOW_HTTP");
        Program::start(LIMIT, &mut client, Input::None).hear()
    };
    assert_eq!(client(&authority), "done");
    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap().cert.pem();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), other).unwrap();
    let told = client(file.path());
    assert!(told.starts_with("Unavailable") && told.contains("InvalidCertificate"), "{told}");
}

#[test]
fn an_endpoint_without_tls_must_be_allowed() {
    let mut settings = ObjectStoreSettings::default();
    let variable = ("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:1".to_owned());
    settings.s3.variables = [variable].into_iter().collect();
    let error = ObjectStoreTier::open("s3://bucket", &settings).unwrap_err();
    assert!(matches!(error, TierError::Rejected { .. }) && !error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("AWS_ALLOW_HTTP"), "{error}");
}

#[test]
fn a_missing_bucket_is_told_and_is_no_missing_object() {
    let Some(server) = shared() else { return };
    let missing = |result: Result<(), TierError>| {
        assert!(matches!(result, Err(TierError::NoBucket { .. })), "{result:?}");
    };
    missing(open_at(server.s3(), "never-made/prefix", "admin", SECRET).map(drop));
    server.make_bucket("removed");
    let tier = open(&server, "removed");
    tier.put(&id("key"), &object("key", 100)).unwrap();
    server.remove_bucket("removed");
    missing(tier.put(&id("key"), &object("key", 100)));
    missing(tier.put(&id("key"), &object("key", 12 * MIB)));
    missing(tier.get(&id("key")).map(drop));
    missing(tier.get_range(&id("key"), 0..1).map(drop));
    missing(tier.remove(&id("key")).map(drop));
    missing(tier.usage().map(drop));
}

#[test]
fn objects_of_others_are_left_alone() {
    let Some(server) = shared() else { return };
    server.make_bucket("mixed");
    let tier = open(&server, "mixed");
    tier.put(&id("key"), &object("key", 100)).unwrap();
    let client = Client::new(&server, "mixed");
    for name in ["README", "00/README", "zz/o,a,b,0", "00/o,a/b"] {
        client.put(name, b"of others");
    }
    assert_eq!(tier.usage().unwrap().objects, 1);
    let page = super::common::scan_all(&tier);
    assert_eq!((page.objects.len(), page.unreadable.len()), (1, 0));
    client.run(client.store.delete(&"README".into())).unwrap();
}

#[test]
fn eviction_from_a_bucket_takes_what_was_stored_first() {
    let Some(server) = shared() else { return };
    server.make_bucket("evicting");
    let tier = open(&server, "evicting/prefix");
    let client = Client::new(&server, "evicting");
    let of = |generation: u64| {
        let key = ObjectKey::new("key").unwrap();
        ObjectId::new("tenant", key, Generation::new(generation)).unwrap()
    };
    // Higher generations first. The times of a bucket have seconds: each is put until it is younger than all.
    for generation in [9, 5, 1] {
        let before = client.times().into_values().max();
        eventually_blocking(LIMIT, "the object is younger than the others", || {
            tier.put(&of(generation), &object("key", 10_000)).unwrap();
            let mut times: Vec<_> = client.times().into_values().collect();
            times.sort();
            times.last().copied() > before
        });
    }
    let mut evicted = Vec::new();
    let limit = ByteSize::bytes(15_000);
    let removed = tier
        .evict(Watermarks { high: limit, low: limit }, &mut |id| evicted.push(id.generation()))
        .unwrap();
    assert_eq!((removed.objects, evicted), (2, [9, 5].map(Generation::new).to_vec()));
    assert_eq!(tier.get(&of(1)).unwrap(), Some(object("key", 10_000)));
    assert_eq!(tier.usage().unwrap().objects, 1);
}

#[test]
fn a_url_says_where_its_bucket_is() {
    let Some(server) = shared() else { return };
    server.make_bucket("named");
    let mut settings = settings(([127, 0, 0, 1], 1).into(), SeaweedFs::USER, SECRET);
    let open = |settings: &_, query: &str| {
        let url = format!("s3://named/prefix?endpoint=http://{}{query}", server.s3());
        ObjectStoreTier::open(&url, settings)
    };
    // The URL overrides the variables, at whose endpoint there is no server.
    let tier = open(&settings, "&region=eu-central-1").unwrap();
    tier.put(&id("key"), &object("key", 100)).unwrap();
    assert_eq!(tier.get(&id("key")).unwrap(), Some(object("key", 100)));
    settings.s3.variables = S3Variables::default();
    let refused = open(&settings, "").unwrap_err();
    assert!(refused.to_string().contains("AWS_ALLOW_HTTP"), "{refused}");
}

/// Counts the requests that pass to a server, by their methods, and refuses those for many removals if it is
/// to.
struct Counted {
    address: SocketAddr,
    requests: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Counted {
    fn before(server: SocketAddr, refuses: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let counts = Arc::clone(&requests);
        // Ends with the test's process; the connections end with the client or the server.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || count(client, server, &counts, refuses));
            }
        });
        Self { address, requests }
    }

    /// Returns the requests since the last call.
    fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn count(
    mut client: TcpStream,
    mut server: TcpStream,
    counts: &Mutex<BTreeMap<String, usize>>,
    refuses: bool,
) {
    let mut chunk = vec![0; 64 << 10];
    while let Ok(len @ 1..) = client.read(&mut chunk) {
        // A client sends a request when it has the answer to the one before.
        let begin = String::from_utf8_lossy(&chunk[..len.min(8)]).into_owned();
        let method = begin.split_once(' ').map_or("", |(method, _)| method);
        if ["DELETE", "GET", "HEAD", "POST", "PUT"].contains(&method) {
            *counts.lock().unwrap().entry(method.to_owned()).or_default() += 1;
            if refuses && method == "POST" {
                let refusal =
                    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = client.write_all(refusal);
                break;
            }
        }
        if server.write_all(&chunk[..len]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// Puts objects by several threads. Returns their ids.
fn put_many(tier: &ObjectStoreTier, count: usize) -> Vec<ObjectId> {
    let ids: Vec<_> = (0..count).map(|number| id(&format!("key-{number}"))).collect();
    std::thread::scope(|scope| {
        for ids in ids.chunks(count.div_ceil(16)) {
            scope.spawn(move || {
                ids.iter().for_each(|id| tier.put(id, &object("small", 100)).unwrap());
            });
        }
    });
    ids
}

/// Each removal was two requests.
#[test]
fn many_objects_are_removed_by_few_requests() {
    let Some(server) = shared() else { return };
    server.make_bucket("many");
    let counted = Counted::before(server.s3(), false);
    let tier = open_at(counted.address, "many", "admin", SECRET).unwrap();
    assert_eq!(tier.removed_at_once(), 1000);
    let ids = put_many(&tier, 1200);
    counted.take();
    assert_eq!(tier.remove_many(&ids).unwrap(), 1200);
    // Whether there is a pack of their run is asked once.
    let expected = [("GET".to_owned(), 1), ("POST".to_owned(), 2)];
    assert_eq!(counted.take(), BTreeMap::from(expected));
    assert_eq!(tier.usage().unwrap().objects, 0);
    assert!(ids.iter().step_by(100).all(|id| tier.get(id).unwrap().is_none()));
    // An eviction needs to know the objects, and removes them likewise.
    let ids = put_many(&tier, 150);
    counted.take();
    let zero = ByteSize::bytes(0);
    let mut evicted = Vec::new();
    let watermarks = Watermarks { high: zero, low: zero };
    let removed = tier.evict(watermarks, &mut |id| evicted.push(id)).unwrap();
    assert_eq!(removed.objects, 150);
    assert_eq!(BTreeSet::from_iter(evicted), BTreeSet::from_iter(ids));
    let requests = counted.take();
    assert_eq!((requests.get("POST"), requests.get("DELETE")), (Some(&1), None), "{requests:?}");
    assert_eq!(tier.usage().unwrap().objects, 0);
}

/// Some stores do not support requests for many removals.
#[test]
fn objects_are_removed_one_by_one_where_the_store_knows_nothing_else() {
    let Some(server) = shared() else { return };
    server.make_bucket("one-by-one");
    let counted = Counted::before(server.s3(), true);
    let tier = open_at(counted.address, "one-by-one", "admin", SECRET).unwrap();
    for _ in 0..4 {
        let ids = put_many(&tier, 20);
        counted.take();
        assert_eq!(tier.remove_many(&ids).unwrap(), 20);
        assert_eq!(tier.usage().unwrap().objects, 0);
    }
    let requests = counted.take();
    assert_eq!((requests.get("POST"), requests.get("DELETE")), (None, Some(&20)), "{requests:?}");
    assert_eq!(tier.removed_at_once(), 1);
}
