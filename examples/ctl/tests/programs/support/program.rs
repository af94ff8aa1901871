//! One child process, with all that it prints.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use super::{DEADLINE, eventually};

/// A running program. Dropping it kills it.
pub(crate) struct Program {
    name: &'static str,
    child: Child,
    out: Printed,
    err: Printed,
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Finished {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text")
    }

    /// # Panics
    /// Unless it ended well and complained of nothing.
    pub(crate) fn assert_ok(self) -> Self {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{}", self.shown());
        self
    }

    /// # Panics
    /// Unless it ended with `code`, printed nothing, and complained in exactly
    /// one line that contains `reason`.
    pub(crate) fn assert_refused(self, code: i32, reason: &str) -> Self {
        let shown = self.shown();
        assert_eq!(self.code, Some(code), "{shown}");
        assert_eq!(self.err.lines().count(), 1, "{shown}");
        assert!(self.err.starts_with("error: ") && self.err.ends_with('\n'), "{shown}");
        assert!(self.err.contains(reason), "no {reason:?} in {shown}");
        assert!(self.out.is_empty(), "{shown}");
        self
    }

    fn shown(&self) -> String {
        let out = String::from_utf8_lossy(&self.out);
        format!("exit {:?}\nstdout: {:.500}\nstderr: {:.2000}", self.code, out, self.err)
    }
}

/// Runs a program to its end.
pub(crate) fn run(name: &'static str, args: &[&str]) -> Finished {
    Program::start(name, args, None).finish()
}

impl Program {
    /// Starts one of this workspace's programs, with `input` as its standard
    /// input or none.
    pub(crate) fn start(name: &'static str, args: &[&str], input: Option<&[u8]>) -> Self {
        let path = binary(name);
        let mut child = Command::new(&path)
            .args(args)
            .env_remove("MC_LOG")
            .env_remove("MC_LOG_FORMAT")
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {path:?}: {error}"));
        let out = Printed::read(child.stdout.take().expect("piped"));
        let err = Printed::read(child.stderr.take().expect("piped"));
        if let Some(input) = input {
            let (mut pipe, input) = (child.stdin.take().expect("piped"), input.to_vec());
            // A program that refuses its input closes the pipe early.
            std::thread::spawn(move || drop(pipe.write_all(&input)));
        }
        Self { name, child, out, err }
    }

    /// Waits for a line on standard output that `pick` takes something from.
    pub(crate) fn wait_out<T>(&self, pick: impl Fn(&str) -> Option<T>) -> T {
        self.out.wait(pick).unwrap_or_else(|| panic!("no such line; {}", self.shown()))
    }

    /// Waits for a line on standard error that `pick` takes something from.
    pub(crate) fn wait_err<T>(&self, pick: impl Fn(&str) -> Option<T>) -> T {
        self.err.wait(pick).unwrap_or_else(|| panic!("no such line; {}", self.shown()))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// SIGKILL; returns when the process is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// Bytes of memory that no other process shares, as `/proc` counts them.
    pub(crate) fn private_memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("our child lives");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).expect("a number of kB");
        kib.parse::<u64>().expect("a number") * 1024
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(sent.success(), "{kill}");
    }

    /// Freezes the program until it is sent `CONT`, and waits until no thread of it runs:
    /// on a busy machine some serve for a while after the signal was sent.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        eventually(&format!("{} is frozen", self.name), || {
            let mut threads = std::fs::read_dir(&tasks).expect("our child lives");
            let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
                let stat = std::fs::read_to_string(thread.ok()?.path().join("stat")).ok()?;
                // The state follows the name, which is in parentheses and may contain any.
                stat.rsplit_once(") ").map(|(_, state)| state.starts_with('T'))
            };
            threads.all(|thread| is_stopped(thread) == Some(true)).then_some(())
        });
    }

    /// Sends a signal by its name and waits for the end.
    pub(crate) fn end_by(self, signal: &str) -> Finished {
        self.signal(signal);
        self.finish()
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Finished {
        let name = self.name;
        let status: ExitStatus =
            eventually(&format!("the end of {name}"), || self.child.try_wait().expect("our child"));
        Finished {
            code: status.code(),
            out: self.out.all(),
            err: String::from_utf8_lossy(&self.err.all()).into_owned(),
        }
    }

    fn shown(&self) -> String {
        format!("{} printed\n{}\n{}", self.name, self.out.shown(), self.err.shown())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.shown());
        }
    }
}

/// Where the workspace's programs lie: beside the one whose tests these are.
pub(crate) fn binary(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("this test's path");
    let profile = tests.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let path = profile.join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        path.exists(),
        "{path:?} is missing; build it with: cargo build -p mc-master -p mc-client -p mc-ctl"
    );
    path
}

/// What comes out of a pipe, read by a thread so that the writer never waits.
struct Printed {
    shared: Arc<(Mutex<Pipe>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    ended: bool,
}

impl Printed {
    fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(Pipe::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            let (pipe_state, changed) = &*theirs;
            let mut chunk = vec![0; 64 << 10];
            loop {
                let len = pipe.read(&mut chunk).unwrap_or(0);
                let mut state = pipe_state.lock().expect("no panic under the lock");
                state.bytes.extend_from_slice(&chunk[..len]);
                state.ended = len == 0;
                changed.notify_all();
                if state.ended {
                    return;
                }
            }
        });
        Self { shared, reader: Some(reader) }
    }

    /// The first whole line from which `pick` takes something; `None` when none
    /// comes in time.
    fn wait<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        let (pipe, changed) = &*self.shared;
        let mut state = pipe.lock().expect("no panic under the lock");
        loop {
            let text = String::from_utf8_lossy(&state.bytes).into_owned();
            let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            if let Some(found) = whole.map(str::trim_end).find_map(&pick) {
                return Some(found);
            }
            let left = DEADLINE.checked_sub(begun.elapsed())?;
            if state.ended {
                return None;
            }
            state = changed.wait_timeout(state, left).expect("no panic under the lock").0;
        }
    }

    /// Everything, once the other end is closed.
    fn all(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        self.shared.0.lock().expect("no panic under the lock").bytes.clone()
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shared.0.lock().expect("no panic under the lock").bytes)
            .into()
    }
}
