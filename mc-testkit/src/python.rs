//! Python with packages, for tests against programs that others wrote.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command to its end.
///
/// # Panics
/// When it cannot run or fails, with what it printed.
#[track_caller]
pub fn run(what: &str, command: &mut Command) {
    let ended = command.output().unwrap_or_else(|error| {
        panic!("{what}: cannot run {command:?}: {error}; this test needs python3 with venv and pip")
    });
    assert!(
        ended.status.success(),
        "{what}: {command:?} ended with {}\n{}{}",
        ended.status,
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// Returns the interpreter of the environment `name` below `dir`, which has the packages of a
/// requirements file. The first run installs them, from the network.
///
/// # Panics
/// When the environment cannot be made.
#[track_caller]
pub fn environment(dir: impl AsRef<Path>, name: &str, requirements: impl AsRef<Path>) -> PathBuf {
    // Tests run at the same time, in threads and in processes.
    let installing = File::create(dir.as_ref().join(format!("{name}.lock")));
    let installing = installing.expect("the directory of the environment can be written to");
    installing.lock().expect("files can be locked");
    let requirements = requirements.as_ref();
    let packages = fs::read_to_string(requirements).expect("the requirements can be read");
    let environment = dir.as_ref().join(name);
    let python = environment.join("bin/python");
    // Written last: what a run left half done is begun anew, as is what other packages need.
    let installed = environment.join("installed");
    if fs::read_to_string(&installed).is_ok_and(|there| there == packages) {
        return python;
    }
    let mut make = Command::new("python3");
    run("making an environment", make.args(["-m", "venv", "--clear"]).arg(&environment));
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements);
    run("installing the packages, which needs a package index", &mut install);
    fs::write(installed, packages).expect("the environment can be written to");
    python
}
