use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use mc_transport::HugePageSize;
use mc_types::ByteSize;

use super::*;
use crate::client::ClientBuilder;

/// The page that tells people of the settings.
const PAGE: &str = include_str!("../../../docs/configuration.md");

/// Of what is random here.
const SEED: u64 = 20_261_121;

fn variables<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
}

#[test]
fn the_page_lists_what_there_is() {
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let (_, table) = PAGE.split_once("\n## Settings\n").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<(Vec<String>, Vec<String>, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            assert_eq!(cells.len(), 4, "{row}");
            assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "{row}");
            (quoted(cells[0]), quoted(cells[1]), cells[2].trim().replace('`', ""))
        })
        .collect();
    let known: BTreeSet<(Vec<String>, Vec<String>, String)> = SETTINGS
        .iter()
        .map(|setting| {
            let names = setting.names().map(str::to_owned).collect();
            (names, vec![setting.variable.to_owned()], setting.default.to_owned())
        })
        .collect();
    assert_eq!(listed, known);
    assert!(PAGE.contains(FILE_VARIABLE));
}

#[test]
fn what_the_page_shows_works() {
    let block = |language: &str| {
        let (_, block) = PAGE.split_once(&format!("```{language}\n")).unwrap();
        block.split_once("```").unwrap().0
    };
    let json = ClientConfig::from_json(block("json")).unwrap();
    let toml = ClientConfig::from_toml(block("toml")).unwrap();
    for config in [&json, &toml] {
        assert_eq!(config.master.as_deref(), Some("localhost:50051"));
        assert_eq!(config.global_segment_size, Some(ByteSize::mib(256)));
        assert!(ClientBuilder::from_config(config).is_ok());
    }
}

#[test]
fn names_are_distinct() {
    let names: Vec<&str> = SETTINGS.iter().flat_map(Setting::names).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let variables: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.variable).collect();
    assert_eq!(variables.len(), SETTINGS.len());
}

