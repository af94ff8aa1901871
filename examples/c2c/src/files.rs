//! Files of weights: which kind a name means, and reading and writing them.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use mc_c2c::{
    Identity, Projector, read_checkpoint, read_projector, read_projector_bin, write_projector,
    write_projector_bin,
};
use mc_cli::UsageError;

use crate::args::{Models, VariantArg};
use crate::error::ToolError;

/// A file that a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Safetensors,
    /// Mooncake's `projector.bin`, which does not say what it is for.
    Bin,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> Result<Self, UsageError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("bin") => Ok(Self::Bin),
            _ => Err(UsageError::new(format!(
                "{path:?} is no file of weights; their names end in .safetensors or .bin"
            ))),
        }
    }
}

/// Reads a file of weights or a checkpoint. A file that does not say what it is for has no identity
/// unless `models` does.
pub(crate) fn load(
    path: &Path,
    models: &Models,
) -> Result<(Projector, Option<Identity>), Box<dyn Error>> {
    if path.is_dir() {
        let variant = models.variant.unwrap_or(VariantArg::Full);
        let (projector, identity) = read_checkpoint(path, variant.into(), &models.options())?;
        return Ok((projector, Some(identity)));
    }
    let weights = |source| ToolError::Weights { path: path.to_owned(), source };
    let (projector, identity) = match Kind::of(path)? {
        Kind::Safetensors => {
            let (projector, mut identity) = read_projector(&read(path)?).map_err(weights)?;
            rename(&mut identity, models)?;
            (projector, Some(identity))
        }
        Kind::Bin => {
            let unreadable = |source| ToolError::Read { path: path.to_owned(), source };
            let file = File::open(path).map_err(unreadable)?;
            let len = file.metadata().map_err(unreadable)?.len();
            let projector = read_projector_bin(BufReader::new(file), len).map_err(weights)?;
            let identity = of_bin(projector.layers(), models)?;
            (Projector::from(projector), identity)
        }
    };
    let found = match projector {
        Projector::Simplified(_) => VariantArg::Simplified,
        Projector::Full(_) => VariantArg::Full,
    };
    if models.variant.is_some_and(|variant| variant != found) {
        return Err(UsageError::new(
            "--variant is for checkpoints; a file of weights has the variant that it has",
        )
        .into());
    }
    Ok((projector, identity))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ToolError> {
    fs::read(path).map_err(|source| ToolError::Read { path: path.to_owned(), source })
}

/// Replaces the names in a file's identity by those that were given. Numbers must be the file's.
fn rename(identity: &mut Identity, models: &Models) -> Result<(), UsageError> {
    for (flag, given, found) in [
        ("--source_layers", models.source_layers, identity.source_layers),
        ("--target_layers", models.target_layers, identity.target_layers),
        ("--source_kv_heads", models.source_kv_heads, identity.source_kv_heads),
        ("--target_kv_heads", models.target_kv_heads, identity.target_kv_heads),
    ] {
        if let Some(given) = given.filter(|given| *given != found) {
            return Err(UsageError::new(format!(
                "{flag}={given} contradicts the file, which says {found}; leave it out"
            )));
        }
    }
    for (name, given) in [
        (&mut identity.source_model, &models.source_model),
        (&mut identity.target_model, &models.target_model),
    ] {
        if let Some(given) = given {
            name.clone_from(given);
        }
    }
    Ok(())
}

/// The identity of a `projector.bin`, if all of it was given.
fn of_bin(layers: usize, models: &Models) -> Result<Option<Identity>, UsageError> {
    if models.target_layers.is_some_and(|given| given != layers) {
        return Err(UsageError::new(format!(
            "--target_layers contradicts the file, which has {layers}; leave it out"
        )));
    }
    if models.source_layers.is_some_and(|source| source < layers) {
        return Err(UsageError::new(format!(
            "--source_layers is below the {layers} layers of the file; take the source model's"
        )));
    }
    let (Some(source_layers), Some(source_kv_heads), Some(target_kv_heads)) =
        (models.source_layers, models.source_kv_heads, models.target_kv_heads)
    else {
        return Ok(None);
    };
    Ok(Some(Identity {
        source_model: models.source_model.clone().unwrap_or_default(),
        target_model: models.target_model.clone().unwrap_or_default(),
        source_layers,
        target_layers: layers,
        source_kv_heads,
        target_kv_heads,
    }))
}

/// Writes weights to a file that appears when it is whole.
pub(crate) fn save(
    path: &Path,
    force: bool,
    projector: &Projector,
    identity: Option<&Identity>,
) -> Result<(), Box<dyn Error>> {
    let kind = Kind::of(path)?;
    let unwritable = |source| ToolError::Write { path: path.to_owned(), source };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut new = tempfile::Builder::new();
    let mut new = readable(&mut new).prefix(".mc-c2c-").tempfile_in(folder).map_err(unwritable)?;
    let mut writer = BufWriter::new(new.as_file_mut());
    match (kind, projector, identity) {
        (Kind::Safetensors, projector, Some(identity)) => {
            write_projector(projector, identity, &mut writer)
                .map_err(|source| ToolError::Weights { path: path.to_owned(), source })?;
        }
        (Kind::Safetensors, _, None) => {
            return Err(UsageError::new(
                "a projector.bin does not say what it is for; add --source_layers, --source_kv_heads and \
                 --target_kv_heads",
            )
            .into());
        }
        (Kind::Bin, Projector::Simplified(simplified), _) => {
            write_projector_bin(simplified, &mut writer).map_err(unwritable)?;
        }
        (Kind::Bin, Projector::Full(_), _) => {
            return Err(UsageError::new(
                "a .bin holds simplified projectors alone; add --variant=simplified, or write a .safetensors",
            )
            .into());
        }
    }
    writer.flush().map_err(unwritable)?;
    drop(writer);
    new.as_file().sync_all().map_err(unwritable)?;
    let kept = if force { new.persist(path) } else { new.persist_noclobber(path) };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(ToolError::Exists { path: path.to_owned() }.into())
        }
        Err(error) => Err(unwritable(error.error).into()),
    }
}

/// Temporary files are their owner's alone, which the file that it becomes should not be.
fn readable<'a, 'b>(
    builder: &'a mut tempfile::Builder<'b, 'b>,
) -> &'a mut tempfile::Builder<'b, 'b> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}
