//! Which objects clients convert for other models. The master only passes the rules on.

use super::{CallContext, calls, message, reply};
use crate::c2c::C2cSettings;
use crate::check::BadField;
use crate::proto;
use crate::refusal::Refusal;

calls! {
    /// Returns which objects clients are to convert for other models; `None` when there are none.
    fn c2c_settings(&self) -> Option<C2cSettings> {
        GetC2cConfig
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::GetC2cConfigRequest {}),
        reply(settings),
    }
}

fn settings(answer: &proto::GetC2cConfigResponse) -> Result<Option<C2cSettings>, BadField> {
    let settings = || C2cSettings::new(answer.workers, &*answer.config_json);
    Ok(answer.enabled.then(settings))
}

impl CallContext<'_> {
    pub(crate) fn get_c2c_config(
        self,
        _: &proto::GetC2cConfigRequest,
    ) -> Result<proto::GetC2cConfigResponse, Refusal> {
        Ok(self.c2c.map_or_else(Default::default, |settings| proto::GetC2cConfigResponse {
            enabled: true,
            workers: settings.workers,
            config_json: (*settings.config_json).into(),
            ..Default::default()
        }))
    }
}
