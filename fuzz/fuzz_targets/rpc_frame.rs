//! Bytes of a connection through the frame decoder, and every request in them through the
//! master's service: what a peer can make a server parse.

#![no_main]

use std::sync::Arc;

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mc_meta::{Master, MasterConfig, SegmentSpec};
use mc_rpc::frame::{self, ClientPreface, HEADER_LEN, Kind, ServerPreface};
use mc_rpc::{Call, Caller, Clock, MasterService, Method, Service};
use mc_ticket::TicketKey;
use mc_types::{ClientId, Endpoint, RemoteKey, SegmentId, Time};

/// Smaller than a server's limit, so that inputs reach it.
const MAX_PAYLOAD: u32 = 64 << 10;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time::from_millis(1)
    }
}

fn service() -> MasterService<Still> {
    let master = Master::new(MasterConfig::default(), 1).expect("the defaults make sense");
    let spec = SegmentSpec {
        id: SegmentId::from_u128(1),
        name: "s".into(),
        base: 0,
        size: 1 << 20,
        endpoint: Endpoint::new("tcp", "h:1").expect("a fixed good endpoint"),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: Some(TicketKey::from_bytes([2; 16])),
        medium: mc_types::MediaType::Dram,
    };
    master
        .mount_segment(Still.now(), ClientId::from_u128(0), spec)
        .expect("nothing else is mounted");
    MasterService::new(Arc::new(master), Still)
}

fn answer(service: &impl Service, method: Method, payload: &[u8], out: &mut BytesMut) {
    let before = out.len();
    let answered = frame::append_frame(out, 1, method.number(), Kind::Reply, |out| {
        let caller = &Caller::ANYBODY;
        service.call(Call::new(method, payload, MAX_PAYLOAD as usize, caller), out)
    });
    match answered {
        Ok(_) => {
            let (header, _) = frame::first_frame(&out[before..], u32::MAX)
                .expect("own frames are sound")
                .expect("own frames are complete");
            assert_eq!(header.method, method.number());
        }
        Err(refusal) => {
            assert_eq!(out.len(), before);
            frame::append_refusal(out, 1, method.number(), &refusal);
            let payload = &out[before + HEADER_LEN..];
            assert_eq!(frame::parse_refusal(payload).code, refusal.code);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(preface) = bytes.first_chunk() {
        if let Ok(preface) = ClientPreface::parse(preface) {
            assert_eq!(ClientPreface::parse(&preface.encode()), Ok(preface));
        }
    }
    if let Some(preface) = bytes.first_chunk() {
        let _ = ServerPreface::parse(preface);
    }
    let (service, mut out) = (service(), BytesMut::new());
    let mut rest = bytes;
    while let Ok(Some((header, payload))) = frame::first_frame(rest, MAX_PAYLOAD) {
        let ((token, message), sent) =
            (frame::token_of(header, payload), frame::send_time_of(header, payload));
        let first = 8 * (usize::from(token.is_some()) + usize::from(sent.is_some()));
        assert_eq!(message.len() + first, payload.len());
        assert_eq!((token.is_some(), sent.is_some()), (header.tracked, header.timed));
        if let Some(method) = Method::from_number(header.method) {
            answer(&service, method, message, &mut out);
        }
        rest = &rest[HEADER_LEN + payload.len()..];
    }
    // Without a sound header most inputs end above; the first byte chooses a method for the
    // others.
    if let [number, payload @ ..] = bytes {
        if let Some(method) = Method::from_number(u16::from(*number)) {
            answer(&service, method, payload, &mut out);
        }
    }
});