#[test]
fn later_sources_override_earlier_ones() {
    let path = std::env::temp_dir().join(format!("mc-store-config-{}.json", std::process::id()));
    std::fs::write(&path, r#"{"master": "file:1", "segment_name": "file", "put_wait_ms": 5}"#)
        .unwrap();
    let file = path.to_str().unwrap();
    let config = ClientConfig::from_vars(variables(&[
        ("MOONCAKE_CONFIG_PATH", file),
        ("MOONCAKE_MASTER", " variable:1 "),
        ("MC_STORE_SEGMENT_NAME", "  "),
    ]));
    std::fs::remove_file(&path).unwrap();
    let config = config.unwrap();
    assert_eq!(config.master.as_deref(), Some("variable:1"));
    assert_eq!(config.segment_name.as_deref(), Some("file"), "an empty variable is ignored");
    let code = ClientConfig { segment_name: Some("code".into()), ..ClientConfig::default() };
    let config = config.overridden_by(code);
    assert_eq!(config.segment_name.as_deref(), Some("code"));
    assert_eq!(config.put_wait, Some(Duration::from_millis(5)));
    assert_eq!(ClientConfig::from_vars(|_| None).unwrap(), ClientConfig::default());
    let gone = ClientConfig::from_vars(variables(&[("MOONCAKE_CONFIG_PATH", file)]));
    assert!(matches!(gone, Err(ConfigError::Read { .. })));
}

/// A value for each setting as a variable says it, and as TOML does.
#[test]
fn every_setting_can_be_said_everywhere() {
    let said = [
        ("master", "h:1", "'h:1'"),
        ("local_hostname", "h", "'h'"),
        ("listen", "[::]:7", "'[::]:7'"),
        ("global_segment_size", "4GB", "4294967296"),
        ("segment_name", "s", "'s'"),
        ("segment_file", "/f", "'/f'"),
        ("keep_segment", "1", "true"),
        ("segment_medium", "SSD", "'ssd'"),
        ("segment_device", "1", "1"),
        ("storage_root_dir", "/dfs", "'/dfs'"),
        ("shared_tier", "s3://bkt/p", "'s3://bkt/p'"),
        ("file_sync", "Data", "'data'"),
        ("dfs_mode", "02770", "'2770'"),
        ("tier_keys", "/k", "'/k'"),
        ("enable_ssd_offload", "true", "true"),
        ("ssd_offload_path", "/ssd", "'/ssd'"),
        ("ssd_offload_size", "1GB", "1073741824"),
        ("local_buffer_size", "0", "0"),
        ("local_hot_cache_size", "1GB", "1073741824"),
        ("local_hot_block_size", "1MB", "1048576"),
        ("local_hot_admission_threshold", "3", "3"),
        ("local_hot_cache_policy", "lru", "'lru'"),
        ("local_hot_cache_use_shm", "0", "false"),
        ("checksum", "1", "true"),
        ("protocol", "TCP", "'tcp'"),
        ("shared_memory", "off", "false"),
        ("copy_threads", "4", "4"),
        ("device_name", "a,b", "['a', 'b']"),
        ("auto_discovery", "1", "true"),
        ("device_filters", "c", "['c']"),
        ("rdma_gid_index", "3", "3"),
        ("rdma_traffic_class", "106", "106"),
        ("rdma_service_level", "5", "5"),
        ("rdma_pkey_index", "1", "1"),
        ("rdma_hop_limit", "8", "8"),
        ("rdma_relaxed_ordering", "2", "true"),
        ("links_per_peer", "2", "2"),
        ("transfer_connect_timeout_ms", "3", "3"),
        ("transfer_stall_timeout_ms", "4", "4"),
        ("transfer_max_connections", "40", "40"),
        ("transfer_max_connections_per_address", "41", "41"),
        ("transfer_tls_ca", "/a", "'/a'"),
        ("transfer_tls_cert", "/c", "'/c'"),
        ("transfer_tls_key", "/k", "'/k'"),
        ("metadata_server", "P2PHANDSHAKE", "'P2PHANDSHAKE'"),
        ("use_hugepage", "yes", "true"),
        ("hugepage_size", "1G", "1073741824"),
        ("numa_node", "1", "1"),
        ("heartbeat_interval_ms", "5", "5"),
        ("put_wait_ms", "0", "0"),
        ("put_timeout_ms", "7", "7"),
        ("own_disk_timeout_ms", "8", "8"),
        ("peer_disk_timeout_ms", "9", "9"),
        ("shared_tier_timeout_ms", "10", "10"),
        ("local_memcpy", "0", "false"),
        ("client_metric", "False", "false"),
        ("client_metric_interval_s", "6", "6"),
        ("enable_client_http_server", "true", "true"),
        ("client_http_host", "::", "'::'"),
        ("client_http_port", "0", "0"),
        ("cluster_id", "c", "'c'"),
        ("etcd_user", "u", "'u'"),
        ("etcd_password_file", "/p", "'/p'"),
        ("etcd_tls_ca", "/a", "'/a'"),
        ("etcd_tls_cert", "/c", "'/c'"),
        ("etcd_tls_key", "/k", "'/k'"),
        ("etcd_tls_server_name", "e", "'e'"),
        ("rpc_timeout_ms", "7", "7"),
        ("rpc_connect_timeout_ms", "8", "8"),
        ("rpc_outage_timeout_ms", "9", "9"),
        ("rpc_protocol", "tcp", "'tcp'"),
        ("rpc_connections", "9", "9"),
        ("token_file", "/t", "'/t'"),
        ("tenant_id", "t", "'t'"),
        ("tls_ca", "/a", "'/a'"),
        ("tls_cert", "/c", "'/c'"),
        ("tls_key", "/k", "'/k'"),
        ("tls_server_name", "m", "'m'"),
    ];
    assert_eq!(
        said.map(|(key, ..)| key).to_vec(),
        SETTINGS.iter().map(|it| it.key).collect::<Vec<_>>()
    );
    let toml: String = said.iter().map(|(key, _, value)| format!("{key} = {value}\n")).collect();
    let from_toml = ClientConfig::from_toml(&toml).unwrap();
    let pairs: Vec<(&str, &str)> =
        SETTINGS.iter().zip(&said).map(|(known, said)| (known.variable, said.1)).collect();
    assert_eq!(ClientConfig::from_vars(variables(&pairs)).unwrap(), from_toml);
    assert_eq!(ClientConfig::default().overridden_by(from_toml.clone()), from_toml);

    assert_eq!(from_toml.listen, Some(SocketAddr::from(([0u16; 8], 7))));
    assert_eq!(from_toml.hugepage_size, Some(HugePageSize::Gib1));
    assert_eq!(from_toml.device_name, Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(from_toml.client_metric_interval, Some(Duration::from_secs(6)));
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    let nearest = |key: &str| {
        let error = ClientConfig::from_json(&format!("{{{key:?}: 1}}")).unwrap_err();
        let ConfigError::UnknownKey { nearest, .. } = error else { panic!("{error:?}") };
        nearest
    };
    assert_eq!(nearest("globel_segment_size"), Some("global_segment_size"));
    assert_eq!(nearest("Master"), Some("master"));
    assert_eq!(nearest("master_server_adr"), Some("master_server_addr"));
    assert_eq!(nearest("put_wait"), Some("put_wait_ms"));
    assert_eq!(nearest("something else"), None);
    assert_eq!(nearest(""), None);
    assert_eq!(nearest(&"m".repeat(100_000)), None);
    let error = ClientConfig::from_toml(&format!("{} = 1", "m".repeat(100_000))).unwrap_err();
    assert!(error.to_string().len() < 200, "{error}");
}

#[test]
fn bad_values_are_named() {
    for (toml, key) in [
        ("global_segment_size = -1", "global_segment_size"),
        ("global_segment_size = '4 parsecs'", "global_segment_size"),
        ("global_segment_size = 1.5", "global_segment_size"),
        ("put_wait_ms = true", "put_wait_ms"),
        ("put_wait_ms = 604800001", "put_wait_ms"),
        ("put_timeout_ms = 0", "put_timeout_ms"),
        ("shared_tier_timeout_ms = 0", "shared_tier_timeout_ms"),
        ("heartbeat_interval_ms = 0", "heartbeat_interval_ms"),
        ("transfer_max_connections = 0", "transfer_max_connections"),
        ("transfer_max_connections_per_address = 1000001", "transfer_max_connections_per_address"),
        ("rdma_gid_index = 256", "rdma_gid_index"),
        ("rdma_traffic_class = 256", "rdma_traffic_class"),
        ("rdma_service_level = 16", "rdma_service_level"),
        ("rdma_pkey_index = -1", "rdma_pkey_index"),
        ("rdma_hop_limit = 0", "rdma_hop_limit"),
        ("rdma_relaxed_ordering = 3", "rdma_relaxed_ordering"),
        ("local_memcpy = 2", "local_memcpy"),
        ("protocol = 'roce'", "protocol"),
        ("rpc_protocol = 'rdma'", "rpc_protocol"),
        ("listen = 'here'", "listen"),
        ("local_hot_cache_use_shm = true", "local_hot_cache_use_shm"),
        ("local_hot_cache_policy = 'best'", "local_hot_cache_policy"),
        ("local_hot_admission_threshold = 4294967296", "local_hot_admission_threshold"),
        ("client_http_host = 'here'", "client_http_host"),
        ("client_http_port = 65536", "client_http_port"),
        ("hugepage_size = '4M'", "hugepage_size"),
        ("device_name = [1]", "device_name"),
        ("master = ['a']", "master"),
        ("[master]\nhost = 'a'", "master"),
        ("token_file = ''", "token_file"),
    ] {
        let error = ClientConfig::from_toml(toml).unwrap_err();
        let ConfigError::BadValue { name, .. } = &error else { panic!("{toml}: {error:?}") };
        assert_eq!(name, key);
        let text = error.to_string();
        assert!(text.contains(key) && text.contains("must be"), "{text}");
    }
    let error = ClientConfig::from_vars(variables(&[("MC_STORE_MEMCPY", "maybe")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the environment has MC_STORE_MEMCPY = \"maybe\"; it must be true or false (in a variable \
         also 1, yes or on, or 0, no or off)"
    );
}

/// Files that are almost right: whatever is wrong with them, an error says it, shortly.
#[test]
fn damaged_files_are_settings_or_short_errors() {
    let mut seed = SEED;
    println!("seed {SEED}");
    let mut random = |below: usize| {
        // xorshift64 of Marsaglia (2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let marks = b"{}[]\"',:=.#-0195eE \n\\\xc3truefalsnl";
    let files = [
        br#"{"master": "a:1", "global_segment_size": "4GB", "local_memcpy": true, "put_wait_ms": 5,
            "device_name": ["a", "b"], "listen": "[::]:7", "hugepage_size": "2M"}"#
            .to_vec(),
        b"master = 'a:1'\nglobal_segment_size = 4096\ndevice_name = ['a']\nnuma_node = 1\n"
            .to_vec(),
    ];
    let (mut good, mut bad) = (0, 0);
    for _ in 0..4000 {
        let mut file = files[random(files.len())].clone();
        for _ in 0..random(4) {
            let at = random(file.len());
            match random(3) {
                0 => drop(file.remove(at)),
                1 => file.insert(at, marks[random(marks.len())]),
                _ => file[at] = marks[random(marks.len())],
            }
        }
        let text = String::from_utf8_lossy(&file);
        for outcome in [ClientConfig::from_json(&text), ClientConfig::from_toml(&text)] {
            match outcome {
                Ok(_) => good += 1,
                Err(error) => {
                    bad += 1;
                    let text = error.to_string();
                    assert!(!text.is_empty() && text.len() < 600, "{text}");
                }
            }
        }
    }
    assert!(good > 0 && bad > 0, "{good} good and {bad} bad");
}

#[test]
fn what_is_no_table_is_refused() {
    for text in ["", "[]", "7", "{", "{\"a\"", "\u{0}", "null"] {
        let error = ClientConfig::from_json(text).unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { format: "JSON", .. }), "{text}: {error}");
    }
    assert!(matches!(
        ClientConfig::from_toml("a = "),
        Err(ConfigError::Syntax { format: "TOML", .. })
    ));
    let deep = format!("{{\"master\": {}", "[".repeat(1_000_000));
    assert!(matches!(ClientConfig::from_json(&deep), Err(ConfigError::Syntax { .. })));
    assert_eq!(ClientConfig::from_toml("").unwrap(), ClientConfig::default());
    let twice = r#"{"master": "a:1", "master_server_addr": "b:1"}"#;
    let error = ClientConfig::from_json(twice).unwrap_err();
    assert!(
        matches!(&error, ConfigError::Duplicate { key: "master", second, .. }
        if second == "master_server_addr"),
        "{error}"
    );
    let error = ClientConfig::from_json(r#"{"master": "a:1", "master": "b:1"}"#).unwrap_err();
    assert!(matches!(error, ConfigError::Duplicate { .. }), "{error}");
}

#[test]
fn files_are_bounded_and_named_for_what_they_are() {
    let path = std::env::temp_dir().join(format!("mc-store-large-{}.toml", std::process::id()));
    std::fs::write(&path, "#".repeat(MAX_FILE_LEN as usize + 1)).unwrap();
    let error = ClientConfig::from_file(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error, ConfigError::TooLarge { .. }), "{error}");
    // Endless and of no format; it is not even opened.
    let endless = ClientConfig::from_file("/dev/zero").unwrap_err();
    assert!(matches!(endless, ConfigError::UnknownFormat { .. }), "{endless}");
    let missing = ClientConfig::from_file("/no/such/file.json").unwrap_err();
    assert!(missing.to_string().contains("/no/such/file.json"), "{missing}");
}

#[test]
fn every_protocol_has_a_name() {
    for (name, protocol) in
        [("tcp", Protocol::Tcp), ("QUIC", Protocol::Quic), ("Rdma", Protocol::Rdma)]
    {
        let config = ClientConfig::from_toml(&format!("protocol = '{name}'")).unwrap();
        assert_eq!(config.protocol, Some(protocol));
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    for (toml, names) in [
        ("tls_cert = 'a'\ntls_key = 'b'", ["tls_cert", "tls_ca"]),
        ("tls_ca = 'a'\ntls_key = 'b'", ["tls_key", "tls_cert"]),
        ("tls_server_name = 'a'", ["tls_server_name", "tls_ca"]),
        ("transfer_tls_key = 'a'", ["transfer_tls_key", "transfer_tls_ca"]),
        ("protocol = 'quic'", ["protocol", "transfer_tls_ca"]),
        ("segment_medium = 'ssd'", ["segment_medium", "segment_file"]),
        ("segment_device = 0", ["segment_device", "segment_medium"]),
        (
            "segment_device = 0\nsegment_medium = 'vram'\nsegment_file = 'a'",
            ["segment_device", "segment_medium"],
        ),
        ("keep_segment = true", ["keep_segment", "segment_file"]),
        (
            "keep_segment = true\nsegment_file = 'a'\nprotocol = 'rdma'",
            ["keep_segment", "protocol"],
        ),
        ("segment_file = 'a'\nuse_hugepage = true", ["segment_file", "use_hugepage"]),
        ("segment_file = 'a'\nnuma_node = 0", ["segment_file", "numa_node"]),
    ] {
        let error = ClientBuilder::from_config(&ClientConfig::from_toml(toml).unwrap());
        match error.unwrap_err() {
            ConfigError::Conflict { first, second, .. } => assert_eq!([first, second], names),
            ConfigError::Missing { key, needs, .. } => assert_eq!([key, needs], names),
            ConfigError::NeedsFeature { key, .. } if !cfg!(feature = "tls") => {
                assert!(toml.contains(key));
            }
            error => panic!("{toml}: {error}"),
        }
    }
}
