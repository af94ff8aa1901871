//! One child process, with all that it prints.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, kill_process, waitpid};

pub use rustix::process::Signal;

use crate::eventually_blocking;
use crate::role::PREFIX;

/// How long the outputs of a program that was killed are read on: a child of it may hold them.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The standard input of a program.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Nothing.
    None,
    /// These bytes, then the end.
    Bytes(&'a [u8]),
    /// Standard input stays open for [`Program::tell`].
    Open,
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    name: String,
    limit: Duration,
    child: Child,
    input: Option<ChildStdin>,
    out: Printed,
    err: Printed,
    /// The bytes of `out` that were heard.
    heard: usize,
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// Standard output as text.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text")
    }

    /// Returns itself when the program ended well and complained of nothing.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn assert_ok(self) -> Self {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{}", self.shown());
        self
    }

    /// Returns itself when the program ended with `code`, printed nothing, and complained in
    /// exactly one line that contains `reason`.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn assert_refused(self, code: i32, reason: &str) -> Self {
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

impl Program {
    /// Starts a program whose every step takes `limit` at most. It logs as it does without any
    /// variable of the developer's.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(limit: Duration, command: &mut Command, input: Input<'_>) -> Self {
        let path = PathBuf::from(command.get_program());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stdin = if matches!(input, Input::None) { Stdio::null() } else { Stdio::piped() };
        let started = command
            .env_remove("MC_LOG")
            .env_remove("MC_LOG_FORMAT")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => panic!("cannot start {path:?}: {error}"),
        };
        let out = Printed::read(child.stdout.take().expect("piped"));
        let err = Printed::read(child.stderr.take().expect("piped"));
        let mut pipe = child.stdin.take();
        if let Input::Bytes(bytes) = input {
            let (mut pipe, bytes) = (pipe.take().expect("piped"), bytes.to_vec());
            // A program that refuses its input closes the pipe early.
            std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        Self { name, limit, child, input: pipe, out, err, heard: 0 }
    }

    /// The process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line on standard output that `pick` takes something from.
    ///
    /// # Panics
    /// When none comes in time.
    #[track_caller]
    pub fn wait_out<T>(&self, pick: impl Fn(&str) -> Option<T>) -> T {
        let Some(found) = self.out.wait(self.limit, pick) else {
            panic!("no such line; {}", self.shown());
        };
        found
    }

    /// Waits for a line on standard error that `pick` takes something from.
    ///
    /// # Panics
    /// When none comes in time.
    #[track_caller]
    pub fn wait_err<T>(&self, pick: impl Fn(&str) -> Option<T>) -> T {
        let Some(found) = self.err.wait(self.limit, pick) else {
            panic!("no such line; {}", self.shown());
        };
        found
    }

    /// The next words that a program which plays a [role](crate::role) says; waits for them.
    ///
    /// # Panics
    /// When none come in time.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        let Some(words) = self.hear_or_end() else {
            panic!("it says nothing more; {}", self.shown());
        };
        words
    }

    /// The next words as in [`hear`](Self::hear); `None` when the program has closed its output.
    ///
    /// # Panics
    /// When neither comes in time.
    #[track_caller]
    pub fn hear_or_end(&mut self) -> Option<String> {
        let begin = Instant::now();
        loop {
            let line = self.out.line(&mut self.heard, self.limit.saturating_sub(begin.elapsed()));
            let Ok(line) = line else { panic!("it says nothing; {}", self.shown()) };
            let line = line?;
            if let Some(words) = line.strip_prefix(PREFIX) {
                return Some(words.to_owned());
            }
        }
    }

    /// Writes a line to the program's standard input, which is [open](Input::Open).
    ///
    /// # Panics
    /// When the program has closed it.
    #[track_caller]
    pub fn tell(&mut self, words: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{words}").expect("it listens");
    }

    /// Closes the program's standard input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns whether the process has not ended yet.
    ///
    /// # Panics
    /// When the system does not know it.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// Kills the process, and returns when it is gone.
    ///
    /// # Panics
    /// When the system does not know it.
    pub fn kill(&mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// Bytes of memory that no other process shares, as `/proc` counts them.
    ///
    /// # Panics
    /// When the process has ended.
    #[must_use]
    pub fn private_memory(&self) -> u64 {
        self.memory("RssAnon:")
    }

    /// Bytes of memory that are there for the process, as `/proc` counts them.
    ///
    /// # Panics
    /// When the process has ended.
    #[must_use]
    pub fn resident_memory(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, label: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("our child lives");
        let line = status.lines().find_map(|line| line.strip_prefix(label));
        let kib = line.and_then(|line| line.split_whitespace().next()).expect("a number of kB");
        kib.parse::<u64>().expect("a number") * 1024
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process has ended and was waited for.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our child");
    }

    /// Freezes the program until it is sent `CONT`, and waits until no thread of it runs:
    /// on a busy machine some run on for a while after the signal was sent.
    ///
    /// # Panics
    /// When it does not stop in time.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        // The system reports the stop when the last thread has stopped.
        eventually_blocking(self.limit, format_args!("{} is frozen", self.name), || {
            let seen = waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::NOHANG);
            seen.expect("our child").map(|(_, status)| assert!(status.stopped(), "{status:?}"))
        });
    }

    /// Ends what [`freeze`](Self::freeze) began.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal and waits for the end.
    ///
    /// # Panics
    /// As [`finish`](Self::finish).
    #[track_caller]
    pub fn end_by(self, signal: Signal) -> Finished {
        self.signal(signal);
        self.finish()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it does not come in time.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let what = format!("the end of {}", self.name);
        let ended = || self.child.try_wait().expect("our child");
        let status = eventually_blocking(self.limit, what, ended);
        let err = String::from_utf8_lossy(&self.err.all()).into_owned();
        Finished { code: status.code(), out: self.out.all(), err }
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
        self.out.wait_for_end(CLOSE_LIMIT);
        self.err.wait_for_end(CLOSE_LIMIT);
        if std::thread::panicking() {
            eprintln!("{}", self.shown());
        }
    }
}

