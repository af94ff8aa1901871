//! A bucket without faults.

use std::path::Path;
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
    // The URL goes before the variables, whose endpoint nobody listens at.
    let tier = open(&settings, "&region=eu-central-1").unwrap();
    tier.put(&id("key"), &object("key", 100)).unwrap();
    assert_eq!(tier.get(&id("key")).unwrap(), Some(object("key", 100)));
    settings.s3.variables = S3Variables::default();
    let refused = open(&settings, "").unwrap_err();
    assert!(refused.to_string().contains("AWS_ALLOW_HTTP"), "{refused}");
}
