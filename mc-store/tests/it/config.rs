//! Settings reach the client that they describe.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mc_store::{
    Client, ClientBuilder, ClientConfig, ClientRole, ConfigError, ErrorCode, Master, StartError,
};

async fn connect(master: &Master, toml: &str) -> Result<Client, StartError> {
    let config = ClientConfig::from_toml(toml).unwrap();
    let builder = ClientBuilder::from_config(&config)?;
    builder.master(master.local_addr().to_string()).connect().await
}

#[tokio::test]
async fn a_file_of_the_reference_system_joins_a_cluster() {
    let master = Master::builder().start().await.unwrap();
    let json = format!(
        r#"{{
            "local_hostname": "localhost",
            "metadata_server": "http://localhost:8080/metadata",
            "global_segment_size": 4194304,
            "local_buffer_size": 4194304,
            "protocol": "tcp",
            "device_name": "",
            "master_server_address": "{}"
        }}"#,
        master.local_addr()
    );
    let config = ClientConfig::from_json(&json).unwrap();
    let client = ClientBuilder::from_config(&config).unwrap().connect().await.unwrap();
    assert_eq!(client.role(), ClientRole::Both);
    let endpoint = client.endpoint().unwrap();
    assert!(
        endpoint.address().starts_with("127.0.0.1:") || endpoint.address().starts_with("[::1]:"),
        "{endpoint}"
    );
    client.put("k", "value").await.unwrap();
    assert_eq!(client.get("k").await.unwrap(), "value");
    client.shutdown().await;
}

#[tokio::test]
async fn settings_have_their_effects() {
    let master = Master::builder().start().await.unwrap();
    let client = connect(
        &master,
        "
        local_hostname = '127.0.0.1'
        global_segment_size = '4MB'
        segment_name = 'node-7'
        local_hot_cache_size = '1MB'
        local_hot_admission_threshold = 1
        local_memcpy = false
        shared_memory = false
        cluster_id = 'blue'
        put_wait_ms = 0
        ",
    )
    .await
    .unwrap();
    assert_eq!(client.segment_name(), Some("node-7"));
    assert_eq!(client.cluster_report().await.unwrap().totals.capacity, 4 << 20);
    client.put("k", vec![7; 1000]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.get("k").await.unwrap(), vec![7; 1000]);
    }
    let text = client.metrics().prometheus();
    assert!(text.contains("cluster_id=\"blue\""), "{text}");
    // What cannot fit fails at once.
    let begun = std::time::Instant::now();
    let full = client.put("large", vec![7; 5 << 20]).await.unwrap_err();
    assert_eq!(full.code(), ErrorCode::ObjectTooLarge);
    assert!(begun.elapsed() < std::time::Duration::from_secs(1));
    client.shutdown().await;

    let quiet = connect(&master, "client_metric = false").await.unwrap();
    quiet.exist("k").await.unwrap();
    assert!(quiet.metrics().operations.iter().all(|figures| figures.objects == 0));
    quiet.shutdown().await;

    let server = connect(
        &master,
        "global_segment_size = '4MB'\nlocal_buffer_size = 0\nlisten = '127.0.0.1:0'",
    );
    let server = server.await.unwrap();
    assert_eq!(server.role(), ClientRole::PureServer);
    server.shutdown().await;
}

#[cfg(feature = "http")]
#[test]
fn pages_are_served_between_the_calls_of_a_blocking_client() {
    use std::io::{Read as _, Write as _};

    let cluster = mc_cluster_testkit::BlockingCluster::start(&[]);
    let master = cluster.address();
    let toml = format!(
        "master = '{master}'
        enable_client_http_server = true
        client_http_host = '127.0.0.1'
        client_http_port = 0"
    );
    let config = ClientConfig::from_toml(&toml).unwrap();
    let client = ClientBuilder::from_config(&config).unwrap().connect_blocking().unwrap();
    let mut page = std::net::TcpStream::connect(client.http_addr().unwrap()).unwrap();
    page.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    page.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    client.shutdown();
}

#[tokio::test]
async fn what_a_host_cannot_do_is_an_error_of_the_settings() {
    let master = Master::builder().start().await.unwrap();
    let useless = connect(&master, "global_segment_size = 0\nlocal_buffer_size = 0").await;
    assert!(matches!(useless, Err(StartError::NoRole)));
    let device = connect(&master, "auto_discovery = true\ndevice_filters = 'no-such-device'").await;
    assert!(matches!(device, Err(StartError::Config(ConfigError::Devices(_)))));
    let host =
        connect(&master, "local_hostname = 'no such host'\nglobal_segment_size = 4096").await;
    assert!(matches!(host, Err(StartError::Config(ConfigError::Host { .. }))));
    let token = connect(&master, "token_file = '/no/such/token'").await;
    assert_eq!(
        match token {
            Err(StartError::Master(error)) => error.code(),
            other => panic!("{other:?}"),
        },
        ErrorCode::InvalidParams
    );
}
