//! The rules of conversions, as clients get them.

use super::*;

#[test]
fn rules_are_passed_on_to_writers_as_they_are() {
    let request = proto::GetC2cConfigRequest {};
    let none: proto::GetC2cConfigResponse =
        call(&service(), Method::GetC2cConfig, &request).unwrap();
    assert_eq!(none, proto::GetC2cConfigResponse::default());

    let text = r#"{"rules": []}"#;
    let service = service().with_c2c(mc_rpc::C2cSettings::new(3, text));
    let told: proto::GetC2cConfigResponse =
        call_as(&service, &blue(Role::Writer), Method::GetC2cConfig, &request).unwrap();
    assert_eq!((told.enabled, told.workers, &*told.config_json), (true, 3, text));
    let reader: Result<proto::GetC2cConfigResponse, _> =
        call_as(&service, &blue(Role::Reader), Method::GetC2cConfig, &request);
    assert_eq!(reader.unwrap_err().code, ErrorCode::PermissionDenied);
}
