//! The names of a program's settings, and of their variables.

use crate::compat::CompatFlag;

/// A program that is set up by flags, variables of the environment and a file.
///
/// Each flag of the program is a setting, with the flag's names in the file. Its variable is the one that
/// [`variables`](Self::variables) or clap's `env` names, or else [`prefix`](Self::prefix) and the flag's
/// name in capital letters.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The flags of Mooncake's program that have no function of their own in this one.
    pub tables: &'static [&'static [CompatFlag]],
    /// The beginning of the names of variables, such as `MC_MASTER_`.
    pub prefix: &'static str,
    /// Variables of flags, in place of those that the prefix gives them.
    pub variables: &'static [(&'static str, &'static str)],
    /// For a program that is a client, too: its settings are those of
    /// [`ClientConfig`](mc_store::ClientConfig) as well.
    pub client: Option<ClientFlags>,
}

/// How the flags of a program fit the settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientFlags {
    /// Flags with another name than the client's key, each with that key.
    pub flags: &'static [(&'static str, &'static str)],
    /// Defaults of flags that the program has in place of the client's.
    pub defaults: &'static [(&'static str, &'static str)],
}

impl Program {
    /// The variable that a flag has in place of the one that the prefix gives it.
    pub(super) fn variable(&self, flag: &str) -> Option<&'static str> {
        self.variables.iter().find(|(of, _)| *of == flag).map(|(_, variable)| *variable)
    }
}
