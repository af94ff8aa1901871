//! Settings that are read again while the program runs.

use std::ffi::OsString;
use std::marker::PhantomData;

use super::effective::Effective;
use super::layers::Configured;
use super::program::Program;
use crate::flags::Parsed;
use crate::refusal::Refusal;

/// Reads the settings of a running program again, and finds what has changed.
#[derive(Clone, Debug)]
pub struct Reloader<P> {
    program: Program,
    args: Vec<OsString>,
    /// The settings that hold.
    holds: Vec<Effective>,
    args_type: PhantomData<fn() -> P>,
}

/// Settings that were read again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reloaded<P> {
    /// All of them, those that have no effect before a restart included.
    pub configured: Configured<P>,
    /// The settings that have changed and can take effect now.
    pub changed: Vec<Effective>,
    /// The names of those that have changed and need a restart.
    pub needs_restart: Vec<String>,
}

impl<P: clap::Parser> Reloader<P> {
    /// For a program that was started with these arguments, program name first, and has these settings.
    #[must_use]
    pub fn new(program: Program, args: Vec<OsString>, holds: Vec<Effective>) -> Self {
        Self { program, args, holds, args_type: PhantomData }
    }

    /// Reads the settings again. `live` are the names of those that can take effect now. Blocks.
    ///
    /// # Errors
    /// As [`Program::read`].
    pub fn read(&self, live: &[&str]) -> Result<Reloaded<P>, Refusal> {
        let Parsed { args: configured, .. } = self.program.read::<P>(self.args.clone())?;
        let pairs = self.holds.iter().zip(&configured.settings);
        let changed = pairs.filter(|(before, after)| before.value != after.value);
        let (now, later): (Vec<_>, Vec<_>) =
            changed.map(|(_, after)| after.clone()).partition(|it| live.contains(&&*it.name));
        let needs_restart = later.into_iter().map(|it| it.name).collect();
        Ok(Reloaded { configured, changed: now, needs_restart })
    }

    /// Notes that these settings hold from now on.
    pub fn apply(&mut self, changed: &[Effective]) {
        for after in changed {
            if let Some(before) = self.holds.iter_mut().find(|it| it.name == after.name) {
                before.clone_from(after);
            }
        }
    }
}
