//! The media of segments, and those that puts ask for.

use mc_types::MediaType;

use super::*;

/// The bytes of a put that asks for this much.
fn asking(config: &ReplicateConfig) -> BytesMut {
    let put = PutStart { key: key("k"), slice_lengths: &[300], config };
    written(|out| PutStartRequest::write(out, ME, &put))
}

#[test]
fn a_medium_is_written_only_when_it_is_asked_for() {
    let me = b"\x2a\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10";
    let bytes = |config: &[u8]| [b"\x0a\x01k\x10\xac\x02", config, me].concat();
    assert_eq!(asking(&ReplicateConfig::default()), bytes(b""));
    for (medium, field) in [
        (MediaType::Dram, b"\x1a\x02\x48\x00"),
        (MediaType::Ssd, b"\x1a\x02\x48\x01"),
        (MediaType::Vram, b"\x1a\x02\x48\x02"),
    ] {
        let written = asking(&ReplicateConfig::default().medium(medium));
        assert_eq!(written, bytes(field), "{medium}");
        assert_eq!(PutStartRequest::parse(&written).unwrap().config.medium, Some(medium));
        let message = proto::PutStartRequest::decode(&written[..]).unwrap();
        assert_eq!(message.config.unwrap().medium, Some(medium.number().into()));
    }
}

#[test]
fn an_unknown_medium_is_refused() {
    for number in [3, 256, -1] {
        let config = proto::ReplicateConfig { medium: Some(number), ..Default::default() };
        let message = proto::PutStartRequest {
            key: "k".into(),
            value_length: 8,
            config: Some(config),
            client_id: me(),
            ..Default::default()
        };
        let refusal = PutStartRequest::parse(&message.encode_to_vec()).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidParams);
        assert!(refusal.message.contains(&format!("medium is {number}")), "{}", refusal.message);
    }
}

#[test]
fn a_put_for_a_medium_that_is_not_there_is_told_so() {
    let service = service();
    let bytes = asking(&ReplicateConfig::default().medium(MediaType::Vram));
    let message = proto::PutStartRequest::decode(&bytes[..]).unwrap();
    let refusal = call::<proto::PutStartResponse>(&service, Method::PutStart, &message);
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TooFewSegments);
    assert!(refusal.message.contains("medium vram"), "{}", refusal.message);
}
