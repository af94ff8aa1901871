//! Output for people.

use std::io::{self, Write};

use mc_c2c::{Identity, LayerMap, Projector};

use crate::error::ToolError;

/// Writes `text` to standard output. A closed pipe is no failure.
pub(crate) fn print(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(ToolError::WriteOutput(error))
        }
        _ => Ok(()),
    }
}

/// The name of a projector's variant.
pub(crate) const fn variant(projector: &Projector) -> &'static str {
    match projector {
        Projector::Simplified(_) => "simplified",
        Projector::Full(_) => "full",
    }
}

/// The layers that a projector connects. A simplified one takes the source's last, counted from 0
/// when their number is not known.
pub(crate) fn map(projector: &Projector, identity: Option<&Identity>) -> Vec<LayerMap> {
    match projector {
        Projector::Full(fuser) => fuser.map().to_vec(),
        Projector::Simplified(simplified) => {
            let layers = simplified.layers();
            let skipped =
                identity.map_or(0, |identity| identity.source_layers.saturating_sub(layers));
            let entry = |layer| LayerMap { target: layer, source: skipped + layer, module: layer };
            (0..layers).map(entry).collect()
        }
    }
}
