//! `quota`: quotas of tenants and their usage.

use std::process::ExitCode;

use mc_cli::table;
use mc_meta::{QuotaMode, TenantUsage, UNLIMITED};
use mc_rpc::MAX_PAGE;
use mc_store::Client;
use mc_types::ByteSize;
use serde_json::json;

use crate::args::{NewQuota, Quota};
use crate::error::CtlError;
use crate::text::print;

pub(crate) async fn quota(client: &Client, quota: &Quota) -> Result<ExitCode, CtlError> {
    let master = client.master();
    match quota {
        Quota::Show { whose, json } => {
            let usages = match whose {
                Some(tenant) => vec![master.tenant_quota(tenant).await?],
                None => all(client).await?,
            };
            let text = if *json { lines(&usages) } else { human(&usages) };
            print(text.as_bytes())?;
        }
        Quota::Set { whose, size: NewQuota::Bytes(size), refuse } => {
            let mode = if *refuse { QuotaMode::Refuse } else { QuotaMode::Evict };
            master.set_tenant_quota_with(whose, size.as_u64(), mode).await?;
            if *refuse && master.tenant_quota(whose).await?.mode != QuotaMode::Refuse {
                return Err(CtlError::NoQuotaModes { tenant: whose.clone() });
            }
        }
        Quota::Set { size: NewQuota::Unset, refuse: true, .. } => {
            return Err(CtlError::NothingToRefuse);
        }
        Quota::Set { whose, size: NewQuota::Unset, .. } | Quota::Unset { whose } => {
            master.delete_tenant_quota(whose).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn all(client: &Client) -> Result<Vec<TenantUsage>, CtlError> {
    let (mut usages, mut after) = (Vec::new(), None);
    loop {
        let page = client.master().tenant_quotas(after.as_ref(), MAX_PAGE).await?;
        usages.extend(page.tenants);
        match page.next_after {
            // A name that does not advance would list for ever.
            Some(next) if after.as_ref() < Some(&next) => after = Some(next),
            _ => return Ok(usages),
        }
    }
}

fn human(usages: &[TenantUsage]) -> String {
    let size = |bytes| ByteSize::bytes(bytes).to_string();
    let rows: Vec<[String; 8]> = usages
        .iter()
        .map(|usage| {
            let limit = match usage.effective {
                UNLIMITED => "unlimited".to_owned(),
                bytes => size(bytes),
            };
            [
                usage.tenant.to_string(),
                usage.requested.map_or_else(|| "default".to_owned(), size),
                limit,
                if refuses(usage) { "refuse" } else { "evict" }.to_owned(),
                size(usage.charged),
                usage.objects.to_string(),
                usage.rejected.to_string(),
                size(usage.evicted_bytes),
            ]
        })
        .collect();
    let columns =
        ["TENANT", ">QUOTA", ">LIMIT", "BEYOND", ">USED", ">OBJECTS", ">REFUSED", ">EVICTED"];
    table(columns, &rows)
}

fn refuses(usage: &TenantUsage) -> bool {
    usage.mode == QuotaMode::Refuse
}

fn lines(usages: &[TenantUsage]) -> String {
    let line = |usage: &TenantUsage| {
        let limit = Some(usage.effective).filter(|bytes| *bytes != UNLIMITED);
        let line = json!({
            "tenant": usage.tenant.as_str(),
            "quota": usage.requested,
            "limit": limit,
            "refuses": refuses(usage),
            "used": usage.charged,
            "objects": usage.objects,
            "refused": usage.rejected,
            "evicted_bytes": usage.evicted_bytes,
        });
        line.to_string() + "\n"
    };
    usages.iter().map(line).collect()
}
