//! The calls that each role may make.

use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::{Master, MasterConfig};
use mc_rpc::{Call, Caller, MasterService, Method, Role, Service, SystemClock};
use mc_types::ErrorCode;

#[test]
fn every_call_is_refused_to_those_whose_role_is_too_low() {
    let master = Arc::new(Master::new(MasterConfig::default(), 1).unwrap());
    let service = MasterService::new(master, SystemClock::new());
    for &method in Method::ALL {
        for role in Role::ALL {
            let caller = Caller::new("somebody", role);
            // The second is no message: a call that the role forbids is not even decoded.
            for payload in [&b""[..], b"\xff"] {
                let mut out = BytesMut::new();
                let call = Call::new(method, payload, 1 << 16, &caller);
                let answered = service.call(call, &mut out);
                let denied =
                    answered.is_err_and(|refusal| refusal.code == ErrorCode::PermissionDenied);
                assert_eq!(denied, role < method.role(), "{method} as {role}");
                assert!(!denied || out.is_empty());
            }
        }
    }
}

#[test]
fn each_kind_of_call_has_the_role_that_it_needs() {
    for (role, methods) in [
        (Role::Reader, &[Method::GetReplicaList, Method::BatchExistKey, Method::Ping][..]),
        (Role::Writer, &[Method::PutStart, Method::BatchRemove, Method::UpsertEnd]),
        (Role::Node, &[Method::MountSegment, Method::CopyStart, Method::FetchTasks]),
        (Role::Admin, &[Method::ClusterReport]),
    ] {
        for method in methods {
            assert_eq!(method.role(), role, "{method}");
        }
    }
}
