//! Conversions that the application asks for.

use mc_types::BoxFuture;
use std::sync::Arc;

use mc_c2c::KeyMatch;
use mc_meta::ReplicateConfig;

use super::C2cError;
use crate::client::Client;
use crate::client::put::{Put, PutMode, PutOutcome};
use crate::client::read::{Item, Target};

impl Client {
    /// Converts an object and stores the result under the key `out`, now. This is how a full
    /// projector is used, which needs `target`: the target model's own object of the same tokens.
    /// A simplified one has none.
    ///
    /// The rule is one that applies to the key `source`. When there are several, it is the one whose
    /// target key is `target`, or `out` without a target. [`C2cConfig`](mc_c2c::C2cConfig) describes
    /// rules.
    ///
    /// # Errors
    /// [`C2cError`]; nothing is stored then.
    ///
    /// # Cancellation
    /// As of a [put](Client::put): a conversion goes on in the background, and its result is dropped.
    pub fn convert<'a>(
        &'a self,
        source: &'a str,
        target: Option<&'a str>,
        out: &'a str,
    ) -> BoxFuture<'a, Result<PutOutcome, C2cError>> {
        Box::pin(async move {
            self.core.link.request()?;
            let conversions = Arc::clone(self.core.c2c.as_ref().ok_or(C2cError::Disabled)?);
            let KeyMatch { rule, part, .. } =
                choose(conversions.config.matching(source), source, target.unwrap_or(out))?;
            let keys: Vec<&str> = [Some(source), target].into_iter().flatten().collect();
            let mut items: Vec<Item<'_>> =
                keys.iter().map(|key| Item::new(key, None, None, Target::OWNED)).collect();
            self.core.reader().get_all(&mut items).await;
            let mut values = Vec::with_capacity(items.len());
            for (item, key) in items.into_iter().zip(keys) {
                let refused = |source| C2cError::Read { key: key.into(), source };
                values.push(item.into_bytes().map_err(refused)?);
            }
            let pool = self.core.pool.clone();
            let work = move || {
                let converter = conversions.converter(rule).map_err(C2cError::Load)?;
                let objects = (&*values[0], values.get(1).map(|value| &**value));
                let value = conversions.compute(&converter, part, objects, &mut Vec::new(), &pool);
                Ok::<_, C2cError>(value?)
            };
            let environment = &self.core.settings.environment;
            let value = match environment.in_background(work).await {
                Some(Ok(value)) => value?,
                // The runtime ends, or the work panicked, which was reported.
                _ => return Err(C2cError::Closed),
            };
            let put = Put::new(out, value.whole());
            let config = ReplicateConfig::default();
            let outcomes = self.core.store_own(vec![put], &config, PutMode::Put).await;
            let outcome = outcomes.into_iter().next().expect("one outcome for each put");
            outcome.map_err(|source| C2cError::Put { key: out.into(), source })
        })
    }
}

/// The rule of those that apply to `source` which makes `expected`, or the only one.
fn choose(mut found: Vec<KeyMatch>, source: &str, expected: &str) -> Result<KeyMatch, C2cError> {
    if let Some(at) = found.iter().position(|it| it.target_key == expected) {
        return Ok(found.swap_remove(at));
    }
    match found.pop() {
        None => Err(C2cError::NoRule { key: source.into() }),
        Some(only) if found.is_empty() => Ok(only),
        Some(last) => {
            found.push(last);
            let targets = found.into_iter().map(|it| it.target_key).collect();
            Err(C2cError::SeveralRules { key: source.into(), targets })
        }
    }
}
