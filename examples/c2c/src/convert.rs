//! `convert`: files of weights from checkpoints and from each other.

use std::error::Error;

use mc_types::ByteSize;

use crate::args::Convert;
use crate::error::ToolError;
use crate::{files, text};

pub(crate) fn convert(args: &Convert) -> Result<(), Box<dyn Error>> {
    let Convert { checkpoint, input, output, force, models } = args;
    // Before the work, and once more when the file is there.
    if !force && output.exists() {
        return Err(ToolError::Exists { path: output.clone() }.into());
    }
    files::Kind::of(output)?;
    let path = checkpoint.as_ref().or(input.as_ref()).expect("the parser wants one of them");
    if checkpoint.is_some() && !path.is_dir() {
        let source = std::io::Error::from(std::io::ErrorKind::NotADirectory);
        return Err(ToolError::Read { path: path.clone(), source }.into());
    }
    let (projector, identity) = files::load(path, models)?;
    files::save(output, *force, &projector, identity.as_ref())?;
    let [source, hidden, target] = projector.shape();
    let bytes = std::fs::metadata(output)
        .map_err(|source| ToolError::Read { path: output.clone(), source })?
        .len();
    let line = format!(
        "wrote {}: {}, {} layers, {source} → {hidden} → {target}, {}\n",
        output.display(),
        text::variant(&projector),
        text::map(&projector, identity.as_ref()).len(),
        ByteSize::bytes(bytes),
    );
    Ok(text::print(&line)?)
}