/// The path of a program of the workspace, which lies beside the one whose tests these are.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("this test's path");
    let profile = tests.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let path = profile.join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(path.exists(), "{path:?} is missing; build it with: cargo build -p {name}");
    path
}

/// The output of a pipe, read by a thread so that the writer never waits.
#[derive(Debug)]
struct Printed {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    pipe: Mutex<Pipe>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pipe {
    bytes: Vec<u8>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.pipe.lock().expect("no panic under the lock")
    }

    /// Waits until something comes, the pipe ends, or the time is up, which is an error.
    fn wait<'a>(
        &self,
        pipe: MutexGuard<'a, Pipe>,
        left: Duration,
    ) -> Result<MutexGuard<'a, Pipe>, ()> {
        let (pipe, waited) =
            self.changed.wait_timeout(pipe, left).expect("no panic under the lock");
        if waited.timed_out() { Err(()) } else { Ok(pipe) }
    }
}

impl Printed {
    fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let reader = std::thread::spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let len = pipe.read(&mut chunk).unwrap_or(0);
                if len == 0 {
                    break;
                }
                theirs.lock().bytes.extend_from_slice(&chunk[..len]);
                theirs.changed.notify_all();
            }
            // Before the end is announced: tests count descriptors.
            drop(pipe);
            theirs.lock().ended = true;
            theirs.changed.notify_all();
        });
        Self { shared, reader: Some(reader) }
    }

    /// The first whole line from which `pick` takes something; `None` when none comes in time.
    fn wait<T>(&self, limit: Duration, pick: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (begin, mut at) = (Instant::now(), 0);
        loop {
            let line = self.line(&mut at, limit.saturating_sub(begin.elapsed())).ok()??;
            if let Some(found) = pick(&line) {
                return Some(found);
            }
        }
    }

    /// The whole line that begins at `at`, which moves on; `None` when the pipe has ended before
    /// the line did, and an error when neither happens in time.
    fn line(&self, at: &mut usize, limit: Duration) -> Result<Option<String>, ()> {
        let begin = Instant::now();
        let mut pipe = self.shared.lock();
        loop {
            let rest = &pipe.bytes[*at..];
            if let Some(len) = rest.iter().position(|byte| *byte == b'\n') {
                *at += len + 1;
                return Ok(Some(String::from_utf8_lossy(&rest[..len]).trim_end().to_owned()));
            }
            if pipe.ended {
                return Ok(None);
            }
            pipe = self.shared.wait(pipe, limit.saturating_sub(begin.elapsed()))?;
        }
    }

    /// Waits until the other end is closed, or the time is up.
    fn wait_for_end(&self, limit: Duration) {
        let begin = Instant::now();
        let mut pipe = self.shared.lock();
        while !pipe.ended {
            let left = limit.saturating_sub(begin.elapsed());
            let Ok(next) = self.shared.wait(pipe, left) else { return };
            pipe = next;
        }
    }

    /// Everything, once the other end is closed.
    fn all(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        self.shared.lock().bytes.clone()
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shared.lock().bytes).into_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Plays a part in another process; does nothing in a run of all tests.
    #[test]
    fn part() {
        if crate::role::role().is_some_and(|role| role == "echo") {
            while let Some(words) = crate::role::hear() {
                crate::role::say(words);
            }
        }
    }

    #[test]
    fn a_role_hears_and_says() {
        let command = &mut crate::role::command("program::tests::part", "echo");
        let mut echo = Program::start(LIMIT, command, Input::Open);
        for words in ["one", "two words"] {
            echo.tell(words);
            assert_eq!(echo.hear(), words);
        }
        assert!(echo.is_running());
        echo.close_input();
        assert_eq!(echo.hear_or_end(), None);
        assert_eq!(echo.finish().code, Some(0));
    }

    #[test]
    fn a_panic_names_the_line_of_the_caller() {
        let (place, this) = (Arc::new(Mutex::new(None)), std::thread::current().id());
        let (seen, before) = (Arc::clone(&place), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            // Other tests panic on threads of their own.
            if std::thread::current().id() == this {
                *seen.lock().unwrap() = panic.location().map(|at| at.line());
            }
        }));
        let limit = Duration::from_millis(10);
        let sleeper = Program::start(limit, Command::new("sleep").arg("60"), Input::None);
        let here = line!() + 1;
        let wait = || sleeper.wait_out(|_| Some(()));
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
        std::panic::set_hook(before);
        assert!(waited.is_err());
        assert_eq!(*place.lock().unwrap(), Some(here));
    }

    #[test]
    fn all_input_passes_and_all_output_is_kept() {
        let input = b"x\n".repeat(1 << 20);
        let cat = Program::start(LIMIT, &mut Command::new("cat"), Input::Bytes(&input));
        assert_eq!(cat.finish().assert_ok().out, input);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_frozen_program_goes_on_and_ends_by_a_signal() {
        let cat = Program::start(LIMIT, &mut Command::new("cat"), Input::Open);
        assert!(cat.resident_memory() > 0);
        for _ in 0..3 {
            cat.freeze();
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", cat.id())).unwrap();
            assert!(stat.contains(") T "), "{stat}");
            cat.resume();
        }
        assert_eq!(cat.end_by(Signal::TERM).code, None);
    }
}
