//! `quota`: quotas of tenants and their usage.

use std::process::ExitCode;

use mc_cli::{table, tenant_json};
use mc_meta::{QuotaMode, TenantId, TenantUsage, TierQuotas, TierUsage, UNLIMITED};
use mc_rpc::MAX_PAGE;
use mc_store::Client;
use mc_types::ByteSize;

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
        Quota::Set { whose, size, refuse, disks, files } => {
            let below = TierQuotas {
                disks: disks.map(|size| size.as_u64()),
                files: files.map(|size| size.as_u64()),
            };
            set(client, whose, *size, *refuse, below).await?;
        }
        Quota::Unset { whose } => master.delete_tenant_quota(whose).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(
    client: &Client,
    whose: &TenantId,
    size: NewQuota,
    refuse: bool,
    below: TierQuotas,
) -> Result<(), CtlError> {
    let master = client.master();
    let memory = match size {
        NewQuota::Bytes(size) => Some(size.as_u64()),
        NewQuota::Default if below == TierQuotas::NONE => return Err(CtlError::NothingToLimit),
        NewQuota::Default => None,
        NewQuota::Unset if refuse || below != TierQuotas::NONE => {
            return Err(CtlError::NothingToRefuse);
        }
        NewQuota::Unset => return Ok(master.delete_tenant_quota(whose).await?),
    };
    let mode = if refuse { QuotaMode::Refuse } else { QuotaMode::Evict };
    master.set_tenant_quotas(whose, memory, mode, below).await?;
    if !refuse && below == TierQuotas::NONE {
        return Ok(());
    }
    // A master of an older version passes over what it does not know.
    let usage = master.tenant_quota(whose).await?;
    let tenant = whose.clone();
    match (usage.mode == mode, usage.below() == below) {
        (true, true) => Ok(()),
        (false, _) => Err(CtlError::NoQuotaModes { tenant }),
        (true, false) => Err(CtlError::NoQuotasBelow { tenant }),
    }
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
    let below = |usage: TierUsage| match usage.quota() {
        None => size(usage.bytes),
        Some(quota) => format!("{} of {}", size(usage.bytes), size(quota)),
    };
    let found = |usage: &TenantUsage| match usage.found + usage.missed {
        0 => String::new(),
        asked => format!("{:.1} %", 100.0 * usage.found as f64 / asked as f64),
    };
    let rows: Vec<[String; 11]> = usages
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
                below(usage.disks),
                below(usage.files),
                found(usage),
            ]
        })
        .collect();
    let columns = [
        "TENANT", ">QUOTA", ">LIMIT", "BEYOND", ">USED", ">OBJECTS", ">REFUSED", ">EVICTED",
        ">DISKS", ">FILES", ">FOUND",
    ];
    table(columns, &rows)
}

fn refuses(usage: &TenantUsage) -> bool {
    usage.mode == QuotaMode::Refuse
}

fn lines(usages: &[TenantUsage]) -> String {
    usages.iter().map(|usage| tenant_json(usage).to_string() + "\n").collect()
}
