//! Completions for shells, and manual pages: both from the command line's own description.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::{Args, Pages};
use crate::error::CtlError;
use crate::text::print;

const NAME: &str = "mc-ctl";

pub(crate) fn pages(pages: &Pages) -> Result<ExitCode, CtlError> {
    match pages {
        Pages::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), NAME, &mut text);
            print(&text)?;
        }
        Pages::Man { directory } => {
            let cannot = |source| CtlError::WriteFile { path: directory.clone(), source };
            std::fs::create_dir_all(directory).map_err(cannot)?;
            clap_mangen::generate_to(Args::command(), directory).map_err(cannot)?;
            let shown = Path::new(directory).display();
            print(format!("written to {shown}; read them with man -l\n").as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
